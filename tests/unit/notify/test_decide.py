"""What is posted to an Alertmanager, and when: on scripted Alertmanagers, in time that only the test moves."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.notify.decide import (
    IDLE_SECONDS,
    MOST_IN_A_POST,
    REFRESH_SECONDS,
    VALID_SECONDS,
    Post,
    Target,
    Verdict,
    learned,
    next_step,
    told_by_a_wrong_clock,
)
from tests.unit.notify.scripted_alertmanager import Mood, World, numbered


def numbers(post: Post) -> tuple[list[str], list[str]]:
    """The incidents that fire and that are over in a post."""
    return (
        [dict(alert.labels)["incident"] for alert in post.firing],
        [dict(alert.labels)["incident"] for alert in post.resolved],
    )


def test_with_nothing_to_tell_it_is_asked_at_start_and_every_five_minutes() -> None:
    """A wrong address or password is known before the first fault."""
    world = World()

    assert world.run(2 * IDLE_SECONDS + 1) == 3
    assert all(post == Post() for _, post in world.posts)


def test_one_that_was_away_at_start_is_asked_again_soon() -> None:
    """Node and Alertmanager may start together: nobody waits five minutes to know that all is well."""
    world = World(mood=Mood.GONE)
    world.run(3)
    world.mood = Mood.UP
    world.run(4)

    assert world.target.failures == 0


def test_a_new_alert_is_posted_at_once() -> None:
    """No interval is waited for."""
    world = World()
    world.run(7)
    world.open[1] = numbered(1)

    assert next_step([numbered(1)], world.target, world.now) == Post(firing=(numbered(1),))


def test_an_open_alert_is_posted_again_each_minute() -> None:
    """Alertmanager forgets what it is not told again."""
    world = World(open={1: numbered(1)})
    world.run(3600)

    times = [moment for moment, _ in world.posts]
    assert {round(later - earlier, 6) for earlier, later in pairwise(times)} == {REFRESH_SECONDS}
    assert world.shows() == {1}


def test_alerts_that_opened_apart_are_refreshed_together() -> None:
    """Ten alerts are one request a minute, not ten."""
    world = World()
    for number in range(10):
        world.open[number] = numbered(number)
        world.run(3)
    world.run(120)

    assert world.run(600) <= 600 / (REFRESH_SECONDS / 2) + 1


def test_a_closed_alert_is_resolved_once() -> None:
    """Its end is told when it comes, and not repeated."""
    world = World(open={1: numbered(1), 2: numbered(2)})
    world.run(90)
    del world.open[1]
    world.run(600)

    assert world.resolved == [numbered(1).labels]
    assert world.shows() == {2}


def test_a_closed_alert_that_was_never_told_is_not_resolved() -> None:
    """An Alertmanager that could not be reached hears nothing of what is over."""
    world = World(mood=Mood.GONE, open={1: numbered(1)})
    world.run(20)
    world.open.clear()
    world.mood = Mood.UP
    world.run(600)

    assert world.resolved == []
    assert world.taken == set()


def test_one_that_may_have_been_taken_is_resolved() -> None:
    """A post whose answer did not come may have arrived."""
    world = World(mood=Mood.MUTE, open={1: numbered(1)})
    world.run(1)
    world.open.clear()
    world.mood = Mood.UP
    world.run(60)

    assert world.resolved == [numbered(1).labels]
    assert world.shows() == set()


def test_a_resolve_is_given_up_when_the_alert_has_expired() -> None:
    """By then Alertmanager has taken it for resolved by itself."""
    world = World(open={1: numbered(1)})
    world.run(1)
    world.open.clear()
    world.mood = Mood.GONE
    world.run(VALID_SECONDS)
    world.mood = Mood.UP
    world.run(600)

    assert world.resolved == []


def test_an_alertmanager_that_was_away_is_told_everything_again() -> None:
    """It keeps alerts in memory only: after a restart it knows none, whenever each of them was last refreshed."""
    world = World(open={1: numbered(1)})
    world.run(10)
    world.mood = Mood.GONE
    world.open[2] = numbered(2)
    world.run(1)
    world.restart()
    world.mood = Mood.UP
    world.run(2)

    assert world.shows() == {1, 2}


def test_tries_become_rarer_and_stay_below_half_a_minute() -> None:
    """Back-off doubles from half a second; at its longest an Alertmanager that is back waits half a minute."""
    world = World(chance=0.0, mood=Mood.GONE, open={1: numbered(1)})
    world.run(300)

    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(world.posts)]
    assert gaps[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert set(gaps[6:]) == {30.0}


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.75, 0.999])
def test_chance_spreads_the_tries_of_a_fleet(chance: float) -> None:
    """A thousand nodes do not come back in the same moment; each waits half to all of its time."""
    target = learned(Target({}), Post(), Verdict.FAILED, 100.0, chance)

    assert target.not_before == pytest.approx(100.0 + 0.5 * (1 - chance / 2))


def test_news_is_tried_at_once_even_while_an_alertmanager_is_away() -> None:
    """It may be back since; but not more often than each second."""
    world = World(mood=Mood.GONE, open={1: numbered(1)})
    world.run(100)
    world.mood = Mood.UP
    world.open[2] = numbered(2)
    world.run(1.0)

    assert world.shows() == {1, 2}


def test_a_try_that_is_due_takes_news_along() -> None:
    """The empty post of an Alertmanager that is away is none as soon as there is something to tell."""
    world = World(mood=Mood.GONE)
    world.run(0)
    world.open[1] = numbered(1)
    world.run(0.5)

    assert [numbers(post)[0] for _, post in world.posts] == [[], ["1"]]


def test_a_burst_of_news_is_no_burst_of_tries() -> None:
    """Each new alert alone would be a try of its own."""
    world = World(mood=Mood.GONE)
    world.run(100)
    for number in range(100):
        world.open[number] = numbered(number)
        world.run(0.01)

    assert sum(1 for moment, _ in world.posts if moment > 1100.0) <= 2


def test_refused_credentials_are_not_tried_in_haste() -> None:
    """A minute, then twice as long each time up to a quarter of an hour: somebody has to repair them first."""
    world = World(chance=0.0, mood=Mood.STRANGE, open={1: numbered(1)})
    world.run(4000)

    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(world.posts)]
    assert gaps == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 900.0]


def test_refused_content_does_not_hold_up_other_alerts() -> None:
    """After a refusal each alert goes by itself."""
    world = World(mood=Mood.PICKY, open={number: numbered(number) for number in range(4)})
    world.run(600)

    assert world.shows() == {0, 2}
    assert all(len(post) <= 1 for _, post in world.posts[1:])


def test_what_was_refused_together_is_resolved_each_by_itself() -> None:
    """Alertmanager took the valid ones of a post that it refused, and nobody says which those were."""
    target = learned(Target({}), Post((numbered(1), numbered(2))), Verdict.CONTENT_REFUSED, 100.0, 0.5)
    first = next_step([], target, 101.0)
    assert isinstance(first, Post)
    second = next_step([], learned(target, first, Verdict.CONTENT_REFUSED, 101.0, 0.5), 101.0)
    assert isinstance(second, Post)

    assert [numbers(post) for post in (first, second)] == [([], ["1"]), ([], ["2"])]


def test_refused_content_is_given_up() -> None:
    """It will not become better; after some tries it is not offered any more."""
    world = World(mood=Mood.PICKY, open={1: numbered(1)})
    world.run(7200)
    tries = sum(1 for _, post in world.posts if post.firing)

    assert tries == 6
    assert world.run(7200) > 0, "it is still asked whether it is there"
    assert sum(1 for _, post in world.posts if post.firing) == tries


def test_a_refused_resolve_is_not_repeated() -> None:
    """The alert expires by itself."""
    world = World(open={1: numbered(1)})
    world.run(1)
    world.open.clear()
    world.mood = Mood.PICKY
    world.run(300)

    assert sum(1 for _, post in world.posts if post.resolved) == 1


def test_a_post_has_a_bounded_size() -> None:
    """More alerts than one request takes go in several, one after the other."""
    world = World(open={number: numbered(number) for number in range(3 * MOST_IN_A_POST)})
    world.run(0)

    assert [len(post) for _, post in world.posts] == [MOST_IN_A_POST] * 3
    assert world.shows() == set(world.open)
    world.run(3600)
    assert world.shows() == set(world.open)
    world.open.clear()
    world.run(0)
    assert world.shows() == set()


def test_an_alert_that_opens_again_while_its_end_is_told_is_told_again() -> None:
    """The resolve may have been taken although no answer came."""
    world = World(open={1: numbered(1)})
    world.run(1)
    world.open.clear()
    world.mood = Mood.MUTE
    world.run(0)
    world.open[1] = numbered(1)
    world.mood = Mood.UP
    world.run(1)

    assert world.shows() == {1}


def test_after_a_wrong_clock_all_alerts_are_told_again() -> None:
    """To an Alertmanager whose clock is hours ahead they had ended before they came."""
    world = World(open={1: numbered(1)})
    world.run(1)
    world.shown.clear()
    world.forgot_at = world.now
    world.target = told_by_a_wrong_clock(world.target, world.now)
    world.run(5)

    assert world.shows() == {1}
    assert len(world.posts) == 2


def test_news_and_the_end_of_others_go_in_one_request() -> None:
    """An incident that took over from another: never neither of the two."""
    world = World(open={1: numbered(1)})
    world.run(1)
    world.open = {2: numbered(2)}
    world.run(0)

    assert [numbers(post) for _, post in world.posts[1:]] == [(["2"], ["1"])]


ACTIONS = st.one_of(
    st.tuples(st.just("open"), st.integers(0, 5)),
    st.tuples(st.just("close"), st.integers(0, 5)),
    st.tuples(st.just("run"), st.sampled_from([0, 0.3, 1, 5, 29, 59, 61, 200, 241, 1000])),
    st.tuples(st.just("mood"), st.sampled_from(list(Mood))),
    st.tuples(st.just("restart"), st.just(0)),
)


@given(actions=st.lists(ACTIONS, max_size=40), chance=st.floats(0, 1, exclude_max=True))
def test_whatever_happens_it_ends_with_the_truth(actions: list[tuple[str, object]], chance: float) -> None:
    """Any outages, refusals and restarts: nothing expires in an Alertmanager that works, none is asked in haste, and
    once it works again it shows what is open and nothing else.
    """
    world = World(chance=chance)
    for action, argument in actions:
        if action == "open":
            assert isinstance(argument, int)
            world.open.setdefault(argument, numbered(argument))
        elif action == "close":
            assert isinstance(argument, int)
            world.open.pop(argument, None)
        elif action == "mood":
            assert isinstance(argument, Mood)
            world.mood = argument
        elif action == "restart":
            world.restart()
        else:
            assert isinstance(argument, int | float)
            assert world.run(argument) <= 30 + argument / 10
    world.mood = Mood.UP
    world.run(1000)
    given_up = {
        number for number, alert in world.open.items() if world.target.standings[alert.labels].not_before == math.inf
    }

    assert world.shows() == set(world.open) - given_up
    assert set(world.target.standings) == {alert.labels for alert in world.open.values()}


@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["open", "close"]), st.integers(0, 3)),
            st.tuples(st.just("run"), st.sampled_from([0, 0.3, 5, 59, 61, 200])),
            st.tuples(st.just("mood"), st.sampled_from([Mood.UP, Mood.GONE])),
        ),
        max_size=40,
    ),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_each_end_is_told_once_to_who_knew_of_the_alert(actions: list[tuple[str, object]], chance: float) -> None:
    """Where a post either arrives or does not, each alert that was taken and closed is resolved once, or it expires
    while nobody can be reached; and one that was never taken never is.
    """
    world = World(chance=chance)
    begun: dict[int, int] = {}  # posts of a new firing, by number: how often it began to be shown
    for action, argument in [*actions, ("mood", Mood.UP), ("run", 100.0)]:
        shown = world.shows()
        if action == "open":
            assert isinstance(argument, int)
            world.open.setdefault(argument, numbered(argument))
        elif action == "close":
            assert isinstance(argument, int)
            world.open.pop(argument, None)
        elif action == "mood":
            assert isinstance(argument, Mood)
            world.mood = argument
        else:
            assert isinstance(argument, int | float)
            before = len(world.resolved)
            in_time = {
                labels
                for labels, until in world.shown.items()
                if until > world.now + 31 and int(dict(labels)["incident"]) not in world.open
            }
            world.run(argument)
            ends = world.resolved[before:]
            assert len(ends) == len(set(ends))
            assert set(ends) <= {numbered(number).labels for number in shown - set(world.open)}
            if world.mood is Mood.UP and argument >= 59:
                assert in_time <= set(ends)
        for number in world.shows() - shown:
            begun[number] = begun.get(number, 0) + 1

    for number, times in begun.items():
        ended = world.resolved.count(numbered(number).labels)
        assert ended <= times
    assert set(world.resolved) <= world.taken
