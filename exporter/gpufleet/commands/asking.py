"""Ask the exporter that runs on this node, wherever its control socket is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from gpufleet import __version__
from gpufleet.collect.control import ControlError, ask, socket_paths
from gpufleet.faults.stored import StoredError, decode
from gpufleet.settings import Settings

T = TypeVar("T")

NO_EXPORTER = "no exporter was reached; is one running here, and with the same --control.socket or --state.dir?"


class UnansweredError(Exception):
    """No exporter gave an answer that can be used; ``reasons`` has a sentence for each place where one was asked."""

    def __init__(self, *reasons: str, is_there: bool = False) -> None:
        super().__init__("; ".join(reasons))
        self.reasons: Sequence[str] = reasons
        self.is_there = is_there
        """An exporter answered, with something else."""


def ask_exporter(settings: Settings, command: str, seconds: float, **arguments: str) -> Mapping[str, object]:
    """The answer of this node's exporter within ``seconds``. Raises UnansweredError, also when it is a refusal."""
    tried = []
    until = time.monotonic() + seconds
    for path in socket_paths(settings.control_socket, settings.state_dir):
        try:
            reply = ask(path, command, seconds=round(max(until - time.monotonic(), 0.01), 2), **arguments)
        except ControlError as error:
            tried.append(str(error))
            continue
        if reply.get("ok") is True:
            return reply
        raise UnansweredError(f"{path}: {reply.get('error')}; {_OTHER_VERSION}", is_there=True)
    raise UnansweredError(*tried)


def take(wanted: type[T], reply: Mapping[str, object], name: str) -> T:
    """A part of an answer as what it was before it was sent. Raises UnansweredError when it is not that."""
    try:
        return decode(wanted, reply.get(name), name)
    except StoredError as error:
        raise UnansweredError(
            f"the exporter's answer can't be used ({error}); {_OTHER_VERSION}", is_there=True
        ) from error


_OTHER_VERSION = f"is it of another version than this {__version__}? Restart it after an upgrade"
