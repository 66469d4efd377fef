"""Basic authentication against bcrypt hashes (RFC 7617).

A bcrypt check takes 60 ms of a core at cost 10 and doubles with each step: it is the most expensive thing that a
stranger can ask of us. So one runs at a time, few may wait, fewer from one peer, and a right password is checked once:
users who are known go past the queue, whatever others are doing.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import enum
import hashlib
import hmac
import re
import secrets
import threading
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HASH = re.compile(r"\$2[aby]\$(?P<cost>0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")

# A salt and a digest that belong to no password. With an unknown name the check runs all the same, at the highest cost
# in use, so that the time it takes does not tell which names exist.
_NOBODY = "$2b${cost}$C6UzMDM.H6dfI/f/IKcEe.9Rpr1ZLvSmqlVVLH3QpXjQhKb2UHbDu"
# bcrypt reads no further; htpasswd and Go cut silently, the bcrypt library refuses since its version 5.
_BCRYPT_BYTES = 72
_WRONG_REMEMBERED = 256
_MOST_WAITING = 8
_MOST_WAITING_OF_A_PEER = 2


class Verdict(enum.Enum):
    """Whether credentials are good; BUSY when too many checks are waiting to say."""

    GOOD = enum.auto()
    WRONG = enum.auto()
    BUSY = enum.auto()


def bcrypt_check(password: bytes, hashed: str) -> bool:
    """Check password against a bcrypt hash; slow by intent, and without the GIL."""
    import bcrypt

    try:
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed.encode("ascii"))
    except ValueError:  # a salt whose last character carries bits that no encoder writes
        return False


def parse_basic(header: str) -> tuple[str, bytes] | None:
    """Return name and password of an Authorization header's value, or None where it holds none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(" "), validate=True)
    except (binascii.Error, ValueError):
        return None
    name, colon, password = decoded.partition(b":")
    if not colon:
        return None
    try:
        return name.decode("utf-8"), password
    except UnicodeDecodeError:
        return None


class BasicAuth:
    """Decides who may in. users maps names to bcrypt hashes and must not be empty."""

    def __init__(self, users: Mapping[str, str], *, check: Callable[[bytes, str], bool] = bcrypt_check) -> None:
        self._users = dict(users)
        self._check = check
        costs = [found["cost"] for found in map(HASH.fullmatch, users.values()) if found]
        self._nobody = _NOBODY.format(cost=max(costs))
        # Passwords are not kept. The key makes a digest worthless outside this process.
        self._key = secrets.token_bytes(32)
        # A user has one right password, so this holds one digest a user and no flood can push one out of it. The wrong
        # ones are remembered for a misconfigured client's sake, which repeats itself with each scrape.
        self._right: dict[str, bytes] = {}
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self._one_check = threading.Lock()
        self._waiting: Counter[str] = Counter()

    def verdict(self, header: str, peer: str) -> Verdict:
        """Judge an Authorization header ("" where there is none) that came from peer."""
        credentials = parse_basic(header)
        if credentials is None:
            return Verdict.WRONG
        name, password = credentials
        digest = self._digest(name, password)
        known = self._known(name, digest)
        if known is not None:
            return known
        with self._place_in_queue(peer) as admitted:
            if not admitted:
                return Verdict.BUSY
            with self._one_check:
                # Whoever waited beside us may have asked the same.
                known = self._known(name, digest)
                if known is not None:
                    return known
                return self._checked(name, password, digest)

    def _known(self, name: str, digest: bytes) -> Verdict | None:
        with self._lock:
            right = self._right.get(name)
            if right is not None and hmac.compare_digest(right, digest):
                return Verdict.GOOD
            return Verdict.WRONG if digest in self._wrong else None

    def _checked(self, name: str, password: bytes, digest: bytes) -> Verdict:
        hashed = self._users.get(name)
        matches = self._check(password, self._nobody if hashed is None else hashed)
        good = matches and hashed is not None
        with self._lock:
            if good:
                self._right[name] = digest
            else:
                self._wrong[digest] = None
                if len(self._wrong) > _WRONG_REMEMBERED:
                    self._wrong.popitem(last=False)
        return Verdict.GOOD if good else Verdict.WRONG

    @contextlib.contextmanager
    def _place_in_queue(self, peer: str) -> Iterator[bool]:
        with self._lock:
            admitted = self._waiting.total() < _MOST_WAITING and self._waiting[peer] < _MOST_WAITING_OF_A_PEER
            if admitted:
                self._waiting[peer] += 1
        try:
            yield admitted
        finally:
            if admitted:
                with self._lock:
                    self._waiting[peer] -= 1
                    if not self._waiting[peer]:
                        del self._waiting[peer]

    def _digest(self, name: str, password: bytes) -> bytes:
        encoded = name.encode()
        # The length keeps "ab" + "c" apart from "a" + "bc".
        return hashlib.blake2b(len(encoded).to_bytes(4, "big") + encoded + password, key=self._key).digest()
