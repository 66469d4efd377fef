"""``gpufleet quiesce`` and ``gpufleet resume``: make the exporter on this node let go of the GPUs, and take them again.

Exit status: 0 done, 1 a driver call is out and keeps a GPU held, 2 the exporter could not be asked.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpufleet.collect.control import ControlError, ask, socket_paths
from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.durations import format_duration
from gpufleet.settings import selected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpufleet.settings import Settings

_HELD = 1
_ANSWER_SECONDS = 120.0
"""Calls that are out are waited for until their deadline, at most a minute, before the answer comes."""
_OPTIONS = selected("config", "state", "control")


def quiesce(argv: Sequence[str]) -> int:
    """Run ``gpufleet quiesce``."""
    parser = FlagParser(
        "quiesce",
        "Make the exporter on this node release every GPU, so that a reset, a MIG change or a driver upgrade can go\n"
        "ahead; its /metrics keeps answering. It takes them up again by itself after --quiesce.max of the exporter.\n\n"
        "Exit status: 0 released; 1 a driver call is out and the GPU stays held; 2 the exporter was not reached.",
        _OPTIONS,
        examples="  gpufleet quiesce && nvidia-smi --gpu-reset -i 3; gpufleet resume",
    )
    _, settings = parser.read(argv)
    return _run(parser.prog, "quiesce", settings)


def resume(argv: Sequence[str]) -> int:
    """Run ``gpufleet resume``."""
    parser = FlagParser(
        "resume",
        "Let a quiesced exporter on this node take the GPUs up again.\n\n"
        "Exit status: 0 done; 2 the exporter was not reached.",
        _OPTIONS,
        examples="  gpufleet resume",
    )
    _, settings = parser.read(argv)
    return _run(parser.prog, "resume", settings)


def _run(program: str, command: str, settings: Settings) -> int:
    tried = []
    for path in socket_paths(settings.control_socket, settings.state_dir):
        try:
            reply = ask(path, command, seconds=_ANSWER_SECONDS)
        except ControlError as error:
            tried.append(str(error))
            continue
        status, sentence = verdict(command, reply)
        print(sentence if status == 0 else f"{program}: {sentence}", file=sys.stdout if status == 0 else sys.stderr)
        return status
    for line in tried:
        print(f"{program}: {line}", file=sys.stderr)
    print(
        f"{program}: no exporter was reached; is one running here, and with the same --control.socket or --state.dir?",
        file=sys.stderr,
    )
    return USAGE


def verdict(command: str, reply: Mapping[str, object]) -> tuple[int, str]:
    """Exit status and sentence for the exporter's answer."""
    if reply.get("ok") is True:
        if command == "resume":
            return 0, "resumed: the exporter takes the GPUs up again"
        seconds = reply.get("resumes_after_seconds")
        after = f"; it resumes by itself after {format_duration(seconds)}" if isinstance(seconds, int | float) else ""
        return 0, f"quiesced: the exporter holds no GPU{after}"
    blocked_by = reply.get("blocked_by")
    if isinstance(blocked_by, str):
        return _HELD, f"not released; in the way: {blocked_by}; the kernel log may say why (dmesg | grep NVRM)"
    error = reply.get("error")
    return USAGE, error if isinstance(error, str) else "the answer is not an exporter's; another program listens there"
