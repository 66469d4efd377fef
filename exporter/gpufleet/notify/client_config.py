"""How to speak to Alertmanager (``--alertmanager.config.file``): text to a checked ClientConfig. Pure.

The keys are those of Prometheus's ``http_config``, so that what its ``alertmanager_config`` says can be copied. A key
that is not understood is refused: an ignored one could be the one that protects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.config_file import ConfigFileError, parse_config
from gpufleet.web.fields import Field, FieldError, refuse_nested, section

if TYPE_CHECKING:
    from collections.abc import Mapping

_TLS, _BASIC, _AUTHORIZATION = ("tls_config",), ("basic_auth",), ("authorization",)
_SECTIONS = frozenset({(), _TLS, _BASIC, _AUTHORIZATION})
_TLS_KEYS = ("ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify")
_SCHEME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token of RFC 9110, which an authentication scheme is."""


class ClientConfigError(Exception):
    """A configuration that is not used; the message names file, line, key and remedy."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, as text or in a file that is read whenever it is used. key is where it was configured, for messages."""

    key: str
    text: str | None = None
    path: Path | None = None

    def __repr__(self) -> str:
        return f"Secret({self.key})"  # a traceback or a log line must not show it


@dataclass(frozen=True, slots=True)
class TlsClient:
    """Whom to trust and who to be. No ca_file: whom the system trusts."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    """In the certificate, where it is another one than in the URL."""
    verify: bool = True


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The whole file."""

    tls: TlsClient | None = None
    username: str | None = None
    """Of basic auth; the secret is its password."""
    scheme: str | None = None
    """Of the Authorization header, where it is not basic auth."""
    secret: Secret | None = None


def parse_client_config(content: bytes, path: Path) -> ClientConfig:
    """Parse the content of the file at ``path``; relative paths in it are relative to the file. No other file is read.

    Raises:
        ClientConfigError: anything that is not understood or contradictory.
    """
    try:
        entries = parse_config(content, str(path), "basic_auth: {username: gpufleet, password_file: password}")
        top = section(entries, (), [name for (name,) in (_TLS, _BASIC, _AUTHORIZATION)])
        refuse_nested(entries, _SECTIONS)
        tls = section(entries, _TLS, _TLS_KEYS)
        basic = section(entries, _BASIC, ("username", "password", "password_file"))
        authorization = section(entries, _AUTHORIZATION, ("type", "credentials", "credentials_file"))
        if basic and authorization:
            first = next(iter(authorization.values()))
            raise first.error("there is basic_auth, too, and a request has one Authorization header; keep one of them")
        _refuse_blank(top)
        username, password = _basic(basic, path.parent)
        scheme, credentials = _authorization(authorization, path.parent)
        return ClientConfig(_tls(tls, path.parent), username, scheme, password or credentials)
    except ConfigFileError as error:
        raise ClientConfigError(str(error)) from error
    except FieldError as error:
        raise ClientConfigError(f"{path}:{error.line}: {error}") from error


def _refuse_blank(top: Mapping[str, Field]) -> None:
    for field in top.values():
        raise field.error("has no keys below it; write them, or leave it out")


def _tls(fields: Mapping[str, Field], directory: Path) -> TlsClient | None:
    if not fields:
        return None
    ca, cert, key = (_path(fields, name, directory) for name in _TLS_KEYS[:3])
    verify = not ("insecure_skip_verify" in fields and fields["insecure_skip_verify"].flag())
    for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if one in fields and other not in fields:
            raise fields[one].error(f"is of no use without {other}; give both or neither")
    if ca is not None and not verify:
        raise fields["ca_file"].error("is not looked at with insecure_skip_verify: true; remove one of the two")
    server_name = fields["server_name"].text() if "server_name" in fields else None
    return TlsClient(ca, cert, key, server_name, verify)


def _basic(fields: Mapping[str, Field], directory: Path) -> tuple[str | None, Secret | None]:
    if not fields:
        return None, None
    password = _secret(fields, "password", directory)
    if "username" not in fields or password is None:
        missing = "password_file" if "username" in fields else "username"
        raise next(iter(fields.values())).error(f"basic_auth needs {missing}, too; give it, or leave the section out")
    username = fields["username"].text()
    if ":" in username:
        raise fields["username"].error("a colon ends the name in basic auth; use a name without one")
    return username, password


def _authorization(fields: Mapping[str, Field], directory: Path) -> tuple[str | None, Secret | None]:
    if not fields:
        return None, None
    scheme = fields["type"].text() if "type" in fields else "Bearer"
    if not _SCHEME.fullmatch(scheme):
        raise fields["type"].error(f"{scheme!r} is no authentication scheme; write one such as Bearer")
    if scheme.lower() == "basic":
        raise fields["type"].error("basic auth has a section of its own; write basic_auth with username and password")
    credentials = _secret(fields, "credentials", directory)
    if credentials is None:
        raise next(iter(fields.values())).error(
            "authorization needs credentials_file, too; give it, or leave the section out"
        )
    return scheme, credentials


def _secret(fields: Mapping[str, Field], name: str, directory: Path) -> Secret | None:
    inline, file = fields.get(name), fields.get(f"{name}_file")
    if file is not None:
        if inline is not None:
            raise file.error(f"{name} is set too, in line {inline.line}; remove one of the two")
        return Secret(file.path, path=directory / file.text())
    return None if inline is None else Secret(inline.path, text=inline.text())


def _path(fields: Mapping[str, Field], name: str, directory: Path) -> Path | None:
    return directory / fields[name].text() if name in fields else None
