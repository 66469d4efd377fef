"""Lines of the kernel log, read for what the NVIDIA driver says in them. Pure: text in, model types out.

Live messages (``parse_record``, ``believable``, ``parse_driver_text``) are believed by who wrote them and how they
begin; lines of saved files (``parse_saved_line``) are searched. ``Lines`` puts together what takes several lines, for
either. Every function takes any input, never raises, and takes time in proportion to the input's length.
"""

from __future__ import annotations

from gpufleet.sources.kmsg_lines.assembly import Lines
from gpufleet.sources.kmsg_lines.driver_text import parse_driver_text
from gpufleet.sources.kmsg_lines.notices import HeldBack, harvest_identity, held_back
from gpufleet.sources.kmsg_lines.record import KmsgRecord, believable, parse_record
from gpufleet.sources.kmsg_lines.saved import SavedTime, driver_text, parse_saved_line, saved_time

__all__ = [
    "HeldBack",
    "KmsgRecord",
    "Lines",
    "SavedTime",
    "believable",
    "driver_text",
    "harvest_identity",
    "held_back",
    "parse_driver_text",
    "parse_record",
    "parse_saved_line",
    "saved_time",
]
