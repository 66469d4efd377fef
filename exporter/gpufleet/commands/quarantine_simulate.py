"""``gpufleet quarantine simulate``: what a policy would have done with the incidents of a payload or of a Prometheus.

Exit status: 0 told, 1 there was no incident, 2 flags, policy, payload or Prometheus are refused.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.commands.report import prometheus_url
from gpufleet.durations import parse_duration
from gpufleet.quarantine.alerts import PayloadError, Unusable, incident_of, parse_delivery
from gpufleet.quarantine.policy import Policy
from gpufleet.quarantine.policy_file import PolicyError, read_policy
from gpufleet.quarantine.receiver import BODY_LIMIT
from gpufleet.quarantine.replay import Past, replay
from gpufleet.quarantine.told import replayed
from gpufleet.quarantine.view import Node

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

_NOTHING = 1
_STEP = "1m"
_ISOLATING = 'gpu_fault_active{isolate="true"}'

_SUMMARY = """\
Say what a policy would have done: with the incidents that a Prometheus remembers (gpu_fault_active), or with payloads
of Alertmanager that were saved. Nothing is sent to anybody. A node is taken to be returned when its incident is over;
what is in the ledger now does not count.

Exit status: 0 told; 1 there was no incident; 2 flags, policy, payload or Prometheus are refused."""
_EXAMPLES = """\
  gpufleet quarantine simulate --prometheus.url=http://prometheus:9090 --last=30d
  gpufleet quarantine simulate --policy.file=policy.yaml --nodes=128 payload.json"""


def main(argv: Sequence[str]) -> int:
    """Run it."""
    parser = FlagParser("quarantine simulate", _SUMMARY, (), examples=_EXAMPLES)
    parser.add_argument("--policy.file", dest="policy", metavar="FILE", type=Path, help="default: the built-in policy")
    parser.add_argument("--prometheus.url", dest="url", metavar="URL", help="what comes before /api/v1")
    parser.add_argument(
        "--prometheus.config.file",
        dest="config",
        metavar="FILE",
        help="tls_config, basic_auth or authorization, with the keys of Prometheus's http_config",
    )
    parser.add_argument("--last", metavar="DURATION", default="30d", help="time to look back over (default 30d)")
    parser.add_argument(
        "--nodes",
        metavar="NUMBER",
        type=int,
        help="nodes with GPUs, all one pool; default: those that Prometheus knows; a payload alone does not say",
    )
    parser.add_argument(
        "payloads", metavar="PAYLOAD", nargs="*", type=Path, help="a saved payload; - is standard input"
    )
    arguments = parser.parse_args(argv)
    if (arguments.url is None) == (not arguments.payloads):
        parser.error("name payloads, or a Prometheus with --prometheus.url")
    if arguments.nodes is not None and arguments.nodes < 1:
        parser.error(f"argument --nodes: {arguments.nodes} must be 1 or more")
    try:
        policy = Policy() if arguments.policy is None else read_policy(arguments.policy)
        past, names = _asked(arguments, policy) if arguments.url else _saved(arguments.payloads, policy)
    except (PolicyError, _RefusedError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE
    if not past:
        print(
            f"{parser.prog}: there was no incident that isolates and that the policy's matchers take", file=sys.stderr
        )
        return _NOTHING
    nodes = _inventory(names | {policy.alerts.node_name(each.incident.key.node) for each in past}, arguments.nodes)
    print(replayed(replay(past, nodes, policy)), end="")
    return 0


class _RefusedError(Exception):
    """What was asked for cannot be had; says why."""


def _saved(files: Iterable[Path], policy: Policy) -> tuple[list[Past], set[str]]:
    """Incidents of saved payloads, each told again as one that is firing until it is told as resolved."""
    from gpufleet.small_file import read_small_file

    now = time.time()
    found: dict[object, Past] = {}
    for file in files:
        try:
            body = sys.stdin.buffer.read(BODY_LIMIT) if str(file) == "-" else read_small_file(file, BODY_LIMIT)
        except OSError as error:
            raise _RefusedError(f"{file}: can't be read: {error.strerror}") from error
        try:
            delivery = parse_delivery(body, policy.alerts, now)
        except PayloadError as error:
            raise _RefusedError(f"{file}: {error}") from error
        for unusable in delivery.unusable:
            print(f"gpufleet quarantine simulate: {file}: left out: {unusable.detail}", file=sys.stderr)
        for incident in delivery.firing:
            known = found.get(incident.key)
            found[incident.key] = Past(incident if known is None else known.incident.joined(incident), None)
        for resolved in delivery.resolved:
            known = found.get(resolved.key)
            if known is not None:
                found[resolved.key] = Past(known.incident, resolved.at)
    return list(found.values()), set()


def _asked(arguments: argparse.Namespace, policy: Policy) -> tuple[list[Past], set[str]]:
    """Incidents and nodes as a Prometheus has them."""
    # requests and the parser of its configuration are not needed for --help.
    from gpufleet.commands.report_prometheus import Prometheus, PrometheusError
    from gpufleet.notify.client_config import ClientConfigError
    from gpufleet.notify.credentials import read_client_config

    url = prometheus_url(arguments.url)
    try:
        seconds = parse_duration(arguments.last)
    except ValueError:
        raise _RefusedError(f"argument --last: {arguments.last!r} is no duration such as 30d") from None
    window = f"[{max(1, round(seconds / 60))}m:{_STEP}]"
    now = time.time()
    try:
        config = read_client_config(
            None if arguments.config is None else Path(arguments.config), "--prometheus.config.file"
        )
        prometheus = Prometheus(
            url,
            config,
            timeout=120.0,
            warn=lambda said: print(f"gpufleet quarantine simulate: warning: {said}", file=sys.stderr),
        )
        first = prometheus.instant(f"min_over_time(timestamp({_ISOLATING}){window})", now)
        last = {
            tuple(sorted(sample.labels.items())): sample.value
            for sample in prometheus.instant(f"max_over_time(timestamp({_ISOLATING}){window})", now)
        }
        known = prometheus.instant(f"count by (node) (last_over_time(gpufleet_node_info[{arguments.last}]))", now)
    except (ClientConfigError, PrometheusError) as error:
        raise _RefusedError(str(error)) from error
    found: dict[object, Past] = {}
    for sample in first:
        labels = {**dict(sample.labels), "alertname": "GpuHardwareIncident", "quarantine": "node"}
        labels.pop("__name__", None)
        if not policy.alerts.takes(labels):
            continue
        incident = incident_of(labels, sample.value, policy.alerts)
        if isinstance(incident, Unusable):
            print(f"gpufleet quarantine simulate: left out: {incident.detail}", file=sys.stderr)
            continue
        ended = last.get(tuple(sorted(sample.labels.items())), now)
        end = ended if ended < now - 300 else None
        before = found.get(incident.key)
        if before is not None:
            incident = before.incident.joined(incident)
            end = None if end is None or before.end is None else max(end, before.end)
        found[incident.key] = Past(incident, end)
    return list(found.values()), {sample.labels.get("node", "") for sample in known} - {""}


def _inventory(names: set[str], number: int | None) -> list[Node]:
    """Nodes by name, and nameless ones up to the number; all are one pool and take work."""
    more = range(max(0, (number or 0) - len(names)))
    return [Node(name, "") for name in (*sorted(names), *(f"(another node {count + 1})" for count in more))]
