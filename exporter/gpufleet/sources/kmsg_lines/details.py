"""What stands after the code of an Xid: the process, and what the driver says of the fault.

A process chooses its own name, so the name is cut out before anything else is read, and the flags that decide
something are taken only where the driver puts them: at the very end, which no name can reach.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST_TEXT = 300
_LONGEST_REST = 2048
"""A record of the kernel log holds about a thousand bytes; what is longer was not written by the driver."""
_LONGEST_NAME = 100  # NV_PROC_NAME_MAX_LENGTH; on Linux the name is the kernel's comm of at most 15 bytes
_COMM = 15

# pid=1234 | pid='<unknown>' | pid=<unknown> | pid='N/A'; some drivers of the 450 to 470 series gave no name after it.
_PID = re.compile(r", ?pid=('?)([^,']{0,32})\1(?:, ?|$)")
_DETAILS_START = re.compile(
    r", (?=Ch |Channel |channel |Graphics |Compute |Contained|Uncontained|GPU |NVLink|NETIR|RLW_|TLW_|SAW_|TREX|NVLPW"
    r"|MSE|Timeout |Class Error|MMU Fault|An uncorrectable|Row Remapper|Dynamic Page|Unrecovered|SEC"
    r"|CE\d|PE\d|PBDMA|Head |BAD_TSG|engmask|CMDre|DBE|SBE|GSP|Context |ROBUST_CHANNEL|C2C|PMU|InfoROM"
    r"| ?caused by previous Xid )"
)
"""How the texts of kernel_rc.c and its callers begin; none of these stands behind a comma inside one of them."""
_UNKNOWN = frozenset({"", "<unknown>", "N/A", "<n/a>", "unknown"})

# \Z, not $: a line end in a name is no end.
_CAUSED_BY = re.compile(r"(?:^|\s)caused by previous Xid ([0-9]{1,5})\Z")
_RESET_FLAGS = re.compile(r"(?<!-)RST: (Yes|No), D-RST: (Yes|No)\Z")
_LONGEST_FLAGS = 48
_RECOVERY_ACTION = re.compile(
    r"GPU recovery action changed from 0x([0-9a-fA-F]{1,8}) \([^)]{0,64}\) to 0x([0-9a-fA-F]{1,8})(?: \([^)]{0,64}\))?"
)
_GPC_TPC = re.compile(r"\(GPC (\d{1,3}), TPC (\d{1,3})")
# RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 …); the unit may be a pair, Link -1 stands for no link.
_NVLINK5 = re.compile(
    r"([A-Z][\w/]{1,40}) {1,8}(Fatal|Nonfatal|Non-fatal) {1,8}XC\d{1,3} i\d{1,3} Link (-?\d{1,3}) ?\("
)
# NVLink: fatal error detected on link 8(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
_NVLINK4 = re.compile(r"NVLink: (fatal )?error detected on link (\d{1,3})(?: ?\()?")
_REGISTER = re.compile(r"0x([0-9a-fA-F]{1,8})(?![0-9a-fA-F])")
_LONGEST_REGISTERS = 256
_NVLINK5_XIDS = range(144, 151)


class Details(NamedTuple):
    """What an Xid's line says beside code and address."""

    pid: int | None
    process: str | None
    text: str
    caused_by: int | None = None
    needs_reset: bool | None = None
    needs_drain: bool | None = None
    recovery_action: int | None = None
    recovery_action_before: int | None = None
    unit: str | None = None
    fatal: bool | None = None
    link: int | None = None
    registers: tuple[int, ...] = ()


def read(code: int, rest: str) -> Details:
    """Take apart what follows the code of an Xid, its comma included."""
    pid, process, said, sure = _split(rest[:_LONGEST_REST])
    said = said.strip()
    text = said.partition("\n")[0][:LONGEST_TEXT]
    if not sure or len(rest) > _LONGEST_REST:
        return Details(pid, process, text)
    flags = said[-_LONGEST_FLAGS:]
    cause = _CAUSED_BY.search(flags)
    reset = _RESET_FLAGS.search(flags)
    told = Details(
        pid,
        process,
        text,
        caused_by=int(cause[1]) if cause else None,
        needs_reset=reset[1] == "Yes" if reset else None,
        needs_drain=reset[2] == "Yes" if reset else None,
    )
    if code == 154:
        return _with_recovery_action(told, said, named="name=" in rest)
    if code == 13:
        where = _GPC_TPC.search(text)
        return told._replace(unit=f"GPC {where[1]}, TPC {where[2]}") if where else told
    if code in _NVLINK5_XIDS:
        return _with_nvlink5(told, said)
    return _with_nvlink4(told, said) if said.startswith("NVLink") else told


def _split(rest: str) -> tuple[int | None, str | None, str, bool]:
    """Pid, process name and the driver's text, and whether the text is sure to hold nothing of the name."""
    process = _PID.match(rest)
    if process is None:
        return None, None, rest.removeprefix(","), True
    pid = int(process[2]) if process[2].isascii() and process[2].isdigit() else None
    rest = rest[process.end() :]
    if not rest.startswith("name="):
        return pid, None, rest, True
    name, said, sure = _cut_name(rest.removeprefix("name="))
    name = name.strip().strip("'")
    return pid, None if name in _UNKNOWN else name[:_LONGEST_NAME], said, sure


def _cut_name(rest: str) -> tuple[str, str, bool]:
    """Part a process's name from the driver's text. A name may hold anything, commas and the driver's words too."""
    starts = [match.span() for match in _DETAILS_START.finditer(rest, 0, _LONGEST_NAME + _LONGEST_FLAGS)]
    if starts:
        end, start = starts[-1]
        return rest[:end], rest[start:], True
    # A text that we do not know: it begins no later than behind the longest name that the kernel keeps.
    end = rest.rfind(", ", 0, _COMM + 2)
    if end < 0:
        end = rest.find(", ")
    if end < 0:
        return rest.rstrip().removesuffix(","), "", False
    return rest[:end], rest[end + 2 :], False


def _with_recovery_action(told: Details, said: str, *, named: bool) -> Details:
    # The words in brackets differ between R565, R570 and R610; the numbers do not.
    change = _RECOVERY_ACTION.match(said)
    if change is None or (named and change.end() != len(said)):
        return told
    return told._replace(recovery_action_before=int(change[1], 16), recovery_action=int(change[2], 16))


def _with_nvlink5(told: Details, said: str) -> Details:
    event = _NVLINK5.match(said)
    if event is None:
        return told
    link = int(event[3])
    return told._replace(
        unit=event[1],
        fatal=event[2] == "Fatal",
        link=link if link >= 0 else None,
        registers=_registers(said, event.end()),
    )


def _with_nvlink4(told: Details, said: str) -> Details:
    event = _NVLINK4.match(said)
    if event is None:
        return told
    return told._replace(fatal=event[1] is not None, link=int(event[2]), registers=_registers(said, event.end()))


def _registers(said: str, start: int) -> tuple[int, ...]:
    """Hexadecimal words up to the bracket that ends the text."""
    if not said.endswith(")") or len(said) - start > _LONGEST_REGISTERS:
        return ()
    return tuple(int(word, 16) for word in _REGISTER.findall(said, start))
