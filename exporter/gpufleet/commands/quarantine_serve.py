"""``gpufleet quarantine serve``: the receiver and its rounds, until a signal ends them.

Exit status: 0 ended by a signal, 1 it cannot listen or reach its platform's client, 2 flags or files are refused.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet import __version__, logs
from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.commands.quarantine_flags import add_flags, audit_of, policy_of
from gpufleet.quarantine.platform import PlatformError, open_platform
from gpufleet.quarantine.receiver import ALERTS_PATH, BearerGuard, TokenError
from gpufleet.quarantine.service import Quarantine
from gpufleet.settings import selected
from gpufleet.web.addresses import ListenError, parse_listen_address
from gpufleet.web.endpoint import Endpoint, open_endpoint
from gpufleet.web.live_config import LiveWebConfig
from gpufleet.web.server import ServerLimits
from gpufleet.web.webconfig import WebConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpufleet.quarantine.audit import Audit
    from gpufleet.quarantine.policy import Policy
    from gpufleet.settings import Settings

log = logging.getLogger(__name__)

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_OPTIONS = selected("web.config.file", "log")
_DEFAULT_ADDRESS = "127.0.0.1:9838"
_FAILED = 1
_CONNECTIONS = 700
"""Alertmanager posts each incident by itself, all at once: those beyond wait in the kernel for their turn."""
_RESPONSES_SECONDS = 2.0

_SUMMARY = f"""\
Take alerts from Alertmanager (POST {ALERTS_PATH}) and take the nodes of hardware incidents out, by a policy. Without
`mode: act` in the policy everything is judged and written down, and nothing else is touched.

Listens on the loopback alone unless those who ask are told apart: by --web.bearer-token-file, or by --web.config.file
with users or client certificates."""
_EXAMPLES = """\
  gpufleet quarantine serve --policy.file=policy.yaml
      a dry run on this machine; Alertmanager's webhook_configs: [{url: http://127.0.0.1:9838/v1/alerts}]
  gpufleet quarantine serve --policy.file=policy.yaml --web.listen-address=:9838 \\
      --web.bearer-token-file=/etc/gpufleet/token --web.config.file=/etc/gpufleet/web.yml"""


def main(argv: Sequence[str]) -> int:
    """Run it."""
    parser = FlagParser("quarantine serve", _SUMMARY, _OPTIONS, examples=_EXAMPLES)
    add_flags(parser)
    parser.add_argument(
        "--web.listen-address",
        dest="listen",
        metavar="ADDRESS",
        action="append",
        help=f"may be repeated (default {_DEFAULT_ADDRESS})",
    )
    parser.add_argument(
        "--web.bearer-token-file",
        dest="token",
        metavar="FILE",
        type=Path,
        help="its content is what Alertmanager sends as authorization; read anew for each request",
    )
    parser.add_argument(
        "--verdict.listen-address",
        dest="verdict",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="where launchers (gpufleet run) may ask, without a token, whether a peer of their run was hit, such as "
        ":9840; may be repeated; default: none",
    )
    parser.add_argument(
        "--admission.listen-address",
        dest="admission",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="where the API server asks about pods that fail (deploy/kubernetes/quarantine-admission.yaml), such as "
        ":9841; may be repeated; default: none",
    )
    parser.add_argument(
        "--admission.config.file",
        dest="admission_config",
        metavar="FILE",
        type=Path,
        help="its certificate, in the format of --web.config.file; needed with --admission.listen-address",
    )
    arguments, settings = parser.read(argv)
    policy = policy_of(arguments, parser.prog)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    logs.setup(settings.log_level, settings.log_format, sys.stderr)
    with audit_of(arguments, parser.prog, default=sys.stdout) as audit:
        return _serve(arguments, settings, policy, audit)


def _serve(arguments: argparse.Namespace, settings: Settings, policy: Policy, audit: Audit) -> int:
    addresses: list[str] = arguments.listen or [_DEFAULT_ADDRESS]
    log.info(
        "gpufleet quarantine",
        extra={"version": __version__, "pid": os.getpid(), "mode": str(policy.mode), "platform": str(policy.platform)},
    )
    try:
        _refuse_strangers(addresses, arguments.token, settings.web_config_file)
        _refuse_plain_reviews(arguments)
        opened = open_platform(policy, audit, kubeconfig=arguments.kubeconfig)
        quarantine = Quarantine(opened, policy, audit)
        app = quarantine.app if arguments.token is None else BearerGuard(quarantine.app, arguments.token)
        endpoint = open_endpoint(
            app,
            addresses,
            web_config_file=settings.web_config_file,
            limits=ServerLimits(max_connections=_CONNECTIONS, newcomers_wait=True),
        )
        others = _others(quarantine, arguments)
    except (PlatformError, ListenError) as error:
        log.error("can't serve", extra={"err": str(error)})  # noqa: TRY400 - the message says it all
        return _FAILED
    except (WebConfigError, TokenError, ValueError) as error:
        log.error("a setting is refused", extra={"err": str(error)})  # noqa: TRY400 - as above
        return USAGE
    quarantine.start()
    log.info(
        "listening",
        extra={
            "addresses": ",".join(endpoint.server.addresses),
            "scheme": endpoint.scheme,
            **{name: ",".join(other.server.addresses) for name, other in others.items()},
        },
    )
    while (received := signal.sigwaitinfo(_SIGNALS)).si_signo == signal.SIGHUP:
        if endpoint.web_config is not None:
            endpoint.web_config.current()
    log.info("signal received", extra={"signal": signal.Signals(received.si_signo).name, "by_pid": received.si_pid})
    quarantine.stop()
    endpoint.server.stop(_RESPONSES_SECONDS)
    for other in others.values():
        other.server.stop(_RESPONSES_SECONDS)
    log.info("stopped")
    return 0


def _others(quarantine: Quarantine, arguments: argparse.Namespace) -> dict[str, Endpoint]:
    """The listeners of those who have no token, by what they ask for."""
    found = {}
    if arguments.verdict:
        found["verdicts"] = open_endpoint(quarantine.verdicts, arguments.verdict)
    if arguments.admission:
        found["admission"] = open_endpoint(
            quarantine.admission, arguments.admission, web_config_file=arguments.admission_config
        )
    return found


def _refuse_strangers(addresses: list[str], token: Path | None, web_config_file: Path | None) -> None:
    """Raise ValueError where strangers on the network could have nodes taken out."""
    if token is not None or all(map(_is_loopback, addresses)):
        return
    if web_config_file is not None and LiveWebConfig(web_config_file).current().tells_clients_apart():
        return
    raise ValueError(
        f"--web.listen-address: {', '.join(addresses)} is more than the loopback, and nobody who posts there is told "
        "apart: give --web.bearer-token-file, or a --web.config.file with basic_auth_users or required client "
        "certificates"
    )


def _refuse_plain_reviews(arguments: argparse.Namespace) -> None:
    """Raise ValueError where the API server could not ask."""
    file: Path | None = arguments.admission_config
    if arguments.admission and (file is None or LiveWebConfig(file).tls_context() is None):
        raise ValueError(
            "--admission.listen-address: the API server speaks TLS only: give --admission.config.file with a "
            "tls_server_config"
        )


def _is_loopback(address: str) -> bool:
    host = parse_listen_address(address).host
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
