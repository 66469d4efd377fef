"""Putting the parts together: an application, served on addresses, behind a web configuration file if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.web.server import Server, ServerLimits

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpufleet.web.live_config import LiveWebConfig
    from gpufleet.web.message import Application


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running server, and the configuration that guards it, None where it is open."""

    server: Server
    web_config: LiveWebConfig | None

    @property
    def scheme(self) -> str:
        """Return that of its URLs: a web configuration may ask for a password alone."""
        return "http" if self.web_config is None or self.web_config.tls_context() is None else "https"


def open_endpoint(
    app: Application,
    addresses: Iterable[str],
    *,
    web_config_file: Path | None = None,
    limits: ServerLimits | None = None,
) -> Endpoint:
    """Start serving app on addresses.

    Raises:
        ListenError: an address that cannot be had; the message names it.
        WebConfigError: a configuration that cannot be used; the message names file, key and remedy.
    """
    if web_config_file is None:
        server = Server(app, limits=limits)
        server.start(addresses)
        return Endpoint(server, None)
    # Imported here: an open endpoint pays for neither.
    from gpufleet.web.guard import Guard
    from gpufleet.web.live_config import LiveWebConfig

    web_config = LiveWebConfig(web_config_file)
    server = Server(
        Guard(app, web_config), limits=limits, tls=web_config.tls_context, admits_peer=web_config.refused_client
    )
    server.start(addresses)
    return Endpoint(server, web_config)
