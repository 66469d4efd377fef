"""The types of what callers pass to the driver (see ``sources.nvml.calls`` for the convention)."""

from __future__ import annotations

import ctypes
from typing import Any

Buffer = ctypes.Array[Any]
"""An array that the driver reads from or writes to."""
Handle = ctypes.c_void_p
