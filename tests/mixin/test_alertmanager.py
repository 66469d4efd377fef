"""The example for Alertmanager: each alert goes to its team, one cause is one page, and the quarantine misses none."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import BUILDS, ROOT, built
from tests.integration.alertmanager_server import AlertmanagerServer
from tests.mixin.rendering import rendered
from tests.waiting import until

EXAMPLE = ROOT / "alerts" / "alertmanager.example.yml"
CONFIG: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
EVERY: dict[str, object] = {
    "monthlyBudget": 1.0,
    "optionalAlerts": {"lossDivergence": True, "efficiencyDrop": True, "unusedSpend": True},
}
RULES = [
    rule
    for config in (EVERY, {**EVERY, "sources": ["dcgm49"]})
    for group in rendered(config)["alerts"]
    for rule in group["rules"]
]
ALERTS = {(rule["alert"], rule["labels"]["severity"]): rule["labels"] for rule in RULES}
NAMES = {name for name, _ in ALERTS}
_MATCHER = re.compile(r'^(\w+)(=~|!~|!=|=)"(.*)"$')


@pytest.fixture(params=BUILDS)
def amtool(request: pytest.FixtureRequest) -> Path:
    """Debian's, and the newest."""
    return built("amtool", request.param)


def asked(amtool: Path, *arguments: str) -> str:
    """What amtool says."""
    return subprocess.run([amtool, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


def test_amtool_accepts_it(amtool: Path) -> None:
    """Without a complaint."""
    assert "SUCCESS" in asked(amtool, "check-config", str(EXAMPLE))


def wanted(name: str, labels: Mapping[str, str]) -> str:
    """The receivers of an alert."""
    severity, team = labels["severity"], labels["team"]
    if name == "GpuHardwareIncident":
        return "quarantine,infra-page"
    if severity == "info":
        return "nobody"
    if team == "finops":
        return "finops"
    return f"{team}-{'page' if severity == 'critical' else 'ticket'}"


@pytest.mark.parametrize(("name", "severity"), sorted(ALERTS))
def test_each_alert_goes_to_its_team(name: str, severity: str, amtool: Path) -> None:
    """Pages for what is critical, tickets for warnings, nothing for context."""
    labels = ALERTS[name, severity]
    given = [f"{label}={value}" for label, value in {"alertname": name, "cluster": "c", **labels}.items()]

    said = asked(amtool, "config", "routes", "test", f"--config.file={EXAMPLE}", *given)

    assert said.strip() == wanted(name, labels)


def test_the_quarantine_hears_at_once_of_each_incident_alone() -> None:
    """Its route is the first, and the others go on to see what it saw."""
    first, *_ = CONFIG["route"]["routes"]
    assert (first["receiver"], first["continue"]) == ("quarantine", True)
    assert (first["group_by"], first["group_wait"], first["repeat_interval"]) == (["..."], "0s", "30m")
    (receiver,) = [each for each in CONFIG["receivers"] if each["name"] == "quarantine"]
    (hook,) = receiver["webhook_configs"]
    assert (hook["send_resolved"], hook["max_alerts"]) == (True, 0)
    assert "quarantine" not in str(CONFIG["inhibit_rules"])


def test_each_receiver_says_whom_it_tells_and_that_it_is_to_be_replaced() -> None:
    """Whoever copies the example sees each place that is theirs to fill in."""
    text = EXAMPLE.read_text()
    for receiver in CONFIG["receivers"]:
        name = receiver["name"]
        assert re.search(rf"^  # .+\.\n  - name: {name}$", text, re.MULTILINE), name
        if name not in {"nobody", "quarantine"}:
            assert re.search(rf"url: http://localhost:9/{name} # yours$", text, re.MULTILINE)


def test_each_inhibition_is_between_alerts_that_there_are_on_labels_that_both_must_have() -> None:
    """A name that is gone mutes nothing, and two alerts that both lack a label are equal in it."""
    for rule in CONFIG["inhibit_rules"]:
        present = []
        for side in ("source_matchers", "target_matchers"):
            matchers = [_MATCHER.fullmatch(each) for each in rule[side]]
            patterns = [(each[2], each[3]) for each in matchers if each and each[1] == "alertname"]
            named = [
                name
                for name in NAMES
                if all(
                    (re.fullmatch(pattern, name) is not None) == (operator[0] == "=") for operator, pattern in patterns
                )
            ]
            assert named, rule
            for operator, pattern in patterns:
                for alternative in re.split(r"\|(?![^(]*\))", pattern) if operator == "=~" else [pattern]:
                    assert any(re.fullmatch(alternative, name) for name in NAMES), alternative
            present.append({each[1] for each in matchers if each and (each[2], each[3]) == ("!=", "")})
        if rule["equal"] == ["cluster"] or "alertname" in rule["equal"]:
            continue
        assert present[0] == present[1]
        assert present[0] & set(rule["equal"]) == present[0]
        assert present[0]


@pytest.fixture(params=BUILDS)
def alertmanager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AlertmanagerServer]:
    """A real one with the example, whose receivers tell nobody."""
    quiet = {**CONFIG, "receivers": [{"name": each["name"]} for each in CONFIG["receivers"]]}
    with AlertmanagerServer(built("alertmanager", request.param), tmp_path, config=quiet) as server:
        yield server


Alert = dict[str, dict[str, str]]


def fired(name: str, severity: str, **labels: str) -> Alert:
    """An alert of the mixin."""
    return {"labels": {"alertname": name, "cluster": "c", **ALERTS[name, severity], **labels}}


def muted(server: AlertmanagerServer, alerts: Sequence[Alert]) -> list[bool | None]:
    """Whether each of them is muted by another; None while it is not there."""
    found = {tuple(sorted(each["labels"].items())): bool(each["status"]["inhibitedBy"]) for each in server.alerts()}
    return [found.get(tuple(sorted(alert["labels"].items()))) for alert in alerts]


GPU = {"node": "n1", "gpu": "3", "uuid": "GPU-3"}
OTHER = {"node": "n1", "gpu": "4", "uuid": "GPU-4"}
RUN = {"project": "p", "run": "r", "task": "t"}
CASES: dict[str, list[tuple[Alert, bool]]] = {
    "an incident speaks for its GPU and no other": [
        (fired("GpuHardwareIncident", "critical", incident="1", fault="79", **GPU, **RUN), False),
        (fired("GpuLost", "critical", driver_version="580", **GPU), True),
        (fired("GpuAtRisk", "warning", driver_version="580", **GPU), True),
        (fired("GpuRowRemapPending", "warning", driver_version="580", **OTHER), False),
        (fired("GpuRunStragglerNode", "warning", node="n1", **RUN), True),
        (fired("GpuRunStragglerNode", "warning", node="n2", **RUN), False),
        (fired("GpuRunStalled", "critical", **RUN), True),
        (fired("GpuRunStalled", "critical", **{**RUN, "run": "other"}), False),
        (fired("GpuExporterSourceDown", "warning", instance="n1:9837", source="pods"), False),
    ],
    "the GPU's own label decides, not what both lack": [
        (fired("GpuHardwareIncident", "critical", incident="3", fault="79", node="n1"), False),
        (fired("GpuLost", "critical", driver_version="580", **GPU), False),
    ],
    "an incident without a GPU or a run mutes nothing that has none": [
        (fired("GpuHardwareIncident", "critical", incident="2", fault="sxid_20034", node="n1"), False),
        (fired("GpuExporterDown", "warning", job="gpufleet", node="n1"), False),
        (fired("GpuSimulatedData", "warning", node="n9"), False),
        (fired("GpuAttributionMissing", "warning"), False),
    ],
    "a bad roll-out is one cause, and the quarantine hears of each incident": [
        (fired("GpuFleetWideFault", "critical", driver_version="595"), False),
        (fired("GpuLost", "critical", driver_version="595", **GPU), True),
        (fired("GpuLost", "critical", driver_version="580", **OTHER), False),
        (fired("GpuHardwareIncident", "critical", incident="1", fault="119", **GPU), False),
    ],
    "runs": [
        (fired("GpuRunNodeMissing", "critical", **RUN), False),
        (fired("GpuRunStalled", "critical", **RUN), True),
        (fired("GpuRunCheckpointOverdue", "warning", **RUN), True),
        (fired("GpuAllocatedIdle", "warning", **{**RUN, "run": "other"}), False),
        (fired("GpuAllocatedIdle", "info", **{**RUN, "run": "other"}), True),
    ],
    "models and exporters": [
        (fired("InferenceNoProgress", "critical", model="m", system="vllm"), False),
        (fired("InferenceLatencyBurn", "critical", model="m", system="vllm"), True),
        (fired("InferenceQueueGrowing", "warning", model="other", system="vllm"), False),
        (fired("GpuExportersDown", "critical"), False),
        (fired("GpuExporterDown", "warning", job="gpufleet", node="n1"), True),
        (fired("GpuRunNodeMissing", "critical", **RUN), True),
        (fired("RdmaPortDown", "critical", node="n2", nic="mlx5_0", port="1"), False),
        (fired("RdmaRetransmitsHigh", "warning", node="n2"), True),
        (fired("RdmaRetransmitsHigh", "warning", node="n3"), False),
    ],
    "one exporter, and the power of a room": [
        (fired("GpuExporterDown", "warning", job="gpufleet", node="n1"), False),
        (fired("GpuExporterQuiesced", "warning", node="n1"), True),
        (fired("GpuExporterPollStalled", "warning", node="n1"), True),
        (fired("GpuExporterPollStalled", "warning", node="n2"), False),
        (fired("GpuNotAnswering", "critical", driver_version="580", **{**GPU, "node": "n3"}), False),
        (fired("GpuExporterPollStalled", "warning", node="n3"), True),
        (fired("GpuPowerBrake", "critical"), False),
        (fired("GpuPowerBrake", "warning", driver_version="580", **OTHER), True),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_a_real_alertmanager_mutes_what_has_another_cause(case: str, alertmanager: AlertmanagerServer) -> None:
    """And nothing else."""
    alerts = [alert for alert, _ in CASES[case]]
    expected = [mute for _, mute in CASES[case]]
    alertmanager.post(alerts)

    until(lambda: muted(alertmanager, alerts) == expected, f"those are muted: {expected}", seconds=20, every=0.2)
