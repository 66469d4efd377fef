"""TLS settings to an SSLContext, and the check of a client's names. Reads the certificate files; imports ssl."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from typing import TYPE_CHECKING, cast

from gpufleet.small_file import read_small_file
from gpufleet.web.tls_settings import ClientAuth, Pem, TlsSettings
from gpufleet.web.webconfig import WebConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# 64 certificates of the largest usual kind; a CA bundle of all public roots has 220 KiB.
_MOST_BYTES = 1 << 20


class _EncryptedKeyError(Exception):
    """Raised when OpenSSL asks for the key's password."""


def build_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a server's context.

    Raises:
        WebConfigError: a file is missing, unreadable or not what its key says; the message names key, file and remedy.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.maximum_version = _VERSIONS[settings.max_version]
    # A TLS 1.2 client could else make us compute handshakes for ever on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if settings.prefer_server_cipher_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if settings.cipher_suites:
        context.set_ciphers(":".join(settings.cipher_suites))
    if settings.curve is not None:
        context.set_ecdh_curve(settings.curve)
    context.set_alpn_protocols(["http/1.1"])
    load_pair(context, settings.cert, settings.private_key)
    if settings.client_ca is not None and settings.client_auth.verifies:
        _load_client_ca(context, settings.client_ca)
        context.verify_mode = (
            ssl.CERT_REQUIRED if settings.client_auth is ClientAuth.REQUIRE_AND_VERIFY else ssl.CERT_OPTIONAL
        )
    return context


def refused_client(sock: ssl.SSLSocket, allowed_sans: tuple[str, ...]) -> str | None:
    """Return why the client of a connection is refused by its certificate's names, or None.

    As in exporter-toolkit one exact match among DNS names, IP and e-mail addresses and URIs suffices.
    """
    if not allowed_sans:
        return None
    wanted = {_comparable("IP Address", name) for name in allowed_sans} | set(allowed_sans)
    # Pairs of kind and text; typeshed has one loose type for all of a certificate's fields.
    pairs = cast("tuple[tuple[str, str], ...]", (sock.getpeercert() or {}).get("subjectAltName", ()))
    if any(_comparable(kind, name) in wanted for kind, name in pairs):
        return None
    return f"no name of the client certificate is in client_allowed_sans; it has {[name for _, name in pairs]}"


def _comparable(kind: str, name: str) -> str:
    """Return an IP address in one spelling (OpenSSL writes IPv6 in full, in capitals); other names as they are."""
    if kind == "IP Address":
        for family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError, ValueError):
                return socket.inet_ntop(family, socket.inet_pton(family, name.strip()))
    return name


def load_pair(context: ssl.SSLContext, cert: Pem, private_key: Pem) -> None:
    """Give the context, a server's or a client's, the certificate that it shows.

    Raises:
        WebConfigError: as build_context.
    """
    cert_data, key_data = read_pem(cert), read_pem(private_key)
    # load_cert_chain does not say which of the two it cannot read; a context of no other use does.
    load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, cert_data)
    if b"PRIVATE KEY-----" not in key_data:
        raise WebConfigError(f"{_where(private_key)}: holds no private key; it must be in PEM form")

    def password() -> str:
        # Without this OpenSSL asks on the terminal, and a service waits for ever.
        raise _EncryptedKeyError

    try:
        # What was read is what is loaded: between two reads of a path the files may have been exchanged.
        with _as_file(cert_data) as cert_path, _as_file(key_data) as key_path:
            context.load_cert_chain(cert_path, key_path, password)
    except _EncryptedKeyError as error:
        raise WebConfigError(
            f"{_where(private_key)}: the key is encrypted; write it without a password: `openssl pkey -in OLD -out NEW`"
        ) from error
    except ssl.SSLError as error:
        if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            raise WebConfigError(
                f"{_where(private_key)}: does not belong to the certificate of {_where(cert)}; give the two that were "
                "issued together"
            ) from error
        # The names of the reasons differ between OpenSSL's versions: a cut key, a key too short, a digest too weak.
        reason = str(error.reason or "it is no key").replace("_", " ").lower()
        raise WebConfigError(f"{_where(private_key)}: OpenSSL refuses it with {_where(cert)}: {reason}") from error


def _load_client_ca(context: ssl.SSLContext, client_ca: Pem) -> None:
    # Go trusts what the file holds, an intermediate CA or the client's own certificate included; OpenSSL wants a root
    # unless it is told.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    load_certificates(context, client_ca, read_pem(client_ca))


def load_certificates(context: ssl.SSLContext, pem: Pem, data: bytes) -> None:
    """Let the context trust the certificates in data, which was read from pem.

    Raises:
        WebConfigError: as build_context.
    """
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise WebConfigError(f"{_where(pem)}: holds no certificate; one begins with -----BEGIN CERTIFICATE-----")
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise WebConfigError(f"{_where(pem)}: holds a certificate that cannot be read; it may have been cut") from error


def read_pem(pem: Pem) -> bytes:
    """Return the PEM data, not yet looked at.

    Raises:
        WebConfigError: the file is missing, unreadable or too long.
    """
    if pem.path is None:
        return (pem.text or "").encode()
    try:
        data = read_small_file(pem.path, _MOST_BYTES)
    except OSError as error:
        raise WebConfigError(f"{_where(pem)}: cannot be read: {error.strerror}; check path and owner") from error
    if len(data) > _MOST_BYTES:
        raise WebConfigError(f"{_where(pem)}: is longer than {_MOST_BYTES} bytes")
    return data


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Lend data a path that is in memory only: Python's ssl reads certificates and keys from paths."""
    descriptor = os.memfd_create("pem")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _where(pem: Pem) -> str:
    return f"{pem.key} ({pem.path})" if pem.path is not None else pem.key
