"""Texts of the driver, as logs of real machines have them."""

from __future__ import annotations

DBE = (
    "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 4, subpartition 1"
)
REMAPPED = "Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate."
REMAP_FAILED = "Row Remapper Error: (0x00000002eebc4100) - All reserved rows for bank are remapped"
CONTAINED = "pid=7194, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No"
UNCONTAINED = "pid=7062, name=python3, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"
OFF_THE_BUS = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
TIMEOUT = "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x1 0x8)."
LINK_FAULT = "NVLink: fatal error detected on link 8(0x100, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
LINK_ECHO = "NVLink: fatal error detected on link 3(0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
LINK_MARGINAL = "NVLink: fatal error detected on link 8(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
MMU = "pid={pid}, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted"
WARP = "Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM 0): Out Of Range Address"
LINK_DOWN = "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x00400011 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
RXPIPE = "RLW_RXPIPE Nonfatal XC0 i0 Link 12 (0x04098006 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
PROBE = "NVRM: (PCI ID: 10de:2330) installed in this system has\nNVRM: fallen off the bus and is not responding to"
LINK_UP_FAULT = "Fatal, Link 28 LTSSM Fault Up"
