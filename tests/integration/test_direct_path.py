"""From an incident to an alert in a real Alertmanager, and to one alert only when a real Prometheus fires, too."""

from __future__ import annotations

import base64
import http.server
import ssl
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import bcrypt
import pytest

from gpufleet.metrics.labels import pairs
from gpufleet.notify import decide
from gpufleet.notify.alert import SERIES, Alert, hardware_incident
from gpufleet.notify.alertmanager import Poster, open_poster
from tests.conftest import ROOT
from tests.integration.alertmanager_server import CONFIG, AlertmanagerServer
from tests.integration.prometheus_server import PrometheusServer
from tests.support.incidents import HOSTILE, INCIDENT, OF_THE_NODE
from tests.support.pems import write_pems
from tests.support.scripted_http import ScriptedServer, answer
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpufleet.model.incident import Incident
    from tests.integration.conftest import Monitoring

CLUSTER = ("cluster", "east-1")
NOW = replace(INCIDENT, opened_at=time.time() - 5)


@contextmanager
def posting(*urls: str, config_file: Path | None = None) -> Iterator[Poster]:
    """A poster that works, and that each Alertmanager has answered once."""
    poster = open_poster(urls, config_file)
    poster.start()
    try:
        until(lambda: all(status.up is not None for status in poster.statuses()), "each was asked")
        yield poster
    finally:
        poster.stop(20)


def outcomes(poster: Poster) -> dict[str, int]:
    """Alerts by outcome, of the first Alertmanager."""
    return dict(poster.statuses()[0].alerts)


def served(*incidents: Incident) -> bytes:
    """The series of these incidents, as the exporter serves them."""
    lines = ["# TYPE gpu_fault_active gauge"]
    for incident in incidents:
        told = incident.labels()
        labels = pairs([(name, getattr(told, "class_" if name == "class" else name)) for name in SERIES.labels])
        lines.append(f"gpu_fault_active{{{labels}}} 1")
    return ("\n".join(lines) + "\n").encode()


def test_an_alert_is_there_within_a_second_and_gone_as_soon(alertmanager: AlertmanagerServer) -> None:
    """An empty list is accepted at start; from update() on, an isolating incident shows before a scrape could begin."""
    with posting(alertmanager.url) as poster:
        assert poster.statuses()[0].up
        before = time.monotonic()
        poster.update([hardware_incident(NOW, [CLUSTER])])
        until(lambda: alertmanager.incidents() == [NOW.id], "the alert is there", every=0.005)
        opening = time.monotonic() - before
        (alert,) = alertmanager.alerts()
        poster.update([])
        until(lambda: alertmanager.alerts() == [], "the alert is gone", every=0.005)

    assert opening < 1.0
    assert alert["labels"] == dict(hardware_incident(NOW, [CLUSTER]).labels)
    assert alert["annotations"] == dict(hardware_incident(NOW).annotations)
    assert datetime.fromisoformat(alert["startsAt"]).timestamp() == pytest.approx(NOW.opened_at, abs=0.001)


def test_an_alert_outlives_a_short_resolve_timeout(monitoring: Monitoring, tmp_path: Path) -> None:
    """It says itself how long it is good for: until the fourth time that it is posted again."""
    config = {**CONFIG, "global": {"resolve_timeout": "1s"}}
    with (
        AlertmanagerServer(monitoring.alertmanager, tmp_path, config=config) as alertmanager,
        posting(alertmanager.url) as poster,
    ):
        poster.update([hardware_incident(NOW)])
        (alert,) = until(alertmanager.alerts, "the alert is there")

    left = datetime.fromisoformat(alert["endsAt"]).timestamp() - time.time()
    assert 3 * decide.REFRESH_SECONDS < left <= decide.VALID_SECONDS


def test_an_open_alert_is_kept_alive(alertmanager: AlertmanagerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Posted again and again, it is still there when each single post would have expired."""
    monkeypatch.setattr(decide, "REFRESH_SECONDS", 0.2)
    with posting(alertmanager.url) as poster:
        poster.update([hardware_incident(NOW)])
        (first,) = until(alertmanager.alerts, "the alert is there")
        (later,) = until(
            lambda: [each for each in alertmanager.alerts() if each["endsAt"] > first["endsAt"]], "its end has moved"
        )
        until(lambda: outcomes(poster)["accepted"] >= 5, "it was posted several times")

        assert later["fingerprint"] == first["fingerprint"]
        assert later["startsAt"] == first["startsAt"]


def test_an_alertmanager_that_is_down_is_told_when_it_is_back(alertmanager: AlertmanagerServer) -> None:
    """Nothing is lost, also not what it had heard before it was restarted; and what failed is counted."""
    second = replace(NOW, id="00000000000000b9")
    with posting(alertmanager.url) as poster:
        poster.update([hardware_incident(NOW)])
        until(alertmanager.incidents, "the first alert is there")
        alertmanager.stop()
        poster.update([hardware_incident(NOW), hardware_incident(second)])
        until(lambda: outcomes(poster)["failed"] >= 2, "it was tried more than once")
        assert not poster.statuses()[0].up
        alertmanager.start()
        until(lambda: alertmanager.incidents() == [NOW.id, second.id], "both alerts are there")
        assert poster.statuses()[0].up


def test_each_of_a_pair_is_told_though_the_other_is_away(monitoring: Monitoring, tmp_path: Path) -> None:
    """They gossip about notifications, not about alerts: each has to be told."""
    with ExitStack() as running:
        first, second = (
            running.enter_context(AlertmanagerServer(monitoring.alertmanager, tmp_path / name)) for name in "ab"
        )
        poster = running.enter_context(posting(first.url, second.url))
        poster.update([hardware_incident(NOW)])
        until(lambda: first.incidents() == second.incidents() == [NOW.id], "both were told")
        first.stop()
        poster.update([])
        until(lambda: second.incidents() == [], "the second one hears of its end")
        poster.update([hardware_incident(OF_THE_NODE)])
        until(lambda: second.incidents() == [OF_THE_NODE.id], "and of the next one")


def test_one_alert_that_is_refused_does_not_hold_up_the_others(alertmanager: AlertmanagerServer) -> None:
    """Alertmanager answers 400 to a post with one alert that it finds invalid."""
    invalid = Alert((), (), NOW.opened_at)
    with posting(alertmanager.url) as poster:
        poster.update([invalid, hardware_incident(NOW)])
        until(lambda: alertmanager.incidents() == [NOW.id], "the valid one is there")
        until(lambda: outcomes(poster)["accepted"] >= 1, "it was accepted by itself")
        poster.update([])
        until(lambda: alertmanager.incidents() == [], "its end is accepted, too")

    assert outcomes(poster)["refused"] >= 2


@pytest.fixture
def guarded(monitoring: Monitoring, tmp_path: Path) -> Iterator[AlertmanagerServer]:
    """An Alertmanager behind TLS of a private authority and basic auth; am.yml in tmp_path is the way in."""
    pems = write_pems(tmp_path)
    hashed = bcrypt.hashpw(b"sesame", bcrypt.gensalt(4)).decode()
    web = tmp_path / "web.yml"
    web.write_text(
        "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"
        f"basic_auth_users: {{gpufleet: '{hashed}'}}\n"
    )
    (tmp_path / "password").write_text("sesame\n")
    (tmp_path / "am.yml").write_text(
        "tls_config: {ca_file: ca.crt}\nbasic_auth: {username: gpufleet, password_file: password}\n"
    )
    with AlertmanagerServer(
        monitoring.alertmanager,
        tmp_path / "alertmanager",
        web_config=web,
        headers={"Authorization": "Basic " + base64.b64encode(b"gpufleet:sesame").decode()},
        context=ssl.create_default_context(cafile=str(pems.folder / "ca.crt")),
    ) as server:
        yield server


def test_tls_of_a_private_authority_and_basic_auth(guarded: AlertmanagerServer, tmp_path: Path) -> None:
    """As Alertmanager's own web configuration asks for them."""
    with posting(guarded.url, config_file=tmp_path / "am.yml") as poster:
        poster.update([hardware_incident(NOW)])
        until(lambda: guarded.incidents() == [NOW.id], "the alert is there")


def test_a_wrong_password_is_refused_and_told(
    guarded: AlertmanagerServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first fault: gpufleet_alertmanager_up is 0, and the log says what to check and no password."""
    (tmp_path / "password").write_text("swordfish")
    with posting(guarded.url, config_file=tmp_path / "am.yml") as poster:
        assert poster.statuses()[0].up is False
        poster.update([hardware_incident(NOW)])
        until(lambda: outcomes(poster)["refused"] == 1, "it was refused")

    (record,) = [each for each in caplog.records if each.name.startswith("gpufleet")]
    assert "status 401: check basic_auth" in vars(record)["err"]
    assert "swordfish" not in str(vars(record))
    assert guarded.incidents() == []


def test_an_untrusted_certificate_gets_no_alert(guarded: AlertmanagerServer, tmp_path: Path) -> None:
    """Without the private authority nothing is sent, credentials least of all."""
    (tmp_path / "am.yml").write_text("basic_auth: {username: gpufleet, password_file: password}\n")
    with posting(guarded.url, config_file=tmp_path / "am.yml") as poster:
        poster.update([hardware_incident(NOW)])
        until(lambda: outcomes(poster)["failed"] >= 1, "it was tried")

    assert guarded.incidents() == []


@contextmanager
def bearer_gate(behind: AlertmanagerServer, token: str) -> Iterator[str]:
    """A reverse proxy before an Alertmanager that lets only a bearer token through; its URL."""

    class Gate(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = 401
            if self.headers["Authorization"] == f"Bearer {token}":
                forwarded = urllib.request.Request(behind.url + self.path.removeprefix("/am"), body)
                forwarded.add_header("Content-Type", self.headers["Content-Type"])
                with urllib.request.urlopen(forwarded, timeout=10) as response:
                    status = response.status
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep standard error clean."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gate) as gate:
        thread = threading.Thread(target=gate.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{gate.server_port}/am"
        finally:
            gate.shutdown()
            thread.join()


def test_a_bearer_token_passes_a_proxy_that_asks_for_it(alertmanager: AlertmanagerServer, tmp_path: Path) -> None:
    """Behind a path prefix; a token that is rotated is used without a restart."""
    (tmp_path / "token").write_text("old")
    (tmp_path / "am.yml").write_text("authorization: {credentials_file: token}\n")
    with bearer_gate(alertmanager, "new") as url, posting(url, config_file=tmp_path / "am.yml") as poster:
        assert poster.statuses()[0].up is False
        (tmp_path / "token").write_text("new\n")
        poster.update([hardware_incident(NOW)])
        until(lambda: alertmanager.incidents() == [NOW.id], "the alert is there")


def replica(monitoring: Monitoring, directory: Path, name: str, toy: str, alertmanager: str) -> PrometheusServer:
    """One of two Prometheus servers as people run them in pairs: they differ in a label that alerts do not keep."""
    return PrometheusServer(
        monitoring.prometheus,
        directory / name,
        [
            {
                "job_name": "gpufleet",
                "honor_labels": True,
                "static_configs": [{"targets": [toy], "labels": {"node": "x"}}],
            }
        ],
        config={
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
                "external_labels": {"cluster": "east-1", "replica": name},
            },
            "rule_files": [str(ROOT / "alerts" / "gpufleet-hardware.yaml")],
            "alerting": {
                "alert_relabel_configs": [{"action": "labeldrop", "regex": "replica"}],
                "alertmanagers": [{"static_configs": [{"targets": [alertmanager.removeprefix("http://")]}]}],
            },
        },
    )


@pytest.mark.parametrize("first", ["exporter", "rule"])
def test_two_prometheus_and_the_exporter_make_one_alert(
    first: str, monitoring: Monitoring, alertmanager: AlertmanagerServer, tmp_path: Path
) -> None:
    """The rule fires in both replicas and the exporter posts: for each incident there is one alert, whoever is first,
    and after its end there is none.
    """
    incidents = [NOW, OF_THE_NODE, HOSTILE]
    reports = sorted(each.id for each in incidents)
    metrics = served(*incidents, replace(NOW, id="00000000000000ff", isolate=False))
    with ExitStack() as running:
        toy = running.enter_context(ScriptedServer(answer(200, metrics, Content_Type="text/plain; version=0.0.4")))
        poster = running.enter_context(posting(alertmanager.url))
        alerts = [hardware_incident(each, [CLUSTER]) for each in incidents]
        if first == "exporter":
            poster.update(alerts)
            until(lambda: alertmanager.incidents() == reports, "the exporter's alerts are there")
        pair = [
            running.enter_context(replica(monitoring, tmp_path, name, f"127.0.0.1:{toy.port}", alertmanager.url))
            for name in ("a", "b")
        ]
        if first == "rule":
            until(lambda: alertmanager.incidents() == reports, "the rule's alerts are there")
            poster.update(alerts)
        firing = 'count(ALERTS{alertname="GpuHardwareIncident", alertstate="firing"})'
        until(lambda: [each.value(firing) for each in pair] == [len(incidents)] * 2, "the rule fires in both")
        until(lambda: alertmanager.received() >= 3 * len(incidents), "all three have sent theirs")

        found = alertmanager.alerts()
        assert sorted(each["labels"]["incident"] for each in found) == reports
        for alert in alerts:
            (same,) = [each for each in found if each["labels"] == dict(alert.labels)]
            assert same["annotations"] == dict(alert.annotations)

        toy.reply = answer(200, served(), Content_Type="text/plain; version=0.0.4")
        poster.update([])
        until(lambda: [each.value("count(ALERTS)") for each in pair] == [None] * 2, "the rule is over in both")
        until(lambda: alertmanager.incidents() == [], "no alert is left")
