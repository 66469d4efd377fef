"""The policy's file: what is accepted, what is refused and how that is said, and what it means in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.commands import quarantine_check
from gpufleet.quarantine.matchers import parse_matcher
from gpufleet.quarantine.policy import Budget, Mode, Platform, Policy
from gpufleet.quarantine.policy_file import PolicyError, parse_policy, read_policy
from gpufleet.quarantine.policy_text import explain

WHOLE = b"""\
mode: act
platform: slurm
node_faults: ["sxid_*"]
alerts:
  matchers: ['alertname="GpuHardwareIncident"', 'class=~"hardware|unknown"']
  cluster_label: cluster
  cluster: prod
  node_label: node
  short_names: true
  stale_after: 2h
nodes:
  pool_label: example.com/pool
  gpu_label: example.com/gpu
  opt_out_label: example.com/leave
  taint: example.com/broken
budget: {share: 5%, most: 2, most_share: 0.01, out_share: 15%, new: 1, window: 20m}
breaker: {same_fault_nodes: 4, pool_share: 30%, window: 15m}
owners: {most_nodes: 0, window: 12h}
retries: {move: false, strip_finalizer: no, refund: false, most_per_incident: 1, most_per_job: 2, peer_seconds: 30s}
ledger: {namespace: gpus, name: ledger, file: /srv/ledger.json}
"""


def test_every_key_is_read() -> None:
    """And nothing keeps its default by mistake."""
    policy = parse_policy(WHOLE, "p.yaml")

    assert (policy.mode, policy.platform, policy.node_faults) == (Mode.ACT, Platform.SLURM, ("sxid_*",))
    assert [str(matcher) for matcher in policy.alerts.matchers] == [
        'alertname="GpuHardwareIncident"',
        'class=~"hardware|unknown"',
    ]
    assert (policy.alerts.cluster, policy.alerts.short_names, policy.alerts.stale_after) == ("prod", True, 7200)
    assert policy.nodes.taint == "example.com/broken"
    assert policy.budget == Budget(0.05, 2, 0.01, 0.15, 1, 1200)
    assert (policy.breaker.same_fault_nodes, policy.breaker.pool_share, policy.breaker.window) == (4, 0.3, 900)
    assert (policy.owners.most_nodes, policy.owners.window) == (0, 43_200)
    assert not (policy.retries.move)
    assert not (policy.retries.strip_finalizer)
    assert not (policy.retries.refund)
    assert (policy.retries.most_per_incident, policy.retries.most_per_job, policy.retries.peer_seconds) == (1, 2, 30)
    assert (policy.ledger.namespace, policy.ledger.name, policy.ledger.file) == ("gpus", "ledger", "/srv/ledger.json")


def test_an_empty_file_is_the_default_a_dry_run() -> None:
    """Nothing acts that nobody asked to."""
    assert parse_policy(b"", "p.yaml") == Policy()
    assert Policy().mode is Mode.DRY_RUN


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mode: on", r"p.yaml:1: mode: 'on' must be dry-run or act"),
        ("budget:\n  shares: 1%", r"p.yaml:2: budget.shares: is no key of this file; budget has most"),
        ("bugdet: {share: 1%}", r"p.yaml:1: bugdet: is no key of this file"),
        ("budget: {share: 12}", r"budget.share: '12' must be a share"),
        ("budget: {share: nan%}", r"budget.share: 'nan%' must be a share"),
        ("budget: {most: 0}", r"budget.most: 0 must be 1 or more"),
        ("budget: {window: 10}", r"budget.window: '10' must be a duration such as 10m"),
        ("breaker: {same_fault_nodes: 1}", r"breaker.same_fault_nodes: 1 must be 2 or more"),
        ("alerts: {matchers: []}", r"alerts.matchers: must have a matcher"),
        ("alerts: {matchers: [GpuHardwareIncident]}", r"is no matcher; write one like"),
        ("alerts: {matchers: ['a=~\"(\"']}", r"is no regular expression"),
        ("nodes: {taint: 'a b'}", r"nodes.taint: 'a b' is no name"),
        ("ledger: {file: ledger.json}", r"ledger.file: 'ledger.json' must be an absolute path"),
        ("budget: 3", r"budget: must be a mapping"),
        ("budget: {share: {of: 3}}", r"budget.share: must be a plain value"),
        ("mode: act\nmode: act", r"p.yaml:2"),
        ("- act", r"p.yaml"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_remedy(text: str, says: str) -> None:
    """Unknown keys are refused: a budget that is misspelt would be none."""
    with pytest.raises(PolicyError, match=says):
        parse_policy(text.encode(), "p.yaml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, a directory, or too large to be one."""
    (tmp_path / "large").write_bytes(b"#" * 70_000)
    for file in (tmp_path / "none.yaml", tmp_path, tmp_path / "large"):
        with pytest.raises(PolicyError, match=str(file)):
            read_policy(file)


@pytest.mark.parametrize(
    ("text", "labels", "holds"),
    [
        ('a="x"', {"a": "x"}, True),
        ("a=x", {"a": "x"}, True),
        ('a!="x"', {}, True),
        ('a=""', {}, True),
        ('a=~"x|y"', {"a": "xy"}, False),
        ('a=~"x.*"', {"a": "xy"}, True),
        ('a!~"x.*"', {"a": "xy"}, False),
        (r'a="\"\\"', {"a": '"\\'}, True),
    ],
)
def test_matchers_are_alertmanager_s(text: str, labels: dict[str, str], holds: bool) -> None:
    """Anchored, and a label that is not there is an empty one."""
    assert parse_matcher(text).matches(labels) is holds


def test_a_policy_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it comes to on pools of some sizes; no line is wider than a terminal's 120 columns."""
    (tmp_path / "policy.yaml").write_bytes(WHOLE)

    assert quarantine_check.main([str(tmp_path / "policy.yaml")]) == 0
    told = capsys.readouterr().out
    assert "mode act: nodes of slurm are taken out." in told
    assert "one fault is on 4 nodes" in told
    assert "Runs: nothing is moved." in told
    assert max(map(len, (told + explain(Policy())).splitlines())) <= 120
    (tmp_path / "policy.yaml").write_text("mode: on")
    assert quarantine_check.main([str(tmp_path / "policy.yaml")]) == 2
    assert "must be dry-run or act" in capsys.readouterr().err
