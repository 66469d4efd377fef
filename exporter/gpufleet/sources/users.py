"""Names of users, from whatever the machine asks for them: a file, or a directory service that may hang."""

from __future__ import annotations

import pwd
import threading
import time
from collections.abc import Callable

_MOST_NAMES = 1_024
_MOST_QUESTIONS = 4
"""Out at once; a service that does not answer one will not answer a fifth."""
_UNKNOWN_SECONDS = 60.0
"""A user without a name is asked about again after this time: the service may have been away for a moment."""


def _look_up(uid: int) -> str | None:
    try:
        # A name may be in any bytes; what is shown is UTF-8.
        return pwd.getpwuid(uid).pw_name.encode(errors="surrogateescape").decode(errors="replace")
    except (KeyError, OverflowError, OSError):
        return None


class UserNames:
    """Names by number. Nobody waits longer than ``patience`` seconds for one; until then the number stands for it.

    In a container the host's users have no names, unless its files are mounted. Any thread may ask.
    """

    def __init__(
        self,
        look_up: Callable[[int], str | None] = _look_up,
        *,
        patience: float = 0.5,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._patience = patience
        self._monotonic = monotonic
        self._known: dict[int, tuple[str, float]] = {}
        self._asked: set[int] = set()

    def of(self, uid: int) -> str:
        """The name, else the number as text."""
        known = self._known.get(uid)
        if known is not None and self._monotonic() < known[1]:
            return known[0]
        if uid not in self._asked and len(self._asked) < _MOST_QUESTIONS:
            self._asked.add(uid)
            # A call into a directory service can't be ended from outside: it keeps its own thread, not the asker's.
            thread = threading.Thread(target=self._ask, args=(uid,), name="user-name", daemon=True)
            thread.start()
            thread.join(self._patience)
            known = self._known.get(uid)
        return str(uid) if known is None else known[0]

    def _ask(self, uid: int) -> None:
        try:
            name = self._look_up(uid)
            if len(self._known) >= _MOST_NAMES:
                self._known = {}
            until = float("inf") if name else self._monotonic() + _UNKNOWN_SECONDS
            self._known[uid] = (name or str(uid), until)
        finally:
            self._asked.discard(uid)
