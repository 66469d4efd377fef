"""The section ``tls_server_config`` of a web configuration file: fields to checked settings. Pure.

Keys and values are exporter-toolkit's, and with them Go's names. Where Python's ssl cannot do what Go's crypto/tls
does, the value is refused and the message says what to write.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.web.fields import FieldError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpufleet.web.fields import Field

TLS_KEYS = (
    "cert",
    "key",
    "client_ca",
    "cert_file",
    "key_file",
    "client_ca_file",
    "client_auth_type",
    "client_allowed_sans",
    "min_version",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
)
# Go's names for what crypto/tls calls secure, with OpenSSL's.
CIPHER_SUITES: Mapping[str, str] = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
# All three are always on in TLS 1.3, in Go as here; naming them in the list only says that TLS 1.2 needs others.
TLS13_CIPHER_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
CURVES: Mapping[str, str] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
_VERSIONS = ("TLS12", "TLS13")
_OLD_VERSIONS = ("TLS10", "TLS11")


class ClientAuth(enum.Enum):
    """What is asked of a client's certificate, by Go's names. RequireAnyClientCert is not served: see _client_auth."""

    NONE = "NoClientCert"
    REQUEST = "RequestClientCert"
    VERIFY_IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRE_AND_VERIFY = "RequireAndVerifyClientCert"

    @property
    def verifies(self) -> bool:
        """Whether a certificate that is given is checked against the client CA."""
        return self in {ClientAuth.VERIFY_IF_GIVEN, ClientAuth.REQUIRE_AND_VERIFY}


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM data: a file, or text from the configuration itself. key is where it was configured, for messages."""

    key: str
    path: Path | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What the section says. cipher_suites and curve are OpenSSL's names; empty and None leave them to OpenSSL."""

    cert: Pem
    private_key: Pem
    client_ca: Pem | None
    client_auth: ClientAuth
    client_allowed_sans: tuple[str, ...]
    min_version: str
    max_version: str
    cipher_suites: tuple[str, ...]
    prefer_server_cipher_suites: bool
    curve: str | None


def tls_settings(fields: Mapping[str, Field], directory: Path) -> tuple[TlsSettings | None, tuple[str, ...]]:
    """Return the settings, None for a section without keys, and notes for the log about what means less than it says.

    Relative paths are relative to directory. No file is read.

    Raises:
        FieldError: a value that is wrong, missing, contradictory or not possible here.
    """
    if not fields:
        return None, ()
    line = next(iter(fields.values())).line
    client_ca = _pem(fields, "client_ca", directory)
    client_auth, notes = _client_auth(fields, has_ca=client_ca is not None)
    min_version, max_version, suites = _versions_and_suites(fields)
    return TlsSettings(
        cert=_needed(_pem(fields, "cert", directory), "cert_file", line),
        private_key=_needed(_pem(fields, "key", directory), "key_file", line),
        client_ca=client_ca,
        client_auth=client_auth,
        client_allowed_sans=_allowed_sans(fields, client_auth),
        min_version=min_version,
        max_version=max_version,
        cipher_suites=suites,
        prefer_server_cipher_suites=fields["prefer_server_cipher_suites"].flag()
        if "prefer_server_cipher_suites" in fields
        else True,
        curve=_curve(fields),
    ), notes


def _pem(fields: Mapping[str, Field], name: str, directory: Path) -> Pem | None:
    inline, file = fields.get(name), fields.get(f"{name}_file")
    if file is not None:
        if inline is not None:
            raise file.error(f"{name} is set too, in line {inline.line}; remove one of the two")
        return Pem(file.path, path=directory / file.text())
    return None if inline is None else Pem(inline.path, text=inline.text())


def _needed(pem: Pem | None, key: str, line: int) -> Pem:
    if pem is None:
        raise FieldError(
            line, f"tls_server_config: {key} is missing; give cert_file and key_file, or leave the section out"
        )
    return pem


def _client_auth(fields: Mapping[str, Field], *, has_ca: bool) -> tuple[ClientAuth, tuple[str, ...]]:
    field = fields.get("client_auth_type")
    ca = fields.get("client_ca_file") or fields.get("client_ca")
    auth = ClientAuth.NONE
    if field is not None:
        name = field.text()
        # OpenSSL as Python binds it verifies every certificate that it asks for. Go does not in this mode: any
        # stranger's self-made certificate will do, so nothing is protected by it.
        if name in {"RequireAnyClientCert", "RequireClientCert"}:
            raise field.error(
                f"{name} accepts any certificate unverified and is not served; "
                "use RequireAndVerifyClientCert with client_ca_file"
            )
        if name not in {member.value for member in ClientAuth}:
            raise field.error(f"unknown type {name!r}; use one of {', '.join(member.value for member in ClientAuth)}")
        auth = ClientAuth(name)
    if auth.verifies and not has_ca and field is not None:
        raise field.error(f"{auth.value} needs client_ca_file; without it nothing says which certificates are good")
    if ca is not None and auth is ClientAuth.NONE:
        raise ca.error("a client CA needs a client_auth_type that verifies, such as RequireAndVerifyClientCert")
    if auth is ClientAuth.REQUEST and field is not None:
        return auth, (f"{field.path}: RequestClientCert verifies nothing, so no certificate is asked for",)
    return auth, ()


def _allowed_sans(fields: Mapping[str, Field], auth: ClientAuth) -> tuple[str, ...]:
    field = fields.get("client_allowed_sans")
    if field is None:
        return ()
    names = field.items()
    if not names:
        raise field.error("an empty list would let no client in; name one or leave the key out")
    if auth is not ClientAuth.REQUIRE_AND_VERIFY:
        raise field.error(
            "names prove something in a verified certificate only; set client_auth_type to RequireAndVerifyClientCert"
        )
    return names


def _versions_and_suites(fields: Mapping[str, Field]) -> tuple[str, str, tuple[str, ...]]:
    lowest = _version(fields, "min_version", _VERSIONS[0])
    highest = _version(fields, "max_version", _VERSIONS[-1])
    if lowest > highest:
        raise fields["min_version"].error(f"{lowest} is above max_version, {highest}; exchange them")
    field = fields.get("cipher_suites")
    names = field.items() if field is not None else ()
    for name in names:
        if field is not None and name not in CIPHER_SUITES and name not in TLS13_CIPHER_SUITES:
            raise field.error(f"unknown cipher suite {name!r}; use {', '.join((*CIPHER_SUITES, *TLS13_CIPHER_SUITES))}")
    suites = tuple(CIPHER_SUITES[name] for name in names if name in CIPHER_SUITES)
    if field is not None and names and not suites:
        # OpenSSL cannot have an empty list for TLS 1.2; not to speak it comes to the same.
        if highest == "TLS12":
            raise field.error("all of these are for TLS 1.3, which max_version excludes; add one for TLS 1.2")
        lowest = "TLS13"
    return lowest, highest, suites


def _version(fields: Mapping[str, Field], key: str, default: str) -> str:
    field = fields.get(key)
    if field is None:
        return default
    name = field.text()
    if name in _OLD_VERSIONS:
        raise field.error(f"{name} is not spoken by OpenSSL 3 at its default security level; use TLS12 or TLS13")
    if name not in _VERSIONS:
        raise field.error(f"unknown TLS version {name!r}; use TLS12 or TLS13")
    return name


def _curve(fields: Mapping[str, Field]) -> str | None:
    field = fields.get("curve_preferences")
    if field is None:
        return None
    names = field.items()
    for name in names:
        if name not in CURVES:
            raise field.error(f"unknown curve {name!r}; use {', '.join(CURVES)}")
    if len(names) > 1:
        raise field.error("Python's ssl can set one curve only; keep one, or leave the key out for OpenSSL's order")
    return CURVES[names[0]] if names else None
