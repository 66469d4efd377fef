"""Traps that the hardware itself, its exporters and Prometheus set for the alerts about single GPUs and the fleet."""

from __future__ import annotations

from collections.abc import Iterable

from tests.mixin.alert_case import BUSY, IDLE, LONG, Case, Series, of_gpu, rises, stays, text, there
from tests.mixin.alert_cases_health import DOWN, ONE, SPARE_LOW, THROTTLE, UNCORRECTED, fault, info

RETRIES = 'gpu_nvlink_errors_total{error="replay"}'
SLOW = {'gpu_pcie_link_generation{kind="current"}': stays(3), 'gpu_pcie_link_generation{kind="max"}': stays(5)}
APPLICATION = {"class": "application", "isolate": "false"}


def together(parts: Iterable[Series]) -> dict[str, str]:
    """All series of several parts of a story."""
    return {name: values for part in parts for name, values in part.items()}


def sliced(active: float) -> dict[str, str]:
    """A GPU with MIG: nobody says whether it is busy, but what its one slice does."""
    slice_of = {"node": "n1", "gpu": "0", "uuid": "GPU-n1-0", "mig_uuid": "MIG-1"}
    return {
        text(
            "gpu_info", {"node": "n1", "gpu": "0", "uuid": "GPU-n1-0", "name": "H100", "driver_version": "580"}
        ): stays(1),
        text("gpu_owner_share", {**slice_of, "project": "p", "run": "r", "task": "t"}): stays(3 / 7),
        text("gpu_owner_share", {**slice_of, "mig_uuid": "", "project": "(unsliced)"}): stays(4 / 7),
        'gpu_mig_sm_active_seconds_total{gpu="0",uuid="GPU-n1-0",mig_uuid="MIG-1"}': rises(60 * active),
    }


def xid(code: int, values: str, uuid: str = "GPU-1") -> dict[str, str]:
    """A code that dcgm-exporter counts from the first one on."""
    return {text("DCGM_EXP_XID_ERRORS_TOTAL", {"UUID": uuid, "gpu": "0", "hostname": "d1", "xid": str(code)}): values}


def dcgm(uuid: str = "GPU-1", values: str = stays(60)) -> dict[str, str]:
    """A GPU as dcgm-exporter shows it."""
    return {text("DCGM_FI_DEV_GPU_TEMP", {"UUID": uuid, "gpu": "0", "hostname": "d1", "modelName": "H100"}): values}


DCGM_ONE = {"node": "d1", "gpu": "0", "uuid": "GPU-1"}
CASES = [
    # --- Counters that begin, and begin anew.
    Case(
        "GpuHardwareXid",
        "the first one of its code, which is counted from 1 on",
        {**dcgm(), **xid(79, f"_x30 1x{LONG}")},
        "33m",
        [{**DCGM_ONE, "severity": "critical"}],
        config="dcgm",
    ),
    Case(
        "GpuHardwareXid",
        "a GPU that is seen for the first time, and an exporter that is away for an hour, with Xids of the past",
        {**dcgm(values=f"_x30 60x{LONG}"), **xid(79, f"_x30 1x{LONG}")}
        | {**dcgm("GPU-2", f"60x30 _x60 60x{LONG}"), **xid(48, f"1x30 _x60 1x{LONG}", "GPU-2")},
        "33m",
        config="dcgm",
    ),
    Case(
        "GpuHardwareXid",
        "an exporter that comes back after an hour",
        {**dcgm(values=f"60x30 _x60 60x{LONG}"), **xid(48, f"1x30 _x60 1x{LONG}")},
        "94m",
        config="dcgm",
    ),
    Case(
        "GpuHardwareXid",
        "a retired row is a ticket, and a recovery action that was withdrawn nothing",
        {**dcgm(), **xid(63, f"_x30 1x{LONG}"), **xid(154, f"_x30 2x{LONG}")},
        "33m",
        [{**DCGM_ONE, "severity": "warning"}],
        config="dcgm",
    ),
    Case(
        "GpuHardwareXid",
        "beside gpufleet: only of GPUs that it does not see",
        {**dcgm(), **xid(79, f"_x30 1x{LONG}")}
        | {**there(), **dcgm("GPU-n1-0"), **xid(79, f"_x30 1x{LONG}", "GPU-n1-0")}
        | {'gpu_xid_errors_total{gpu="0",uuid="GPU-n1-0",xid="79",class="hardware"}': f"_x30 1x{LONG}"},
        "33m",
        [{**DCGM_ONE, "severity": "critical"}],
        config="both",
    ),
    Case(
        "GpuEccUncorrectable",
        "one more, between two restarts of the exporter",
        {**there(), **of_gpu({UNCORRECTED: f"3x5 _x4 3x5 4x{LONG}"})},
        "18m",
        [ONE],
    ),
    Case(
        "GpuEccUncorrectable",
        "it is remembered for an hour",
        {**there(), **of_gpu({UNCORRECTED: f"0x10 1x{LONG}"})},
        "60m",
        [ONE],
    ),
    Case("GpuEccUncorrectable", "and no longer", {**there(), **of_gpu({UNCORRECTED: f"0x10 1x{LONG}"})}, "100m"),
    Case(
        "GpuEccUncorrectable",
        "the driver's own sum is no second error, and a GPU without ECC has none",
        {**there(), **of_gpu({'gpu_ecc_errors_total{type="uncorrectable",location="total"}': f"0x10 1x{LONG}"})},
        "12m",
    ),
    # --- Links.
    Case(
        "GpuNvlinkDegraded",
        "links that sleep are not down",
        {
            **there(),
            **there(1),
            **of_gpu({'gpu_nvlink_links{state="active"}': stays(2), DOWN: stays(0)}),
            **of_gpu({'gpu_nvlink_links{state="active"}': stays(18), DOWN: stays(0)}, 1),
        },
        "40m",
    ),
    Case(
        "GpuNvlinkDegraded",
        "a board alone has nobody to be compared with",
        {**there(), **of_gpu({DOWN: stays(4)})},
        "40m",
    ),
    Case(
        "GpuNvlinkErrors",
        "all of a model retry, as they always do",
        together({**there(place), **of_gpu({RETRIES: rises(2.5 if place else 10)}, place)} for place in range(8)),
        "100m",
    ),
    Case(
        "GpuNvlinkErrors",
        "all do, but one does far more",
        together({**there(place), **of_gpu({RETRIES: rises(2.5 if place else 50)}, place)} for place in range(8)),
        "100m",
        [ONE],
    ),
    Case(
        "GpuNvlinkErrors",
        "a driver that is loaded anew, and what was counted before it was first seen",
        {
            **there(),
            **there(1),
            **of_gpu({RETRIES: f"5000x70 0x{LONG}"}),
            **of_gpu({RETRIES: f"_x40 5000x{LONG}"}, 1),
        },
        "130m",
    ),
    Case("GpuPcieDegraded", "slow while its slice works", {**sliced(0.5), **of_gpu(SLOW)}, "40m", [ONE]),
    Case("GpuPcieDegraded", "slow while its slice does nothing", {**sliced(0), **of_gpu(SLOW)}, "40m"),
    Case("GpuPcieDegraded", "nobody says whether it is busy", {**there(), **of_gpu(SLOW)}, "40m"),
    Case(
        "GpuPcieDegraded",
        "it is busy for a moment only",
        {**there(), **of_gpu({**SLOW, "gpu_busy_seconds_total": f"0x20 0+54x8 432x{LONG}"})},
        "60m",
    ),
    # --- Heat.
    Case(
        "GpuThermalThrottling",
        "a GPU of which nobody says whether it is busy",
        {**there(), **of_gpu({THROTTLE: rises(30)})},
        "40m",
        [ONE],
    ),
    Case(
        "GpuThermalThrottling",
        "the GPU of a slice that works",
        {**sliced(0.5), **of_gpu({THROTTLE: rises(30)})},
        "40m",
        [ONE],
    ),
    Case(
        "GpuThermalThrottling",
        "an exporter that was loaded anew in between: the counter begins again",
        {**there(), **of_gpu({**BUSY, THROTTLE: f"0+30x20 0+30x{LONG}"})},
        "40m",
        [ONE],
    ),
    Case(
        "GpuAtRisk",
        "the power brake of the room is no sign of the GPU's age",
        {
            **there(),
            **of_gpu(
                {
                    **BUSY,
                    'gpu_clock_event_seconds_total{reason="hw_power_brake_slowdown"}': rises(30),
                    SPARE_LOW: "2x600",
                }
            ),
        },
        "160m",
    ),
    Case(
        "GpuAtRisk",
        "slower than its run's others for hours, and few spare rows",
        together(
            {
                **there(place),
                **of_gpu(
                    {
                        "gpu_sm_clock_hertz": stays(1.6e9 if place == 0 else 1.9e9),
                        "gpu_sm_clock_max_hertz": stays(2e9),
                        SPARE_LOW: stays(1),
                    },
                    place,
                ),
            }
            for place in range(4)
        ),
        "300m",
        [ONE],
    ),
    Case(
        "GpuAtRisk",
        "one of its run that does nothing has a low clock, and few spare rows",
        together(
            {
                **there(place),
                **of_gpu(
                    {
                        **(BUSY if place else IDLE),
                        "gpu_sm_clock_hertz": stays(1.9e9 if place else 3.5e8),
                        "gpu_sm_clock_max_hertz": stays(2e9),
                        SPARE_LOW: stays(1),
                    },
                    place,
                ),
            }
            for place in range(4)
        ),
        "300m",
    ),
    # --- Many nodes.
    Case(
        "GpuFleetWideFault",
        "a program that fails on all nodes of its run",
        together(
            {**info(f"n{place}"), **fault(f"n{place}", str(place), f"_x40 1x{LONG}", **APPLICATION)}
            for place in range(8)
        ),
        "55m",
    ),
    Case(
        "GpuFleetWideFault",
        "nodes that are seen for the first time, with faults of the past",
        together(
            {
                text("gpufleet_node_info", {"node": f"n{place}", "driver_version": "580"}): f"_x40 1x{LONG}",
                **fault(f"n{place}", str(place), f"_x40 1x{LONG}"),
            }
            for place in range(8)
        ),
        "55m",
    ),
    Case(
        "GpuFleetWideFault",
        "nodes that were rebooted with the driver that is at fault",
        together(
            {
                text("gpufleet_node_info", {"node": f"n{place}", "driver_version": "580"}): "1x20 stale",
                text("gpufleet_node_info", {"node": f"n{place}", "driver_version": "595"}): f"_x32 1x{LONG}",
                **fault(f"n{place}", str(place), f"_x35 1x{LONG}"),
            }
            for place in range(8)
        ),
        "45m",
        [{"driver_version": "595", "severity": "critical"}],
    ),
    Case(
        "GpuFleetWideFault",
        "five of a thousand nodes are within what is usual",
        together(
            {**info(f"n{place}"), **(fault(f"n{place}", str(place), f"_x40 1x{LONG}") if place < 5 else {})}
            for place in range(300)
        ),
        "55m",
    ),
    Case(
        "GpuFleetWideFault",
        "the alert stays an hour, though the faults are no longer new",
        together({**info(f"n{place}"), **fault(f"n{place}", str(place), f"_x40 1x{LONG}")} for place in range(8)),
        "100m",
        [{"driver_version": "580", "severity": "critical"}],
    ),
    Case(
        "GpuQuarantineBudgetExhausted",
        "none may be, and none is",
        {"gpufleet_quarantine_nodes": stays(0), "gpufleet_quarantine_budget": stays(0)},
        "20m",
    ),
    Case(
        "GpusMissing",
        "MIG is switched on: slices are no GPUs",
        {
            **info("n1"),
            'gpu_count_expected{instance="n1:9837"}': stays(8),
            'gpu_count_visible{instance="n1:9837"}': stays(8),
            'gpu_mig_info{gpu="0",uuid="GPU-n1-0",mig_uuid="MIG-1",instance="n1:9837"}': stays(1),
        },
        "5m",
    ),
    Case(
        "GpusMissing",
        "one is taken out on purpose, and the node expects one less",
        {
            **info("n1"),
            'gpu_count_expected{instance="n1:9837"}': f"8x10 7x{LONG}",
            'gpu_count_visible{instance="n1:9837"}': f"8x10 7x{LONG}",
        },
        "15m",
    ),
    Case(
        "GpusMissing",
        "two exporters on one node, and one that has moved to another address",
        {
            **info("n1"),
            'gpufleet_node_info{node="n1",driver_version="580",instance="other:9837"}': f"_x5 1x{LONG}",
            'gpu_count_expected{instance="n1:9837"}': stays(8),
            'gpu_count_visible{instance="n1:9837"}': stays(7),
            'gpu_count_expected{instance="other:9837"}': f"_x5 8x{LONG}",
            'gpu_count_visible{instance="other:9837"}': f"_x5 7x{LONG}",
        },
        "10m",
        [{"node": "n1"}],
    ),
    Case(
        "GpuThermalThrottling",
        "an idle GPU beside a busy one of the same node",
        {**there(), **there(1), **of_gpu({**IDLE, THROTTLE: rises(30)}), **of_gpu(BUSY, 1)},
        "40m",
    ),
]
