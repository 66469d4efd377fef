"""The file of --alertmanager.config.file: what it means, and each refusal with its exact message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpufleet.notify.client_config import ClientConfig, ClientConfigError, Secret, TlsClient, parse_client_config
from gpufleet.notify.credentials import CredentialsError, authorization, read_client_config, tls_context

if TYPE_CHECKING:
    from tests.support.pems import Pems

FILE = Path("/etc/gpufleet/alertmanager.yml")

REFUSALS = {
    "proxy_url: http://proxy": (
        "1: proxy_url: is no key of this file; there are authorization, basic_auth, tls_config"
    ),
    "tls_config:\n  ca: x": (
        "2: tls_config.ca: is no key of this file; tls_config has ca_file, cert_file, insecure_skip_verify, "
        "key_file, server_name"
    ),
    "tls_config:": "1: tls_config: has no keys below it; write them, or leave it out",
    "tls_config: yes": "1: tls_config: must be a mapping of keys to values",
    "tls_config:\n  ca_file: [a]": "2: tls_config.ca_file: must be text; give a value or leave the key out",
    "tls_config:\n  ca_file:\n    x: y": "3: tls_config.ca_file: must be a plain value, not a mapping",
    "tls_config:\n  cert_file: a": ("2: tls_config.cert_file: is of no use without key_file; give both or neither"),
    "tls_config:\n  key_file: a": "2: tls_config.key_file: is of no use without cert_file; give both or neither",
    "tls_config:\n  ca_file: a\n  insecure_skip_verify: true": (
        "2: tls_config.ca_file: is not looked at with insecure_skip_verify: true; remove one of the two"
    ),
    "tls_config:\n  insecure_skip_verify: 1": ("2: tls_config.insecure_skip_verify: '1' must be true or false"),
    "basic_auth:\n  username: a": (
        "2: basic_auth.username: basic_auth needs password_file, too; give it, or leave the section out"
    ),
    "basic_auth:\n  password: hunter2": (
        "2: basic_auth.password: basic_auth needs username, too; give it, or leave the section out"
    ),
    "basic_auth:\n  username: a:b\n  password: hunter2": (
        "2: basic_auth.username: a colon ends the name in basic auth; use a name without one"
    ),
    "basic_auth:\n  username: a\n  password: hunter2\n  password_file: p": (
        "4: basic_auth.password_file: password is set too, in line 3; remove one of the two"
    ),
    "authorization:\n  type: Bearer": (
        "2: authorization.type: authorization needs credentials_file, too; give it, or leave the section out"
    ),
    "authorization:\n  type: basic\n  credentials: hunter2": (
        "2: authorization.type: basic auth has a section of its own; write basic_auth with username and password"
    ),
    "authorization:\n  type: Bearer x\n  credentials: hunter2": (
        "2: authorization.type: 'Bearer x' is no authentication scheme; write one such as Bearer"
    ),
    "basic_auth:\n  username: a\n  password: p\nauthorization:\n  credentials: hunter2": (
        "5: authorization.credentials: there is basic_auth, too, and a request has one Authorization header; "
        "keep one of them"
    ),
    "a: &x 1\nb: *x": "2: *x is an alias; write the value itself",
}


def parsed(text: str) -> ClientConfig:
    """The configuration that a file of this text makes."""
    return parse_client_config(text.encode(), FILE)


@pytest.mark.parametrize("text", REFUSALS)
def test_a_bad_file_is_refused_with_line_key_and_remedy(text: str) -> None:
    """The operator sees where the mistake is and what to write instead, and no secret."""
    with pytest.raises(ClientConfigError) as refused:
        parsed(text)

    assert str(refused.value) == f"{FILE}:{REFUSALS[text]}"
    assert "hunter2" not in str(refused.value)


def test_the_keys_of_prometheus_mean_what_they_mean_there() -> None:
    """What its alertmanager_config says can be copied; paths are relative to the file."""
    tls = "tls_config:\n  ca_file: ca.crt\n  cert_file: /c.crt\n  key_file: c.key\n  server_name: am.example\n"

    assert parsed(tls + "basic_auth:\n  username: gpu\n  password_file: secret\n") == ClientConfig(
        tls=TlsClient(FILE.parent / "ca.crt", Path("/c.crt"), FILE.parent / "c.key", "am.example"),
        username="gpu",
        secret=Secret("basic_auth.password_file", path=FILE.parent / "secret"),
    )
    assert parsed("authorization:\n  credentials: token\n") == ClientConfig(
        scheme="Bearer", secret=Secret("authorization.credentials", text="token")
    )
    assert parsed("authorization: {type: Token, credentials_file: t}").scheme == "Token"
    assert parsed("tls_config: {insecure_skip_verify: true}").tls == TlsClient(verify=False)
    assert parsed("") == ClientConfig()


def test_a_secret_does_not_show_itself() -> None:
    """A traceback or a debugger's line with the configuration in it tells nobody the password."""
    assert "hunter2" not in repr(parsed("basic_auth: {username: a, password: hunter2}"))


def test_no_file_means_plain_requests() -> None:
    """Nothing has to be configured for an Alertmanager that asks for nothing."""
    config = read_client_config(None)

    assert config == ClientConfig()
    assert authorization(config) is None


def test_a_password_is_sent_as_basic_auth() -> None:
    """RFC 7617, with UTF-8."""
    assert authorization(parsed("basic_auth: {username: gpu, password: pässword}")) == "Basic Z3B1OnDDpHNzd29yZA=="


def test_a_secret_is_read_anew_each_time(tmp_path: Path) -> None:
    """A token that is rotated every few minutes needs no restart; the line feed at its end is not a part of it."""
    config = parse_client_config(b"authorization: {credentials_file: token}", tmp_path / "am.yml")
    (tmp_path / "token").write_text("first\n")
    first = authorization(config)
    (tmp_path / "token").write_text("second\r\n")

    assert (first, authorization(config)) == ("Bearer first", "Bearer second")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "can't be read: No such file or directory; check path and owner"),
        (b"  \n", "is empty; write the secret into it"),
        (b"hunter2\nX-Evil: 1", "has characters that a header can't have; write a token alone"),
        (b"hunter\xff", "is no UTF-8 text; write it anew"),
        (b"h" * 70_000, "is longer than 65536 bytes"),
    ],
)
def test_a_bad_secret_is_refused_at_start_and_not_quoted(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """The message names file, key and remedy; what is in the file stays there."""
    (tmp_path / "am.yml").write_text("authorization: {credentials_file: token}")
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(ClientConfigError) as refused:
        read_client_config(tmp_path / "am.yml")

    assert str(refused.value) == (f"{tmp_path}/am.yml: authorization.credentials_file ({tmp_path}/token): {problem}")
    assert refused.value.__cause__ is not None
    assert "hunter" not in str(refused.value.__cause__.__cause__)


def test_a_missing_configuration_is_refused(tmp_path: Path) -> None:
    """A file that was named must be there."""
    with pytest.raises(ClientConfigError, match=r"am\.yml\): can't be read: No such file"):
        read_client_config(tmp_path / "am.yml")


@pytest.mark.parametrize(
    ("tls", "problem"),
    [
        ("ca_file: none.crt", "tls_config.ca_file ({folder}/none.crt): cannot be read: No such file or directory"),
        ("ca_file: server.key", "tls_config.ca_file ({folder}/server.key): holds no certificate"),
        ("ca_file: broken.crt", "tls_config.ca_file ({folder}/broken.crt): holds a certificate that cannot be read"),
        (
            "cert_file: client.crt\n  key_file: other.key",
            "tls_config.key_file ({folder}/other.key): does not belong to the certificate of tls_config.cert_file",
        ),
        (
            "cert_file: client.crt\n  key_file: encrypted.key",
            "tls_config.key_file ({folder}/encrypted.key): the key is",
        ),
    ],
)
def test_bad_certificates_are_refused_at_start(pems: Pems, tls: str, problem: str) -> None:
    """Not at the first fault, when nobody looks at a log."""
    (pems.folder / "am.yml").write_text(f"tls_config:\n  {tls}\n")
    with pytest.raises(ClientConfigError) as refused:
        read_client_config(pems.folder / "am.yml")

    assert str(refused.value).startswith(f"{pems.folder}/am.yml: {problem.format(folder=pems.folder)}")


def test_certificates_are_verified_unless_it_is_switched_off(pems: Pems) -> None:
    """The default asks the system's CAs, and a CA of one's own replaces those."""
    with_default, with_ca = tls_context(None), tls_context(TlsClient(ca_file=pems.folder / "ca.crt"))
    without = tls_context(TlsClient(verify=False))

    assert with_default.check_hostname
    assert with_ca.check_hostname
    assert [len(with_ca.get_ca_certs()), without.check_hostname] == [1, False]
    with pytest.raises(CredentialsError):
        tls_context(TlsClient(ca_file=pems.folder / "none.crt"))
