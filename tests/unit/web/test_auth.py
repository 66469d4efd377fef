"""Basic authentication: who gets in, what it costs, and who waits for whom."""

from __future__ import annotations

import base64
import threading

import bcrypt
import pytest

from gpufleet.web.auth import HASH, BasicAuth, Verdict, bcrypt_check, parse_basic
from tests.waiting import until

HASHED = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
OTHER = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()


def basic(name: str, password: str) -> str:
    """An Authorization header."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Checks:
    """Counts checks, and holds them back while ``gate`` is closed."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, str]] = []
        self.running = 0
        self.most_running = 0
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def __call__(self, password: bytes, hashed: str) -> bool:
        """Note the check, wait for the gate, and check."""
        with self._lock:
            self.seen.append((password, hashed))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        assert self.gate.wait(20)
        with self._lock:
            self.running -= 1
        return bcrypt_check(password, hashed)


@pytest.mark.parametrize(
    ("header", "parsed"),
    [
        (basic("alice", "secret"), ("alice", b"secret")),
        (basic("alice", "a:b"), ("alice", b"a:b")),
        (basic("", ""), ("", b"")),
        ("bAsIc  " + base64.b64encode(b"a:b").decode(), ("a", b"b")),
        ("", None),
        ("Basic", None),
        ("Basic !!!!", None),
        ("Basic YTp", None),
        ("Basic YTpi\xe9", None),
        ("Basic " + base64.b64encode(b"no colon").decode(), None),
        ("Basic " + base64.b64encode(b"\xff:x").decode(), None),
        ("Bearer YTpi", None),
        ("BasicYTpi", None),
    ],
)
def test_only_well_formed_headers_are_credentials(header: str, parsed: tuple[str, bytes] | None) -> None:
    """Name up to the first colon; what is no Base64 or has no colon is nothing."""
    assert parse_basic(header) == parsed


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
def test_every_spelling_of_bcrypt_is_checked(prefix: str) -> None:
    """The htpasswd program writes 2y, Go 2a, Python 2b: the same hash."""
    auth = BasicAuth({"alice": prefix + HASHED[4:]})

    assert auth.verdict(basic("alice", "secret"), "peer") is Verdict.GOOD
    assert auth.verdict(basic("alice", "wrong"), "peer") is Verdict.WRONG


@pytest.mark.parametrize(
    "header", ["", "Basic", "Bearer x", basic("alice", ""), basic("", "secret"), basic("bob", "secret")]
)
def test_anything_but_name_and_password_is_wrong(header: str) -> None:
    """No header, another scheme, another name."""
    assert BasicAuth({"alice": HASHED}).verdict(header, "peer") is Verdict.WRONG


def test_a_long_password_counts_with_its_first_72_bytes() -> None:
    """That is what htpasswd and Go hash; refusing it would lock out their users."""
    long = "p" * 80
    hashed = bcrypt.hashpw(long[:72].encode(), bcrypt.gensalt(4)).decode()

    assert BasicAuth({"alice": hashed}).verdict(basic("alice", long), "peer") is Verdict.GOOD


def test_a_right_password_is_checked_once() -> None:
    """Every scrape after the first costs no bcrypt."""
    checks = Checks()
    auth = BasicAuth({"alice": HASHED}, check=checks)

    assert [auth.verdict(basic("alice", "secret"), "peer") for _ in range(5)] == [Verdict.GOOD] * 5
    assert len(checks.seen) == 1


def test_a_wrong_password_that_is_repeated_is_checked_once() -> None:
    """A misconfigured scraper does not keep a core busy."""
    checks = Checks()
    auth = BasicAuth({"alice": HASHED}, check=checks)

    assert [auth.verdict(basic("alice", "wrong"), "peer") for _ in range(5)] == [Verdict.WRONG] * 5
    assert len(checks.seen) == 1


def test_an_unknown_name_costs_as_much_as_a_known_one() -> None:
    """The check runs against a hash that nobody has, at the highest cost in use: time tells no names."""
    checks = Checks()
    costly = bcrypt.hashpw(b"x", bcrypt.gensalt(6)).decode()
    auth = BasicAuth({"alice": HASHED, "bob": costly}, check=checks)

    assert auth.verdict(basic("mallory", "secret"), "peer") is Verdict.WRONG
    ((_, hashed),) = checks.seen
    found = HASH.fullmatch(hashed)
    assert found is not None
    assert found["cost"] == "06"
    assert hashed not in {HASHED, costly}
    assert isinstance(bcrypt.checkpw(b"x", hashed.encode()), bool)


def test_names_and_passwords_do_not_run_into_each_other() -> None:
    """The name "ab" with "c" is not "a" with "bc", though the letters are the same."""
    hashed = bcrypt.hashpw(b"bc", bcrypt.gensalt(4)).decode()
    auth = BasicAuth({"a": hashed, "ab": OTHER})

    assert auth.verdict(basic("a", "bc"), "peer") is Verdict.GOOD
    assert auth.verdict(basic("ab", "c"), "peer") is Verdict.WRONG


def test_passwords_are_not_kept() -> None:
    """What is remembered is a keyed digest: nothing reachable from the object holds the password."""
    auth = BasicAuth({"alice": HASHED})
    auth.verdict(basic("alice", "secret"), "peer")
    auth.verdict(basic("alice", "not this one"), "peer")

    remembered = repr(vars(auth))
    assert "secret" not in remembered
    assert "not this one" not in remembered


def in_threads(auth: BasicAuth, credentials: list[tuple[str, str]]) -> tuple[list[threading.Thread], list[Verdict]]:
    """Ask for each (Authorization header, peer) in a thread of its own."""
    verdicts: list[Verdict] = []
    threads = [
        threading.Thread(target=lambda h=header, p=peer: verdicts.append(auth.verdict(h, p)), daemon=True)
        for header, peer in credentials
    ]
    for thread in threads:
        thread.start()
    return threads, verdicts


def test_one_check_runs_at_a_time() -> None:
    """Several strangers at once still cost one core."""
    checks = Checks()
    auth = BasicAuth({"alice": HASHED}, check=checks)
    threads, verdicts = in_threads(auth, [(basic("alice", f"wrong {n}"), f"peer {n}") for n in range(5)])
    for thread in threads:
        thread.join(20)

    assert verdicts == [Verdict.WRONG] * 5
    assert checks.most_running == 1


def test_a_flood_of_wrong_passwords_does_not_delay_a_known_user() -> None:
    """With the queue full and a check that does not end, who was let in before is let in at once."""
    checks = Checks()
    auth = BasicAuth({"alice": HASHED}, check=checks)
    assert auth.verdict(basic("alice", "secret"), "prometheus") is Verdict.GOOD
    checks.gate.clear()
    threads, verdicts = in_threads(auth, [(basic("alice", f"wrong {n}"), f"peer {n}") for n in range(40)])
    until(lambda: verdicts.count(Verdict.BUSY) == 32, "the queue to be full")

    assert auth.verdict(basic("alice", "secret"), "prometheus") is Verdict.GOOD
    assert auth.verdict(basic("bob", "secret"), "another") is Verdict.BUSY
    checks.gate.set()
    for thread in threads:
        thread.join(20)
    assert verdicts.count(Verdict.WRONG) == 8


def test_a_flood_of_wrong_passwords_does_not_make_a_known_user_a_stranger() -> None:
    """However many wrong ones are remembered, the right one is not forgotten for them."""
    checks = Checks()
    auth = BasicAuth({"alice": HASHED}, check=checks)
    auth.verdict(basic("alice", "secret"), "prometheus")
    for number in range(600):
        auth.verdict(basic(f"user {number}", "x"), "flood")
    before = len(checks.seen)

    assert auth.verdict(basic("alice", "secret"), "prometheus") is Verdict.GOOD
    assert len(checks.seen) == before


def test_one_peer_cannot_fill_the_queue() -> None:
    """A third check at once from the same address is turned away; another address still gets its turn."""
    checks = Checks()
    auth = BasicAuth({"alice": HASHED}, check=checks)
    checks.gate.clear()
    threads, verdicts = in_threads(auth, [(basic("alice", f"wrong {n}"), "flood") for n in range(10)])
    until(lambda: verdicts.count(Verdict.BUSY) == 8, "the flood's share to be full")
    more, others = in_threads(auth, [(basic("alice", "secret"), "prometheus")])
    checks.gate.set()
    for thread in threads + more:
        thread.join(20)

    assert others == [Verdict.GOOD]
    assert verdicts.count(Verdict.WRONG) == 2


def test_a_check_that_fails_frees_its_place() -> None:
    """An error in one check does not shorten the queue for the next."""

    def broken(_: bytes, __: str) -> bool:
        raise RuntimeError

    auth = BasicAuth({"alice": HASHED}, check=broken)
    for number in range(20):
        with pytest.raises(RuntimeError):
            auth.verdict(basic("alice", str(number)), "peer")


def test_a_hash_that_no_encoder_writes_matches_nothing() -> None:
    """A well-formed text can still be no hash; it lets nobody in and raises nothing."""
    assert bcrypt_check(b"x", "$2b$04$" + "z" * 53) is False
