"""Credentials as they are at the moment of a request: secrets from files, the header made of them, the TLS context.

Files are read when they are used, because that is how credentials are rotated: a token may live for minutes.
"""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING

from gpufleet.notify.client_config import ClientConfig, ClientConfigError, Secret, TlsClient, parse_client_config
from gpufleet.small_file import read_small_file
from gpufleet.web.tls_context import load_certificates, load_pair, read_pem
from gpufleet.web.tls_settings import Pem
from gpufleet.web.webconfig import WebConfigError

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 65_536
"""Of a configuration or a secret; a token with all its claims has two KiB, and servers take headers of 8 to 64."""

Fingerprint = tuple[tuple[int, int, int, int] | None, ...]


class CredentialsError(Exception):
    """Credentials that can't be had; the message names key, file and remedy, and never shows what is in them."""


def read_client_config(path: Path | None, flag: str = "--alertmanager.config.file") -> ClientConfig:
    """Read the file at ``path``, and try what it names; no path: plain requests, and the system's CAs for https.

    ``flag`` is where the path was given, for messages.

    Raises:
        ClientConfigError: it can't be read or is not acceptable, or a file that it names can't be used now.
    """
    if path is None:
        return ClientConfig()
    try:
        config = parse_client_config(_read(path, flag), path)
        authorization(config)
        if config.tls is not None:
            tls_context(config.tls)
    except CredentialsError as error:
        raise ClientConfigError(f"{path}: {error}") from error
    return config


def authorization(config: ClientConfig) -> str | None:
    """The value of the Authorization header, None for none.

    Raises:
        CredentialsError: the file of the secret can't be read, or holds what a header can't have.
    """
    if config.secret is None:
        return None
    secret = _secret(config.secret)
    if config.username is not None:
        return "Basic " + base64.b64encode(f"{config.username}:{secret}".encode()).decode()
    # A line feed would begin a header of its own.
    if not secret.isascii() or not secret.isprintable():
        raise CredentialsError(f"{_where(config.secret)}: has characters that a header can't have; write a token alone")
    return f"{config.scheme} {secret}"


def fingerprint(tls: TlsClient | None) -> Fingerprint:
    """What stat(2) says of the files of ``tls``: another value after each change of theirs."""
    paths = () if tls is None else (tls.ca_file, tls.cert_file, tls.key_file)
    return tuple([_stat(path) for path in paths if path is not None])


def tls_context(tls: TlsClient | None) -> ssl.SSLContext:
    """A client's context.

    Raises:
        CredentialsError: a file is missing, unreadable or not what its key says.
    """
    tls = tls or TlsClient()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif tls.ca_file is None:
            context.load_default_certs()
        else:
            # As Go does: what the file holds is trusted, an intermediate CA or a server's own certificate included.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            ca = Pem("tls_config.ca_file", path=tls.ca_file)
            load_certificates(context, ca, read_pem(ca))
        if tls.cert_file is not None:
            load_pair(
                context, Pem("tls_config.cert_file", path=tls.cert_file), Pem("tls_config.key_file", path=tls.key_file)
            )
    except WebConfigError as error:
        raise CredentialsError(str(error)) from error
    return context


def _secret(secret: Secret) -> str:
    if secret.path is None:
        return secret.text or ""
    try:
        text = _read(secret.path, secret.key).decode().strip()  # editors and `kubectl` end a file with a line feed
    except UnicodeDecodeError:
        # Not chained: the error quotes the bytes.
        raise CredentialsError(f"{_where(secret)}: is no UTF-8 text; write it anew") from None
    if not text:
        raise CredentialsError(f"{_where(secret)}: is empty; write the secret into it")
    return text


def _read(path: Path, key: str) -> bytes:
    try:
        data = read_small_file(path, _MOST_BYTES)
    except OSError as error:
        raise CredentialsError(f"{key} ({path}): can't be read: {error.strerror}; check path and owner") from error
    if len(data) > _MOST_BYTES:
        raise CredentialsError(f"{key} ({path}): is longer than {_MOST_BYTES} bytes")
    return data


def _where(secret: Secret) -> str:
    return f"{secret.key} ({secret.path})" if secret.path is not None else secret.key


def _stat(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
