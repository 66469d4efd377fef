"""Names of users, where the directory service answers, has none, or hangs."""

from __future__ import annotations

import os
import pwd
import threading

from gpufleet.sources.users import UserNames
from tests.waiting import until


def test_this_user_has_a_name() -> None:
    """From the machine itself."""
    assert UserNames().of(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name


def test_a_name_is_asked_for_once() -> None:
    """It does not change while the process lives; many of them are bounded."""
    asked: list[int] = []

    def look_up(uid: int) -> str:
        asked.append(uid)
        return f"user-{uid}"

    names = UserNames(look_up)
    assert [names.of(7), names.of(7)] == ["user-7", "user-7"]
    assert asked == [7]
    assert {names.of(uid) for uid in range(3000)} == {f"user-{uid}" for uid in range(3000)}
    assert len(names._known) <= 1024


def test_a_user_without_a_name_is_the_number_and_asked_about_again_later() -> None:
    """The service may have been away for a moment."""
    clock = [0.0]
    answers: list[str | None] = [None, "ada"]
    names = UserNames(lambda _: answers.pop(0), monotonic=lambda: clock[0])
    assert [names.of(5), names.of(5)] == ["5", "5"]
    clock[0] = 61.0
    assert names.of(5) == "ada"


def test_a_service_that_hangs_holds_nobody() -> None:
    """The number stands for the name until it comes; few questions are out at once."""
    release = threading.Event()
    asked: list[int] = []

    def look_up(uid: int) -> str:
        asked.append(uid)
        release.wait(60)
        return f"user-{uid}"

    names = UserNames(look_up, patience=0.01)
    assert [names.of(uid) for uid in range(20)] == [str(uid) for uid in range(20)]
    assert [names.of(uid) for uid in range(20)] == [str(uid) for uid in range(20)]
    assert asked == [0, 1, 2, 3]
    release.set()
    until(lambda: names.of(0) == "user-0", "the name has come")
