"""The web configuration in force: loaded at start, loaded again when one of its files changes."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.logs import OnChange
from gpufleet.small_file import read_small_file
from gpufleet.web.auth import BasicAuth
from gpufleet.web.rate_limit import TokenBucket
from gpufleet.web.tls_settings import ClientAuth
from gpufleet.web.webconfig import WebConfig, WebConfigError, parse_web_config

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

_log = logging.getLogger(__name__)

# 500 users have 50 KiB; PyYAML reads 1 MiB in seconds, and a request waits for it.
_MOST_BYTES = 131_072
_FAILED_RETRY_SECONDS = 10.0
_KEY = "web configuration"

# What stat(2) says of a file, None where it is missing. The inode tells a renamed-over file from its predecessor of the
# same size and second; Kubernetes exchanges a directory link, which stat follows.
_Fingerprint = tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class Protection:
    """One version of the configuration, made ready: what each connection and request is held against."""

    config: WebConfig
    context: ssl.SSLContext | None
    auth: BasicAuth | None
    bucket: TokenBucket | None

    def guards(self) -> frozenset[str]:
        """Return what stands between a stranger and the server, by key."""
        tls = self.config.tls
        present = {
            "tls_server_config": tls is not None,
            "tls_server_config.client_auth_type": tls is not None and tls.client_auth.verifies,
            "tls_server_config.client_allowed_sans": tls is not None and bool(tls.client_allowed_sans),
            "basic_auth_users": self.auth is not None,
        }
        return frozenset(key for key, there in present.items() if there)

    def tells_clients_apart(self) -> bool:
        """Whether nobody gets an answer who has not proved who they are."""
        tls = self.config.tls
        return self.auth is not None or (tls is not None and tls.client_auth is ClientAuth.REQUIRE_AND_VERIFY)


class LiveWebConfig:
    """A web configuration file that is looked at again for each connection and request, by a few stat calls.

    A new version that is broken leaves the old one in force, is logged once and shows as reload_error. So does one that
    takes a whole guard away (TLS, client certificates, basic auth): a file that is being written is first empty, and an
    empty file is a valid one that protects nothing. That takes a restart.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Load path.

        Raises:
            WebConfigError: it cannot be used; the message names the file, the key and the remedy.
        """
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._changes = OnChange(_log)
        self._reload_error: str | None = None
        self._reload_failures = 0
        self._reloads = 0
        self._retry_at = 0.0
        self._seen: dict[Path, _Fingerprint] = {}
        self._current = self._load(None)

    @property
    def reload_error(self) -> str | None:
        """Why the version on disk is not in force; None when it is."""
        return self._reload_error

    @property
    def reload_failures(self) -> int:
        """How often a new version was not taken."""
        return self._reload_failures

    @property
    def reloads(self) -> int:
        """How often a new version was taken."""
        return self._reloads

    def current(self) -> Protection:
        """Return the version in force, after a look at the files. Does not raise."""
        if self._is_unchanged() or not self._lock.acquire(blocking=False):
            return self._current  # another thread is loading: its peers go on with what there is
        try:
            if not self._is_unchanged():
                self._reload()
            return self._current
        finally:
            self._lock.release()

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for connections of this moment, None for plain HTTP."""
        return self.current().context

    def refused_client(self, sock: ssl.SSLSocket) -> str | None:
        """Return why a client is refused by the names in its certificate, or None."""
        tls = self._current.config.tls
        if tls is None or not tls.client_allowed_sans:
            return None
        from gpufleet.web.tls_context import refused_client

        return refused_client(sock, tls.client_allowed_sans)

    def _is_unchanged(self) -> bool:
        if self._reload_error is not None and self._clock() >= self._retry_at:
            return False  # it may have failed for a reason that no file shows, such as a lack of descriptors
        return all(_fingerprint(path) == seen for path, seen in self._seen.items())

    def _reload(self) -> None:
        self._retry_at = self._clock() + _FAILED_RETRY_SECONDS
        try:
            new = self._load(self._current)
        except WebConfigError as error:
            self._keep(str(error))
            return
        lost = self._current.guards() - new.guards()
        if lost:
            what = ", ".join(sorted(lost))
            self._keep(f"{self._path}: {what} would be gone; restart to serve with less protection")
            return
        self._current = new
        self._reload_error = None
        self._reloads += 1
        self._changes.forget(_KEY)
        _log.info("web configuration reloaded", extra={"file": str(self._path)})

    def _keep(self, error: str) -> None:
        self._reload_failures += 1
        self._reload_error = error
        self._changes.failed(
            _KEY, "the new web configuration is not used, the old one stays", error, level=logging.ERROR
        )

    def _load(self, previous: Protection | None) -> Protection:
        # Fingerprints first: what changes while it is read is then seen as a change at the next look.
        self._seen = {self._path: _fingerprint(self._path)}
        try:
            content = read_small_file(self._path, _MOST_BYTES)
        except OSError as error:
            raise WebConfigError(f"{self._path}: cannot be read: {error.strerror}; check --web.config.file") from error
        if len(content) > _MOST_BYTES:
            raise WebConfigError(f"{self._path}: is larger than {_MOST_BYTES} bytes; this is no web configuration")
        config = parse_web_config(content, self._path)
        context = None
        if config.tls is not None:
            from gpufleet.web.tls_context import build_context

            pems = (config.tls.cert, config.tls.private_key, config.tls.client_ca)
            paths = [pem.path for pem in pems if pem is not None and pem.path is not None]
            # A new dictionary: other threads walk through the old one meanwhile.
            self._seen = {**self._seen, **{path: _fingerprint(path) for path in paths}}
            try:
                context = build_context(config.tls)
            except WebConfigError as error:
                raise WebConfigError(f"{self._path}: {error}") from error
        for note in config.notes:
            _log.warning(note, extra={"file": str(self._path)})
        return Protection(config, context, _auth(config, previous), _bucket(config, previous))


def _auth(config: WebConfig, previous: Protection | None) -> BasicAuth | None:
    if previous is not None and previous.config.users == config.users:
        return previous.auth  # with what it remembers: a new certificate makes no user wait for bcrypt again
    return BasicAuth(dict(config.users)) if config.users else None


def _bucket(config: WebConfig, previous: Protection | None) -> TokenBucket | None:
    if previous is not None and previous.config.rate_limit == config.rate_limit:
        return previous.bucket
    limit = config.rate_limit
    return TokenBucket(limit.interval_seconds, limit.burst) if limit is not None else None


def _fingerprint(path: Path) -> _Fingerprint:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
