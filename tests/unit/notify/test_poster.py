"""The poster's threads: each Alertmanager by itself, the caller never held up. With clients that a test holds."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpufleet.metrics.selfmetrics import SelfMetrics
from gpufleet.notify import alertmanager, decide
from gpufleet.notify.alert import Alert, hardware_incident
from gpufleet.notify.alertmanager import MOST_ALERTS, Poster, open_poster
from gpufleet.notify.client_config import ClientConfigError
from gpufleet.notify.collector import NotificationMetrics
from gpufleet.notify.decide import Answer, Verdict
from tests.support.incidents import INCIDENT, OPENED_AT
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ACCEPTED = Answer(Verdict.ACCEPTED)
FAILED = Answer(Verdict.FAILED, "Connection refused")


def alert(number: int) -> Alert:
    """One of a set of different alerts."""
    return hardware_incident(replace(INCIDENT, id=f"{number:016x}"))


@dataclass
class HeldClient:
    """A client whose answers a test decides, and which waits for ``may_answer``."""

    answer: Answer | Exception = ACCEPTED
    may_answer: threading.Event = field(default_factory=threading.Event)
    bodies: list[list[dict[str, object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_answer.set()

    def post(self, body: bytes) -> Answer:
        self.bodies.append(json.loads(body))
        assert self.may_answer.wait(20)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def incidents(self) -> list[list[str]]:
        """The incidents in each post that had any, those that are over with a dash before them."""
        found = []
        for body in self.bodies:
            each = []
            for sent in body:
                labels = sent["labels"]
                assert isinstance(labels, dict)
                over = sent["endsAt"] == sent["startsAt"] or str(sent["endsAt"]) < "2026-07-25T17:22"
                each.append(("-" if over else "") + labels["incident"].lstrip("0"))
            if each:
                found.append(each)
        return found


@pytest.fixture
def started() -> Iterator[Callable[..., Poster]]:
    """The means to start posters; they are stopped with the test."""
    posters = []

    def start(clients: dict[str, HeldClient]) -> Poster:
        poster = Poster(clients, wall=lambda: OPENED_AT + 60)
        posters.append((poster, clients))
        poster.start()
        return poster

    yield start
    for poster, clients in posters:
        for client in clients.values():
            client.may_answer.set()
        assert poster.stop(10)


def test_each_alertmanager_is_told_of_what_opens_and_what_is_over(started: Callable[..., Poster]) -> None:
    """Both of a pair get the same posts, each its own."""
    clients = {"http://a": HeldClient(), "http://b": HeldClient()}
    poster = started(clients)
    until(lambda: all(client.bodies for client in clients.values()), "both are asked whether they are there")
    poster.update([alert(1)])
    until(lambda: all(client.incidents() == [["1"]] for client in clients.values()), "both are told of the alert")
    poster.update([])
    until(lambda: all(client.incidents() == [["1"], ["-1"]] for client in clients.values()), "both are told of its end")

    assert all(client.bodies[0] == [] for client in clients.values())


def test_one_that_hangs_holds_up_neither_the_caller_nor_the_other(started: Callable[..., Poster]) -> None:
    """The faults thread goes on, and the healthy one of a pair is told of everything."""
    hanging, healthy = HeldClient(), HeldClient()
    hanging.may_answer.clear()
    poster = started({"http://a": hanging, "http://b": healthy})
    until(lambda: hanging.bodies, "the first one is being asked")
    for number in range(1, 50):
        poster.update([alert(each) for each in range(1, number)])
    until(lambda: sum(len(post) for post in healthy.incidents()) >= 48, "the healthy one is told of everything")

    assert len(hanging.bodies) == 1
    assert [status.up for status in poster.statuses()] == [None, True]
    hanging.may_answer.set()
    until(lambda: sum(len(post) for post in hanging.incidents()) == 48, "the other one is told when it answers")


def test_an_alert_that_came_and_went_meanwhile_is_not_posted(started: Callable[..., Poster]) -> None:
    """What counts is what is open now: there is no queue that could grow."""
    client = HeldClient()
    client.may_answer.clear()
    poster = started({"http://a": client})
    until(lambda: client.bodies, "it is being asked")
    for _ in range(1000):
        poster.update([alert(1)])
        poster.update([])
    poster.update([alert(2)])
    client.may_answer.set()
    until(client.incidents, "it is told of something")

    assert client.incidents() == [["2"]]


def test_more_alerts_than_a_node_can_have_are_cut(
    started: Callable[..., Poster], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever made them, memory and requests stay bounded, and the log says so once."""
    client = HeldClient()
    poster = started({"http://a": client})
    for _ in range(2):
        poster.update([alert(number) for number in range(MOST_ALERTS + 10)])
    until(lambda: sum(len(post) for post in client.incidents()) >= MOST_ALERTS, "the first ones are posted")

    assert sum(len(post) for post in client.incidents()) == MOST_ALERTS
    assert [record.message for record in caplog.records] == ["too many alerts: only the first are posted"]


def test_a_failure_is_logged_once_and_its_end_too(
    started: Callable[..., Poster], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Alertmanager that is away for hours is two lines; what became of the alerts is counted."""
    monkeypatch.setattr(decide, "_LONGEST_RETRY_SECONDS", 0.05)
    caplog.set_level(logging.INFO)
    client = HeldClient(answer=FAILED)
    poster = started({"http://a": client})
    poster.update([alert(1)])
    until(lambda: len(client.incidents()) >= 3, "it was tried again")
    client.answer = ACCEPTED
    (status,) = until(lambda: [each for each in poster.statuses() if each.up], "it is up again")
    until(lambda: "alert posted" in caplog.messages, "the alert is there")

    assert caplog.messages == [
        "Alertmanager does not take alerts",
        "Alertmanager takes alerts again",
        "alert posted",
    ]
    assert vars(caplog.records[-1])["incident"] == f"{1:016x}"
    assert dict(status.alerts)["failed"] >= 2
    assert dict(status.alerts)["accepted"] == 1


def test_an_error_inside_does_not_end_the_thread(
    started: Callable[..., Poster], caplog: pytest.LogCaptureFixture
) -> None:
    """The next try is made, and the traceback is in the log."""
    client = HeldClient(answer=RuntimeError("surprise"))
    poster = started({"http://a": client})
    poster.update([alert(1)])
    until(lambda: client.bodies, "it was tried")
    client.answer = ACCEPTED
    until(lambda: any(status.up for status in poster.statuses()), "it goes on")

    assert any(record.exc_info for record in caplog.records)


def test_times_are_told_by_alertmanagers_clock(
    started: Callable[..., Poster], caplog: pytest.LogCaptureFixture
) -> None:
    """A node that was just booted may be hours off: its alerts would have ended before they came."""
    client = HeldClient(answer=Answer(Verdict.ACCEPTED, server_time=float(int(OPENED_AT + 60 + 7200))))
    poster = started({"http://a": client})
    until(lambda: any(status.up for status in poster.statuses()), "its clock is known")
    poster.update([alert(1)])
    until(client.incidents, "it is told of the alert")

    (sent,) = client.bodies[-1]
    assert str(sent["endsAt"]).startswith("2026-07-25T19:25:0")
    assert "this node's clock is not Alertmanager's; check both" in caplog.messages


def test_alerts_that_were_told_by_a_wrong_clock_are_told_again(
    started: Callable[..., Poster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that starts with an open incident learns of its clock from the first answer only."""
    monkeypatch.setattr(decide, "_CLOCK_SECONDS", 0.05)
    client = HeldClient(answer=Answer(Verdict.ACCEPTED, server_time=OPENED_AT + 60 + 7200))
    poster = started({"http://a": client})
    poster.update([alert(1)])
    until(lambda: len(client.bodies) >= 2 and client.bodies[-1], "the alert was told by the right clock")

    assert str(client.bodies[-1][0]["endsAt"]).startswith("2026-07-25T19:25:0")


def test_the_self_metrics_say_what_became_of_the_posts(started: Callable[..., Poster]) -> None:
    """One gauge and three counts for each Alertmanager; before its first answer it is neither up nor down."""
    waiting = HeldClient()
    waiting.may_answer.clear()
    poster = started({"http://a:9093": HeldClient(), "http://b:9093": waiting})
    poster.update([alert(1)])
    until(lambda: dict(poster.statuses()[0].alerts)["accepted"], "the alert was posted")
    metrics = SelfMetrics()
    metrics.register("alertmanager", NotificationMetrics(poster.statuses))
    families = text_string_to_metric_families(metrics.openmetrics().decode() + "# EOF\n")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("gpufleet_alertmanager_")
    }

    assert samples == {
        ("gpufleet_alertmanager_up", "http://a:9093"): 1,
        ("gpufleet_alertmanager_notifications_total", "http://a:9093", "accepted"): 1,
        ("gpufleet_alertmanager_notifications_total", "http://a:9093", "refused"): 0,
        ("gpufleet_alertmanager_notifications_total", "http://a:9093", "failed"): 0,
        ("gpufleet_alertmanager_notifications_total", "http://b:9093", "accepted"): 0,
        ("gpufleet_alertmanager_notifications_total", "http://b:9093", "refused"): 0,
        ("gpufleet_alertmanager_notifications_total", "http://b:9093", "failed"): 0,
    }


def test_stopping_tells_nobody_that_the_alerts_are_over() -> None:
    """A restart of the exporter is not the end of an incident."""
    client = HeldClient()
    poster = Poster({"http://a": client}, wall=lambda: OPENED_AT + 60)
    poster.start()
    poster.update([alert(1)])
    until(client.incidents, "the alert is there")

    assert poster.stop(10)
    assert client.incidents() == [["1"]]


def test_stopping_does_not_wait_for_who_hangs() -> None:
    """The process ends all the same."""
    client = HeldClient()
    client.may_answer.clear()
    poster = Poster({"http://a": client})
    poster.start()
    until(lambda: client.bodies, "it is being asked")

    assert not poster.stop(0.05)
    client.may_answer.set()
    assert poster.stop(10)


def test_opening_reads_the_configuration_and_warns_of_what_is_not_verified(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad file is refused at start; one that switches verification off is said aloud."""
    file = tmp_path / "am.yml"
    file.write_text("tls_config: {insecure_skip_verify: true}")
    statuses = open_poster(["https://a:9093", "https://b:9093"], file).statuses()
    file.write_text("tls: {}")

    assert [(status.alertmanager, status.up) for status in statuses] == [
        ("https://a:9093", None),
        ("https://b:9093", None),
    ]
    assert len(caplog.messages) == 1
    assert "is not verified" in caplog.messages[0]
    with pytest.raises(ClientConfigError, match="tls: is no key of this file"):
        open_poster(["https://a:9093"], file)


def test_nothing_heavy_is_imported_before_a_poster_is_opened() -> None:
    """Nodes without the direct path do not pay for requests and OpenSSL."""
    script = f"import sys, {alertmanager.__name__}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert set(done.stdout.split()).isdisjoint({"requests", "urllib3", "ssl", "stamina", "http.client", "yaml"})
