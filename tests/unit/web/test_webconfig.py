"""The web configuration file: each refusal is a file with its exact message; and what the good ones mean."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpufleet.web.live_config import LiveWebConfig
from gpufleet.web.tls_settings import ClientAuth, TlsSettings
from gpufleet.web.webconfig import RateLimit, WebConfig, WebConfigError, parse_go_duration, parse_web_config

if TYPE_CHECKING:
    from tests.support.pems import Pems

CASES = Path(__file__).parent / "cases"
BAD = sorted(CASES.glob("*.bad.yml"))
GOOD = sorted(CASES.glob("*.good.yml"))


def names(paths: list[Path]) -> list[str]:
    """File names without what they share."""
    return [path.name.split(".")[0] for path in paths]


def parsed(name: str) -> WebConfig:
    """The good case of that name, as if it were /etc/web.yml."""
    return parse_web_config((CASES / f"{name}.good.yml").read_bytes(), Path("/etc/web.yml"))


def tls(name: str) -> TlsSettings:
    """The TLS settings of the good case of that name."""
    settings = parsed(name).tls
    assert settings is not None
    return settings


@pytest.mark.parametrize("case", BAD, ids=names(BAD))
def test_a_bad_file_is_refused_with_this_message(case: Path, pems: Pems) -> None:
    """Each case's first line is the whole message: file, line, key, problem and remedy."""
    expected = case.read_text().splitlines()[0].removeprefix("# refused: ")
    file = shutil.copy(case, pems.folder / "web.yml")
    with pytest.raises(WebConfigError) as refused:
        LiveWebConfig(Path(file))

    assert str(refused.value).replace(f"{pems.folder}/", "") == expected


@pytest.mark.parametrize("case", GOOD, ids=names(GOOD))
def test_a_good_file_is_taken(case: Path, pems: Pems) -> None:
    """With the certificates beside it, each loads, says nothing to note and has no reload error."""
    file = shutil.copy(case, pems.folder / "web.yml")
    live = LiveWebConfig(Path(file))

    assert live.reload_error is None
    assert live.current().config.notes == ()


def test_a_file_that_is_not_there_is_named() -> None:
    """The message names the flag to look at."""
    with pytest.raises(WebConfigError) as refused:
        LiveWebConfig(Path("/nowhere/web.yml"))

    assert str(refused.value) == "/nowhere/web.yml: cannot be read: No such file or directory; check --web.config.file"


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    """A megabyte of YAML would take seconds to read, at each change."""
    file = tmp_path / "web.yml"
    file.write_bytes(b"#" * 200_000)
    with pytest.raises(WebConfigError, match="is larger than 131072 bytes; this is no web configuration"):
        LiveWebConfig(file)


@pytest.mark.parametrize("name", ["empty", "comments", "sections_without_keys", "rate_limit_off", "headers_unset"])
def test_what_says_nothing_configures_nothing(name: str) -> None:
    """No TLS, no users, no headers, no limit."""
    assert parsed(name) == WebConfig()


def test_tls_has_the_formats_defaults() -> None:
    """TLS 1.2 to 1.3, no client certificate, the server's order; paths are relative to the file."""
    settings = tls("tls")

    assert (settings.cert.path, settings.private_key.path) == (Path("/etc/server.crt"), Path("/etc/server.key"))
    assert (settings.min_version, settings.max_version) == ("TLS12", "TLS13")
    assert settings.client_auth is ClientAuth.NONE
    assert settings.prefer_server_cipher_suites
    assert (settings.client_ca, settings.client_allowed_sans, settings.cipher_suites, settings.curve) == (
        None,
        (),
        (),
        None,
    )


def test_absolute_paths_stay_as_they_are() -> None:
    """A certificate elsewhere is where it says."""
    config = parse_web_config(b"tls_server_config: {cert_file: /a/b.crt, key_file: ../k}", Path("/etc/web.yml"))

    assert config.tls is not None
    assert config.tls.cert.path == Path("/a/b.crt")
    assert config.tls.private_key.path == Path("/etc/../k")


def test_client_certificates_are_configured() -> None:
    """CA, type and allowed names."""
    settings = tls("mtls")

    assert settings.client_auth is ClientAuth.REQUIRE_AND_VERIFY
    assert settings.client_ca is not None
    assert settings.client_ca.path == Path("/etc/ca.crt")
    assert settings.client_allowed_sans == ("prometheus.example", "10.0.0.1")
    assert tls("verify_if_given").client_auth is ClientAuth.VERIFY_IF_GIVEN


def test_a_certificate_that_is_only_requested_is_noted() -> None:
    """RequestClientCert lets everybody in, as NoClientCert does; the log says so, since it reads like more."""
    config = parse_web_config(
        b"tls_server_config: {cert_file: c, key_file: k, client_auth_type: RequestClientCert}", Path("web.yml")
    )

    assert config.tls is not None
    assert config.tls.client_auth is ClientAuth.REQUEST
    assert not config.tls.client_auth.verifies
    assert config.notes == (
        "tls_server_config.client_auth_type: RequestClientCert verifies nothing, so no certificate is asked for",
    )


def test_http2_is_noted_where_it_is_asked_for() -> None:
    """It is the format's default, so it cannot be an error; a client that speaks it falls back."""
    config = parse_web_config(b"http_server_config: {http2: true}", Path("web.yml"))

    assert config.notes == ("http_server_config.http2: this server speaks HTTP/1.1 only, and clients fall back to it",)


def test_suites_and_curve_are_given_openssls_names() -> None:
    """The order is the file's; those of TLS 1.3 are always on and cannot be ordered."""
    settings = tls("ciphers")

    assert settings.cipher_suites[0] == "ECDHE-ECDSA-AES128-SHA"
    assert settings.cipher_suites[-1] == "ECDHE-RSA-CHACHA20-POLY1305"
    assert len(settings.cipher_suites) == 10
    assert tls("curve").curve == "secp384r1"


def test_suites_of_tls13_alone_leave_tls12_out() -> None:
    """Go would offer a TLS 1.2 client nothing; here it is told so by the version."""
    settings = tls("ciphers_of_tls13")

    assert (settings.min_version, settings.cipher_suites) == ("TLS13", ())


def test_headers_users_and_limit_are_read() -> None:
    """A number is text where text belongs, as in Go's YAML."""
    assert dict(parsed("headers").headers)["X-XSS-Protection"] == "1"
    assert [name for name, _ in parsed("users").users] == ["alice", "bob", "c d"]
    assert parsed("rate_limit").rate_limit == RateLimit(0.1, 20)


def test_a_refused_password_is_not_repeated() -> None:
    """What stands where a hash belongs may be the password itself; messages end in logs."""
    with pytest.raises(WebConfigError) as refused:
        parse_web_config((CASES / "user_password_in_the_clear.bad.yml").read_bytes(), Path("web.yml"))

    assert "swordfish" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("1s", 1),
        ("1m30s", 90),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("100ms", 0.1),
        ("5us", 5e-6),
        ("5µs", 5e-6),
        ("7ns", 7e-9),
        ("", None),
        ("5", None),
        ("s", None),
        ("-1s", None),
        ("1s ", None),
        ("1 s", None),
        ("1d", None),
        ("1s x", None),
    ],
)
def test_durations_are_gos(text: str, seconds: float | None) -> None:
    """A number and a unit, repeated; a bare number has no unit to guess."""
    assert parse_go_duration(text) == (pytest.approx(seconds) if seconds is not None else None)
