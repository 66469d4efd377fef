"""The web configuration in force, while its files change."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING

import bcrypt
import pytest

from gpufleet import logs
from gpufleet.web.live_config import LiveWebConfig
from gpufleet.web.webconfig import WebConfigError
from tests.support.pems import Pems, issue

if TYPE_CHECKING:
    from pathlib import Path

HASHED = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
MTLS = f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
SANS = f"{MTLS}  client_allowed_sans: [prometheus.example]\n"
USERS = f"basic_auth_users:\n  alice: {HASHED}\n"


@pytest.fixture
def stream() -> io.StringIO:
    """The log."""
    stream = io.StringIO()
    logs.setup("info", "logfmt", stream)
    return stream


def written(pems: Pems, text: str) -> Path:
    """Replace the configuration as an editor does: a new file moved over the old."""
    new = pems.folder / "web.yml.new"
    new.write_text(text)
    return new.replace(pems.folder / "web.yml")


def test_nothing_is_read_again_while_nothing_changes(pems: Pems) -> None:
    """The same objects are served."""
    live = LiveWebConfig(written(pems, TLS + USERS))

    assert live.current() is live.current()
    assert live.tls_context() is live.current().context
    assert (live.reloads, live.reload_failures) == (0, 0)


def test_a_changed_file_is_in_force_at_once(pems: Pems, stream: io.StringIO) -> None:
    """The next look has the new version; the log has a line."""
    live = LiveWebConfig(written(pems, "http_server_config: {headers: {X-Frame-Options: deny}}\n"))
    written(pems, "http_server_config: {headers: {X-Frame-Options: sameorigin}}\n")

    assert live.current().config.headers == (("X-Frame-Options", "sameorigin"),)
    assert live.reloads == 1
    assert 'msg="web configuration reloaded"' in stream.getvalue()


@pytest.mark.parametrize("name", ["server.crt", "server.key", "ca.crt"])
def test_a_change_of_any_file_is_seen(pems: Pems, name: str) -> None:
    """Certificate, key and client CA are files of the configuration too."""
    live = LiveWebConfig(written(pems, MTLS))
    before = live.tls_context()
    file = pems.folder / name
    (pems.folder / "copy").write_bytes(file.read_bytes())
    (pems.folder / "copy").replace(file)

    assert live.tls_context() is not before
    assert live.reload_error is None


def test_a_change_in_place_of_the_same_size_is_seen(pems: Pems) -> None:
    """The time of the last change tells what inode and size do not."""
    file = written(pems, "http_server_config: {headers: {X-XSS-Protection: 1}}\n")
    live = LiveWebConfig(file)
    file.write_text("http_server_config: {headers: {X-XSS-Protection: 0}}\n")
    os.utime(file, ns=(0, 12_345))

    assert live.current().config.headers == (("X-XSS-Protection", "0"),)


def test_a_directory_link_that_is_exchanged_is_seen(pems: Pems) -> None:
    """Kubernetes mounts secrets as links through a directory link that it moves."""
    for version, protection in (("v1", 1), ("v2", 0)):
        (pems.folder / version).mkdir()
        (pems.folder / version / "web.yml").write_text(
            f"http_server_config: {{headers: {{X-XSS-Protection: {protection}}}}}\n"
        )
    (pems.folder / "data").symlink_to("v1")
    (pems.folder / "web.yml").symlink_to("data/web.yml")
    live = LiveWebConfig(pems.folder / "web.yml")
    (pems.folder / "data.new").symlink_to("v2")
    (pems.folder / "data.new").replace(pems.folder / "data")

    assert live.current().config.headers == (("X-XSS-Protection", "0"),)


def test_a_broken_version_leaves_the_old_one(pems: Pems, stream: io.StringIO) -> None:
    """It is logged once, shows as an error, and the repaired file ends it."""
    live = LiveWebConfig(written(pems, TLS + USERS))
    before = live.current()
    written(pems, TLS + "basic_auth_users: [oops]\n")

    assert [live.current() is before for _ in range(5)] == [True] * 5
    assert live.reload_error == f"{pems.folder}/web.yml:4: basic_auth_users: must be a mapping of keys to values"
    assert live.reload_failures == 1
    assert stream.getvalue().count("is not used, the old one stays") == 1

    written(pems, TLS + USERS + f"  bob: {HASHED}\n")
    assert len(live.current().config.users) == 2
    assert live.reload_error is None


def test_a_certificate_whose_key_comes_later_is_taken_with_it(pems: Pems) -> None:
    """Between two writes the pair does not match: the old one serves on."""
    live = LiveWebConfig(written(pems, TLS))
    before = live.tls_context()
    new = pems.folder / "new"
    new.mkdir()
    issue(pems.ca, new, "server", "localhost")
    (new / "server.crt").replace(pems.folder / "server.crt")

    assert live.tls_context() is before
    assert "does not belong" in str(live.reload_error)
    (new / "server.key").replace(pems.folder / "server.key")
    assert live.tls_context() is not before
    assert live.reload_error is None


def test_a_failure_that_no_file_shows_is_tried_again(pems: Pems) -> None:
    """A version that failed is looked at again after a while, though nothing changed since."""
    now = [0.0]
    file = written(pems, USERS)
    live = LiveWebConfig(file, clock=lambda: now[0])
    file.unlink()
    file.symlink_to("loop")
    (pems.folder / "loop").symlink_to("web.yml")

    live.current()
    live.current()
    assert live.reload_failures == 1
    now[0] += 11
    live.current()
    assert live.reload_failures == 2


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (TLS, "", "tls_server_config"),
        (USERS, "", "basic_auth_users"),
        (MTLS, TLS, "tls_server_config.client_auth_type"),
        (SANS, MTLS, "tls_server_config.client_allowed_sans"),
        (
            MTLS + USERS,
            "",
            "basic_auth_users, tls_server_config, tls_server_config.client_auth_type",
        ),
    ],
)
def test_a_guard_does_not_vanish_while_running(pems: Pems, before: str, after: str, lost: str) -> None:
    """A file that is being written is empty for a moment, and an empty one is valid: it would open every door."""
    live = LiveWebConfig(written(pems, before))
    old = live.current()
    written(pems, after)

    assert live.current() is old
    assert live.reload_error == (f"{pems.folder}/web.yml: {lost} would be gone; restart to serve with less protection")


def test_guards_may_be_added_while_running(pems: Pems) -> None:
    """More protection needs no restart."""
    live = LiveWebConfig(written(pems, ""))
    assert live.tls_context() is None
    written(pems, SANS + USERS)

    assert live.tls_context() is not None
    assert live.current().auth is not None
    assert live.reload_error is None


def test_what_is_known_of_users_survives_a_new_certificate(pems: Pems) -> None:
    """A renewed certificate sends no scraper through bcrypt again; changed users start anew."""
    live = LiveWebConfig(written(pems, TLS + USERS + "rate_limit: {interval: 1s, burst: 5}\n"))
    auth, bucket = live.current().auth, live.current().bucket
    issue(pems.ca, pems.folder, "server", "localhost")

    assert live.current().auth is auth
    assert live.current().bucket is bucket
    written(pems, TLS + USERS + f"  bob: {HASHED}\nrate_limit: {{interval: 2s, burst: 5}}\n")
    assert live.current().auth is not auth
    assert live.current().bucket is not bucket


def test_many_threads_may_look_while_files_change(pems: Pems) -> None:
    """Nobody waits, nobody raises, and everybody ends with the last version."""
    live = LiveWebConfig(written(pems, USERS))
    end = threading.Event()
    errors: list[BaseException] = []

    def look() -> None:
        try:
            while not end.is_set():
                assert live.current().auth is not None
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=look, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(20):
        written(pems, USERS + "".join(f"  user{n}: {HASHED}\n" for n in range(number + 1)))
        live.current()
    end.set()
    for thread in threads:
        thread.join(20)

    assert errors == []
    assert len(live.current().config.users) == 21


def test_inline_certificates_are_served(pems: Pems) -> None:
    """The format allows the PEM text itself; it never touches a disk."""
    lines = ["tls_server_config:", "  client_auth_type: VerifyClientCertIfGiven"]
    for key, name in (("cert", "server.crt"), ("key", "server.key"), ("client_ca", "ca.crt")):
        text = (pems.folder / name).read_text().strip().replace("\n", "\n    ")
        lines.append(f"  {key}: |\n    {text}")
    live = LiveWebConfig(written(pems, "\n".join(lines) + "\n"))

    context = live.tls_context()
    assert context is not None
    assert len(context.get_ca_certs()) == 1


def test_an_inline_key_in_a_message_is_named_by_its_key(pems: Pems) -> None:
    """The text of a private key must not reach the log."""
    certificate = (pems.folder / "server.crt").read_text().strip().replace("\n", "\n    ")
    key = (pems.folder / "other.key").read_text().strip().replace("\n", "\n    ")
    with pytest.raises(WebConfigError) as refused:
        LiveWebConfig(written(pems, f"tls_server_config:\n  cert: |\n    {certificate}\n  key: |\n    {key}\n"))

    assert str(refused.value) == (
        f"{pems.folder}/web.yml: tls_server_config.key: does not belong to the certificate of tls_server_config.cert; "
        "give the two that were issued together"
    )
