"""Keeping the process small: it runs on every node for as long as the node is up."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from types import ModuleType

UNUSED_BY_US = ("http.server", "socketserver", "ssl", "urllib.request", "wsgiref.simple_server")
"""What prometheus_client imports for its own HTTP server and push client, 7 MiB with libssl and libcrypto."""

_M_ARENA_MAX = -8
"""From glibc's malloc.h."""


class _Unused(ModuleType):
    """Stands for a module while another one is imported; each of its names is an empty class."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def import_without(module: str, unused: tuple[str, ...]) -> bool:
    """Import ``module``, sparing it modules that it imports for parts of it that are not used here.

    They are there again for everybody else as soon as it is imported. Returns whether that was possible: a release that
    does more with them than to name them is imported as usual. Call it before other threads import anything.
    """
    if module in sys.modules:
        return False
    absent = [name for name in unused if name not in sys.modules]
    sys.modules.update({name: _Unused(name) for name in absent})
    try:
        importlib.import_module(module)
    except Exception:  # noqa: BLE001 - whatever it met in a module that was not there
        for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
            del sys.modules[name]
        spared = False
    else:
        spared = True
    finally:
        for name in absent:
            del sys.modules[name]
    if not spared:
        importlib.import_module(module)
    return spared


def share_one_heap() -> None:
    """Let all threads allocate from one heap; before any is started.

    glibc gives each thread its own, up to eight a core, and what is freed in one is of no use to the others. With
    the interpreter's lock around nearly every allocation that buys no speed, and costs a megabyte at eight GPUs and
    more after a burst of scrapes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has no such call
        mallopt(_M_ARENA_MAX, 1)


def settle() -> None:
    """After start-up: give back what only it needed, and keep the collector off what stays for ever."""
    gc.collect()
    gc.freeze()
    # glibc keeps what was freed below something still used, half a megabyte after the imports.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
