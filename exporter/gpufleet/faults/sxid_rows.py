"""The SXids of NVSwitches of the A100 and H100 generations: what each says, and how its severity is told.

NVLink 5 systems are expected to report through Xid 144 to 150 instead. Where the Fabric Manager guide and the driver
disagree: 19055, 19057 and 19059 (corrected errors that the driver calls fatal) go by the word in the line; 19061, 19064
and 19067 (uncorrectable errors that it calls non-fatal) are a case for a reset when idle.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gpufleet.faults.entry import FaultClass

HEADER = "https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/src/common/nvswitch/interface/ctrl_dev_nvswitch.h"
GUIDE = f"{HEADER} ; https://docs.nvidia.com/datacenter/tesla/pdf/fabric-manager-user-guide.pdf"

HARDWARE, DRIVER, INFORMATIONAL = FaultClass.HARDWARE, FaultClass.DRIVER_OR_FIRMWARE, FaultClass.INFORMATIONAL


class Way(Enum):
    """How severe a code is."""

    WORD = "the word in the line says"
    WATCH = "not fatal, but jobs may suffer"
    IDLE = "reset when idle"
    COUNT = "corrected"
    NOTE = "a notice"
    SERVICE = "the switch or a module failed"
    FABRIC = "always fatal, for the whole switch"


WORD, WATCH, IDLE, COUNT, NOTE, SERVICE, FABRIC = Way


class Row(NamedTuple):
    """Facts that hold for every code named."""

    codes: str
    way: Way
    fault_class: FaultClass
    source: str
    words: str


UNITS = {
    10: "host interface",
    11: "port ingress",
    12: "port egress",
    13: "port flush state",
    14: "port tag state",
    15: "port routing",
    16: "port",
    17: "link control",
    18: "link interface",
    19: "link transaction layer",
    20: "link physical layer",
    21: "old crossbar",
    22: "link controller",
    23: "crossbar",
    24: "port source tracker",
    25: "link interface",
    26: "on-die engine",
    27: "cable module interface",
    28: "module temperature",
    29: "port multicast state",
    30: "port reduction state",
}
"""By the thousands of the code."""

ROWS = tuple(
    Row(*each)
    for each in (
        ("10001", WATCH, DRIVER, GUIDE, "a register access was refused"),
        ("10002", WATCH, DRIVER, GUIDE, "an operation took too long"),
        ("10004", NOTE, HARDWARE, GUIDE, "the switch is too warm and slows down"),
        ("10005", NOTE, INFORMATIONAL, GUIDE, "the switch is cool again"),
        ("10006", SERVICE, HARDWARE, HEADER, "the switch shut down for heat"),
        ("10007", SERVICE, HARDWARE, HEADER, "registers could not be read or written"),
        ("10008", SERVICE, HARDWARE, HEADER, "the firmware did not start"),
        ("10010", NOTE, DRIVER, HEADER, "a conflict about trusted NVLink"),
        ("11001", WORD, HARDWARE, GUIDE, "a packet with an unknown command"),
        ("11004", WATCH, DRIVER, GUIDE, "a packet from outside its partition: the fabric is configured wrongly"),
        ("11009", WORD, HARDWARE, GUIDE, "a packet on a wrong virtual channel"),
        ("11011,11031-11033", WATCH, DRIVER, HEADER, "a requester that does not fit its context"),
        ("11012,11021-11023,11040-11042", COUNT, HARDWARE, GUIDE, "many corrected memory errors"),
        ("11013,11017-11019,11028-11030", WORD, HARDWARE, GUIDE, "an uncorrectable memory error"),
        ("11014,11037-11039", WATCH, DRIVER, HEADER, "an address outside the mapped range"),
        ("11015,11016", WATCH, DRIVER, HEADER, "a wrong entry in a routing table"),
        ("11020", WORD, HARDWARE, GUIDE, "a parity error"),
        ("11024,11045-11047", WATCH, DRIVER, HEADER, "an address of a type that is not allowed"),
        ("11025-11027", WATCH, DRIVER, HEADER, "an index outside its table"),
        ("11034-11036", WATCH, DRIVER, HEADER, "access control refused a packet"),
        ("11043", WATCH, DRIVER, HEADER, "a multicast command to a single address"),
        ("11044", WATCH, DRIVER, HEADER, "a read from reflected multicast memory"),
        ("12001", WORD, HARDWARE, GUIDE, "a buffer overran"),
        ("12002", WORD, HARDWARE, GUIDE, "a packet could not be routed"),
        ("12014", WORD, HARDWARE, HEADER, "the answer that a request is not supported was dropped"),
        ("12020", FABRIC, HARDWARE, GUIDE, "packets out of sequence"),
        ("12021,12023,12036,12038,12040,12042,12044,12046", COUNT, HARDWARE, GUIDE, "many corrected memory errors"),
        ("12022,12024,12039,12041,12043,12047", WORD, HARDWARE, GUIDE, "an uncorrectable memory error"),
        ("12025", WORD, HARDWARE, GUIDE, "too many flow-control credits"),
        ("12026,12027", WORD, HARDWARE, GUIDE, "request and answer do not fit"),
        ("12028", WATCH, DRIVER, GUIDE, "the far end refused an access; jobs get Xid 45 or hang"),
        ("12029", WORD, HARDWARE, HEADER, "the far end answered with a hardware error"),
        ("12030,12031,12035", WORD, HARDWARE, GUIDE, "a parity error"),
        ("12032", WORD, HARDWARE, GUIDE, "a flit of the wrong type"),
        ("12033", WORD, HARDWARE, HEADER, "flow-control credit did not come back: mostly the GPU at the far end hangs"),
        ("12034", WORD, HARDWARE, HEADER, "a packet on a wrong virtual channel"),
        ("12037,12045", WATCH, HARDWARE, HEADER, "an uncorrectable memory error"),
        ("12048", WATCH, HARDWARE, HEADER, "a parity error"),
        ("12049", WATCH, HARDWARE, HEADER, "a flit of the wrong type"),
        ("12050,12051", WATCH, HARDWARE, HEADER, "a wrong number of answers"),
        ("14001,14002", WORD, HARDWARE, HEADER, "a buffer overran"),
        ("14007,14009", COUNT, HARDWARE, HEADER, "many corrected memory errors"),
        ("14008,14010", WORD, HARDWARE, HEADER, "an uncorrectable memory error"),
        ("14017", WORD, HARDWARE, GUIDE, "a request waited too long: mostly the far end hangs"),
        ("14018", WORD, HARDWARE, HEADER, "an answer without a request"),
        ("15001", WORD, HARDWARE, GUIDE, "a buffer overran"),
        ("15002", WATCH, HARDWARE, HEADER, "no way out is programmed for a packet"),
        ("15003", WATCH, HARDWARE, HEADER, "a packet could not be routed"),
        ("15006", WORD, HARDWARE, GUIDE, "a reserved value at the end of a transaction"),
        ("15009,15012,15015,15017,15019", WORD, HARDWARE, GUIDE, "an uncorrectable memory error"),
        ("15010,15013", WORD, HARDWARE, GUIDE, "a parity error"),
        ("15011,15018", COUNT, HARDWARE, GUIDE, "many corrected memory errors"),
        ("15020", WATCH, HARDWARE, HEADER, "a multicast group that is not programmed"),
        ("18018,18019", WORD, HARDWARE, HEADER, "an operation took too long"),
        ("18020", WORD, HARDWARE, HEADER, "a clock change that is not allowed"),
        ("19004,19013-19015,19046,19053", WORD, HARDWARE, HEADER, "a parity error"),
        ("19009,19039", WORD, HARDWARE, HEADER, "poisoned data"),
        ("19018-19023,19026-19028,19030-19033", WORD, HARDWARE, HEADER, "a packet that breaks the protocol"),
        ("19024", WORD, DRIVER, HEADER, "an address of a reserved type"),
        ("19036,19037", WORD, HARDWARE, HEADER, "the receiver overran"),
        ("19038", WORD, HARDWARE, HEADER, "the sender cut a packet short"),
        ("19047,19048,19054,19056,19058,19060,19063,19066", WORD, HARDWARE, GUIDE, "an uncorrectable memory error"),
        ("19069,19070", WORD, HARDWARE, GUIDE, "an uncorrectable memory error"),
        ("19049,19055,19057,19059", WORD, HARDWARE, GUIDE, "many corrected memory errors"),
        ("19050", WORD, HARDWARE, HEADER, "an error while sending"),
        ("19051,19081", WORD, HARDWARE, HEADER, "the answer that a request is not supported"),
        ("19052", WORD, DRIVER, HEADER, "a register access was refused"),
        ("19061,19064,19067", IDLE, HARDWARE, GUIDE, "an uncorrectable memory error"),
        ("19062,19065,19068,19071", COUNT, HARDWARE, GUIDE, "many corrected memory errors"),
        ("19072-19079,19084", WATCH, HARDWARE, GUIDE, "an operation took too long"),
        ("19080,19083", WORD, HARDWARE, HEADER, "an error while receiving"),
        ("19082", WATCH, DRIVER, HEADER, "a register access was refused"),
        ("20001", COUNT, HARDWARE, GUIDE, "one link sends many packets twice"),
        ("20002", WATCH, HARDWARE, HEADER, "the sender had to recover the link"),
        ("20004-20006", WORD, HARDWARE, HEADER, "an error while sending"),
        ("20007,20008", WORD, HARDWARE, HEADER, "an error while receiving"),
        ("20009", COUNT, HARDWARE, GUIDE, "many corrected symbol errors on one link"),
        ("20010", WATCH, HARDWARE, HEADER, "many errors on one link"),
        ("20011", WATCH, HARDWARE, HEADER, "an error while receiving"),
        ("20012", WATCH, HARDWARE, GUIDE, "a wrong packet checksum"),
        ("20014", WORD, HARDWARE, HEADER, "the link broke its state protocol"),
        ("20034", WORD, HARDWARE, GUIDE, "a link fell: the GPU or the cable at its far end is gone"),
        ("20035", WORD, HARDWARE, HEADER, "a fault while the link was down"),
        ("20036", WORD, HARDWARE, HEADER, "a fault of the wires"),
        ("20037,20038", WORD, HARDWARE, HEADER, "an error on the wires"),
        ("22003", FABRIC, HARDWARE, GUIDE, "the controller stopped"),
        ("22006", WATCH, HARDWARE, HEADER, "a link command failed"),
        ("22007", WATCH, HARDWARE, HEADER, "an operation took too long"),
        ("22010", FABRIC, HARDWARE, HEADER, "the controller's watchdog expired"),
        ("22011", FABRIC, HARDWARE, GUIDE, "the controller could not reach outside"),
        ("22012", WORD, HARDWARE, GUIDE, "a fatal interrupt of the link"),
        ("22013", COUNT, INFORMATIONAL, GUIDE, "a notice while links start, harmless"),
        ("23001,23010", FABRIC, HARDWARE, GUIDE, "a buffer overran"),
        ("23002,23011", FABRIC, HARDWARE, GUIDE, "a buffer ran empty"),
        ("23003,23012", FABRIC, HARDWARE, GUIDE, "too many flow-control credits"),
        ("23004,23013", FABRIC, HARDWARE, GUIDE, "too few flow-control credits"),
        ("23005-23007,23014-23016", FABRIC, HARDWARE, GUIDE, "packets that break the rule for bursts"),
        ("23008", FABRIC, HARDWARE, GUIDE, "a destination that does not exist"),
        ("23009,23017", FABRIC, HARDWARE, GUIDE, "a parity error"),
        ("24001,24003", COUNT, HARDWARE, GUIDE, "many corrected memory errors"),
        ("24004,24006", WORD, HARDWARE, GUIDE, "an uncorrectable memory error"),
        ("24007", WORD, HARDWARE, GUIDE, "a request without an answer"),
        ("24008", WORD, HARDWARE, HEADER, "two requests with one tag"),
        ("24009,24010", WORD, HARDWARE, HEADER, "a packet that breaks the protocol"),
        ("25001,25004", WATCH, DRIVER, HEADER, "a change of link state was refused or late"),
        ("25002", WATCH, HARDWARE, HEADER, "a request to the link controller failed"),
        ("25003", WATCH, DRIVER, HEADER, "a request with a reserved value"),
        ("25005", WATCH, HARDWARE, HEADER, "an operation took too long"),
        ("25006", WATCH, DRIVER, HEADER, "a write to a locked register"),
        ("25007", WORD, HARDWARE, HEADER, "sleep was asked for while the link was in use"),
        ("25008,25009", WORD, HARDWARE, HEADER, "an operation took too long"),
        ("25010", SERVICE, HARDWARE, HEADER, "link training failed"),
        ("26001", SERVICE, HARDWARE, HEADER, "a reset failed or was not expected"),
        ("26002", SERVICE, HARDWARE, HEADER, "the engine did not start"),
        ("26003", NOTE, HARDWARE, HEADER, "a command could not be given"),
        ("26004", NOTE, HARDWARE, HEADER, "an operation took too long"),
        ("26006", SERVICE, HARDWARE, HEADER, "the engine stopped"),
        ("26007", SERVICE, HARDWARE, HEADER, "the engine could not reach outside"),
        ("26008", SERVICE, HARDWARE, HEADER, "the engine's watchdog expired"),
        ("27001", SERVICE, HARDWARE, HEADER, "a reset failed or was not expected"),
        ("27002", SERVICE, HARDWARE, HEADER, "it did not initialise"),
        ("27004", SERVICE, HARDWARE, HEADER, "it shut down"),
        ("27005", SERVICE, HARDWARE, HEADER, "a cable or optical module has a fault"),
        ("27006", SERVICE, HARDWARE, HEADER, "a module did not start"),
        ("27007", SERVICE, HARDWARE, HEADER, "a module runs from its recovery image"),
        ("28001", NOTE, HARDWARE, HEADER, "a module is too warm"),
        ("28002,28004", NOTE, INFORMATIONAL, HEADER, "a module is cool again"),
        ("28003", SERVICE, HARDWARE, HEADER, "a module shut down for heat"),
        ("28005", SERVICE, HARDWARE, HEADER, "the thermal controller is silent, modules shut down"),
        ("29001,29003", COUNT, HARDWARE, HEADER, "many corrected memory errors"),
        ("29002,29004", WORD, HARDWARE, HEADER, "an uncorrectable memory error"),
        ("29005", WORD, HARDWARE, HEADER, "an entry was overwritten while in use"),
        ("29006", WATCH, HARDWARE, HEADER, "a collective operation took too long"),
        ("30001,30003", COUNT, HARDWARE, HEADER, "many corrected memory errors"),
        ("30002,30004", WORD, HARDWARE, HEADER, "an uncorrectable memory error"),
        ("30005", WORD, HARDWARE, HEADER, "an entry was overwritten while in use"),
        ("30006", WATCH, HARDWARE, HEADER, "a collective operation took too long"),
    )
)

RETIRED = Row(
    "10003,10009,11002-11003,11005-11008,11010,12003-12013,12015-12019,13001-13008,14003-14006,"
    "14011-14016,15004-15005,15007-15008,15014,15016,16001-16003,17001-17008,18001-18017,19001-19003,"
    "19005-19008,19010-19012,19016-19017,19025,19029,19034-19035,19040-19045,20003,20013,20015-20033,"
    "21001-21010,22001-22002,22004-22005,22008-22009,24002,24005,26005,27003",
    WORD,
    HARDWARE,
    HEADER,
    "a number that only switches of the first generation print",
)
