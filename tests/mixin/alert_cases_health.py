"""Cases of the alerts about single GPUs and the fleet's hardware."""

from __future__ import annotations

from tests.mixin.alert_case import BUSY, IDLE, LONG, Case, of_gpu, rises, stays, text, there

ONE = {"node": "n1", "gpu": "0", "uuid": "GPU-n1-0", "driver_version": "580"}
TWO_HOLDERS = {
    **there(run="a"),
    text(
        "gpu_owner_share",
        {"node": "n1", "gpu": "0", "uuid": "GPU-n1-0", "instance": "n1:9837", "project": "p", "run": "b", "task": "t"},
    ): stays(0.5),
}
TWO_EXPORTERS = {
    **there(),
    'gpu_info{node="n1",gpu="0",uuid="GPU-n1-0",instance="other:9837",name="H100",driver_version="580"}': stays(1),
}
THROTTLE = 'gpu_clock_event_seconds_total{reason="hw_thermal_slowdown"}'
BRAKE = 'gpu_clock_event_seconds_total{reason="hw_power_brake_slowdown"}'


def fault(node: str, incident: str, values: str, **labels: str) -> dict[str, str]:
    """An incident that is open."""
    known = {
        "node": node,
        "gpu": "0",
        "uuid": f"GPU-{node}-0",
        "incident": incident,
        "fault": "79",
        "class": "hardware",
    }
    return {text("gpu_fault_active", {**known, "isolate": "true", **labels}): values}


def info(node: str, driver: str = "580") -> dict[str, str]:
    """A node's exporter."""
    return {text("gpufleet_node_info", {"node": node, "driver_version": driver, "instance": f"{node}:9837"}): stays(1)}


def flags(name: str, alert: str, minutes: int) -> list[Case]:
    """A flag that is set for long enough, for too short, and not at all."""
    return [
        Case(alert, "the flag is set", {**there(), **of_gpu({name: stays(1)})}, f"{minutes}m", [ONE]),
        Case(alert, "it is set a moment", {**there(), **of_gpu({name: f"0x{minutes - 3} 1x{LONG}"})}, f"{minutes}m"),
        Case(alert, "it is not set", {**there(), **of_gpu({name: stays(0)})}, f"{minutes}m"),
        Case(alert, "a GPU that does not report it", there(), f"{minutes}m"),
        Case(alert, "two holders are one alert", {**TWO_HOLDERS, **of_gpu({name: stays(1)})}, f"{minutes}m", [ONE]),
        Case(alert, "two exporters are one alert", {**TWO_EXPORTERS, **of_gpu({name: stays(1)})}, f"{minutes}m", [ONE]),
        Case(
            alert,
            "a holder that changes does not begin it anew",
            {**there(run="a", values=f"1x{minutes // 2}"), **there(run="b", values=f"_x{minutes // 2} 1x{LONG}")}
            | {next(iter(there())): stays(1)}
            | of_gpu({name: stays(1)}),
            f"{minutes}m",
            [ONE],
        ),
    ]


SPARE_NONE = 'gpu_row_remap_banks{availability="none"}'
SPARE_LOW = 'gpu_row_remap_banks{availability="low"}'
CORRECTED = 'gpu_ecc_errors_total{type="correctable",location="dram"}'
UNCORRECTED = 'gpu_ecc_errors_total{type="uncorrectable",location="dram"}'
DOWN = 'gpu_nvlink_links{state="inactive"}'

CASES = [
    *flags("gpu_row_remap_failure", "GpuRowRemapFailed", 12),
    *flags("gpu_row_remap_pending", "GpuRowRemapPending", 40),
    *flags("gpu_ecc_sram_threshold_exceeded", "GpuSramThresholdExceeded", 12),
    Case("GpuNotAnswering", "it hangs", {**there(), **of_gpu({'gpu_state{state="hung"}': stays(1)})}, "10m", [ONE]),
    Case(
        "GpuNotAnswering",
        "one hangs and blocks the other",
        {
            **there(),
            **there(1),
            **of_gpu({'gpu_state{state="hung"}': stays(1), 'gpu_state{state="ok"}': stays(0)}),
            **of_gpu({'gpu_state{state="driver_blocked"}': stays(1)}, 1),
        },
        "10m",
        [ONE, {**ONE, "gpu": "1", "uuid": "GPU-n1-1"}],
    ),
    Case("GpuNotAnswering", "it is well", {**there(), **of_gpu({'gpu_state{state="hung"}': stays(0)})}, "10m"),
    Case(
        "GpuNotAnswering", "lost is another alert", {**there(), **of_gpu({'gpu_state{state="lost"}': stays(1)})}, "10m"
    ),
    Case("GpuLost", "off the bus", {**there(), **of_gpu({'gpu_state{state="lost"}': stays(1)})}, "10m", [ONE]),
    Case("GpuLost", "gone", {**there(), **of_gpu({'gpu_state{state="gone"}': stays(1)})}, "10m", [ONE]),
    Case(
        "GpuLost",
        "taken out on purpose: with its identity the series end",
        {**there(values="1x10"), **of_gpu({'gpu_state{state="gone"}': "0x5 1x5"})},
        "30m",
    ),
    Case("GpuLost", "it only hangs", {**there(), **of_gpu({'gpu_state{state="hung"}': stays(1)})}, "10m"),
    Case(
        "GpusMissing",
        "seven of eight answer",
        {
            **info("n1"),
            'gpu_count_expected{instance="n1:9837"}': stays(8),
            'gpu_count_visible{instance="n1:9837"}': stays(7),
        },
        "5m",
        [{"node": "n1"}],
    ),
    Case(
        "GpusMissing",
        "all answer, and a quiesced node says nothing of it",
        {
            **info("n1"),
            **info("n2"),
            'gpu_count_expected{instance="n1:9837"}': stays(8),
            'gpu_count_visible{instance="n1:9837"}': stays(8),
            'gpu_count_expected{instance="n2:9837"}': stays(8),
        },
        "5m",
    ),
    Case(
        "GpuRecoveryActionRequired",
        "a reset is a ticket",
        {
            **there(),
            **of_gpu(
                {'gpu_recovery_action{action="none"}': stays(0), 'gpu_recovery_action{action="gpu_reset"}': stays(1)}
            ),
        },
        "5m",
        [{**ONE, "severity": "warning"}],
    ),
    Case(
        "GpuRecoveryActionRequired",
        "a reboot is a page",
        {
            **there(),
            **of_gpu(
                {'gpu_recovery_action{action="none"}': stays(0), 'gpu_recovery_action{action="node_reboot"}': stays(1)}
            ),
        },
        "5m",
        [{**ONE, "severity": "critical"}],
    ),
    Case(
        "GpuRecoveryActionRequired",
        "nothing to do, and a driver that does not say",
        {
            **there(),
            **there(1),
            **of_gpu(
                {'gpu_recovery_action{action="none"}': stays(1), 'gpu_recovery_action{action="node_reboot"}': stays(0)}
            ),
        },
        "5m",
    ),
    Case(
        "GpuEccUncorrectable",
        "one error",
        {**there(), **of_gpu({UNCORRECTED: f"0x10 1x{LONG}"})},
        "12m",
        [ONE],
    ),
    Case(
        "GpuEccUncorrectable",
        "errors of the past, and a driver that was loaded anew",
        {**there(), **there(1), **of_gpu({UNCORRECTED: stays(4)}), **of_gpu({UNCORRECTED: f"4x10 0x{LONG}"}, 1)},
        "12m",
    ),
    Case(
        "GpuEccUncorrectable",
        "an exporter that was away for a while and goes on counting",
        {**there(), **of_gpu({UNCORRECTED: f"3x5 _x4 3x{LONG}"})},
        "12m",
    ),
    Case(
        "GpuNvlinkDegraded",
        "more are down than of its model's best, and another model that has more down anyway",
        {
            **there(),
            **there(1),
            **there(0, "n2"),
            'gpu_info{gpu="0",uuid="GPU-n3-0",instance="n3:9837",node="n3",name="A40",driver_version="580"}': stays(1),
            **of_gpu({DOWN: stays(2)}),
            **of_gpu({DOWN: stays(0)}, 1),
            **of_gpu({DOWN: stays(0)}, 0, "n2"),
            **of_gpu({DOWN: stays(8)}, 0, "n3"),
        },
        "40m",
        [ONE],
    ),
    Case(
        "GpuNvlinkDegraded",
        "all of a model have the same",
        {**there(), **there(1), **of_gpu({DOWN: stays(6)}), **of_gpu({DOWN: stays(6)}, 1)},
        "40m",
    ),
    Case(
        "GpuNvlinkErrors",
        "it recovers all the time",
        {**there(), **of_gpu({'gpu_nvlink_errors_total{error="replay"}': rises(3)})},
        "90m",
        [ONE],
    ),
    Case(
        "GpuNvlinkErrors",
        "it recovers now and then",
        {**there(), **of_gpu({'gpu_nvlink_errors_total{error="replay"}': rises(1)})},
        "90m",
    ),
    Case(
        "GpuPcieDegraded",
        "half the lanes",
        {
            **there(),
            **of_gpu({'gpu_pcie_link_width{kind="current"}': stays(8), 'gpu_pcie_link_width{kind="max"}': stays(16)}),
        },
        "30m",
        [ONE],
    ),
    Case(
        "GpuPcieDegraded",
        "slow while busy",
        {
            **there(),
            **of_gpu(
                {
                    **BUSY,
                    'gpu_pcie_link_generation{kind="current"}': stays(3),
                    'gpu_pcie_link_generation{kind="max"}': stays(5),
                }
            ),
        },
        "40m",
        [ONE],
    ),
    Case(
        "GpuPcieDegraded",
        "slow while idle, as it is meant to be",
        {
            **there(),
            **of_gpu(
                {
                    **IDLE,
                    'gpu_pcie_link_generation{kind="current"}': stays(1),
                    'gpu_pcie_link_generation{kind="max"}': stays(5),
                }
            ),
        },
        "40m",
    ),
    Case(
        "GpuThermalThrottling", "half of the time", {**there(), **of_gpu({**BUSY, THROTTLE: rises(30)})}, "40m", [ONE]
    ),
    Case("GpuThermalThrottling", "a tenth of the time", {**there(), **of_gpu({**BUSY, THROTTLE: rises(6)})}, "40m"),
    Case("GpuThermalThrottling", "with nothing to do", {**there(), **of_gpu({**IDLE, THROTTLE: rises(30)})}, "40m"),
    Case(
        "GpuThermalThrottling",
        "the power cap is no heat",
        {**there(), **of_gpu({**BUSY, 'gpu_clock_event_seconds_total{reason="sw_power_cap"}': rises(50)})},
        "40m",
    ),
    Case(
        "GpuPowerBrake",
        "one node is a ticket",
        {**there(), **of_gpu({BRAKE: rises(6)})},
        "30m",
        [{**ONE, "severity": "warning"}],
    ),
    Case(
        "GpuPowerBrake",
        "three nodes are the room",
        {
            key: value
            for node in ("n1", "n2", "n3")
            for key, value in {**there(0, node), **of_gpu({BRAKE: rises(6)}, 0, node)}.items()
        },
        "30m",
        [{**ONE, "node": node, "uuid": f"GPU-{node}-0", "severity": "warning"} for node in ("n1", "n2", "n3")]
        + [{"severity": "critical"}],
    ),
    Case("GpuPowerBrake", "a moment now and then", {**there(), **of_gpu({BRAKE: rises(2)})}, "30m"),
    Case(
        "GpuApplicationFault",
        "a program's own",
        fault("n1", "1", stays(1), **{"class": "application", "isolate": "false", "fault": "31", "run": "r"}),
        "5m",
        [{"node": "n1", "gpu": "0", "fault": "31", "run": "r", "severity": "info", "team": "ml"}],
    ),
    Case("GpuApplicationFault", "hardware", fault("n1", "1", stays(1)), "5m"),
    Case(
        "GpuApplicationFault",
        "one that isolates is an incident",
        fault("n1", "1", stays(1), **{"class": "application", "isolate": "true"}),
        "5m",
    ),
    Case(
        "GpuAtRisk",
        "no spare row in a bank",
        {**there(), **of_gpu({SPARE_NONE: stays(1)})},
        "80m",
        [ONE],
    ),
    Case(
        "GpuAtRisk",
        "few spare rows, and heat for hours",
        {**there(), **of_gpu({**BUSY, THROTTLE: rises(30), SPARE_LOW: stays(2)})},
        "160m",
        [ONE],
    ),
    Case("GpuAtRisk", "one sign alone", {**there(), **of_gpu({SPARE_LOW: stays(2)})}, "80m"),
    Case(
        "GpuAtRisk",
        "two incidents within days",
        {**there(), **fault("n1", "1", "1x10"), **fault("n1", "2", "_x20 1x10")},
        "120m",
        [ONE],
    ),
    Case(
        "GpuAtRisk",
        "one incident, told by two exporters",
        {**TWO_EXPORTERS, **fault("n1", "1", "1x10"), **fault("n1", "1", "1x10", instance="o")},
        "120m",
    ),
    Case(
        "GpuAtRisk",
        "two faults of programs",
        {
            **there(),
            **fault("n1", "1", "1x10", **{"class": "application"}),
            **fault("n1", "2", "_x20 1x10", **{"class": "application"}),
        },
        "120m",
    ),
    Case(
        "GpuFleetWideFault",
        "five nodes with one driver",
        {
            key: value
            for place in range(8)
            for key, value in {
                **info(f"n{place}"),
                **(fault(f"n{place}", str(place), f"_x{40 + place} 1x{LONG}") if place < 5 else {}),
            }.items()
        },
        "55m",
        [{"driver_version": "580", "severity": "critical"}],
    ),
    Case(
        "GpuFleetWideFault",
        "five nodes of two drivers, and old faults",
        {
            key: value
            for place in range(10)
            for key, value in {
                **info(f"n{place}", "580" if place < 3 else "595"),
                **fault(f"n{place}", str(place), f"_x{40 if place < 6 else 0} 1x{LONG}"),
            }.items()
        },
        "55m",
    ),
    Case(
        "GpuFleetWideFault",
        "two incidents of each of four nodes",
        {
            key: value
            for place in range(4)
            for key, value in {
                **info(f"n{place}"),
                **fault(f"n{place}", f"{place}a", f"_x40 1x{LONG}"),
                **fault(f"n{place}", f"{place}b", f"_x41 1x{LONG}"),
            }.items()
        },
        "55m",
    ),
    Case(
        "GpuQuarantineBudgetExhausted",
        "all that may be are out",
        {"gpufleet_quarantine_nodes": stays(3), "gpufleet_quarantine_budget": stays(3)},
        "20m",
        [{"severity": "critical"}],
    ),
    Case(
        "GpuQuarantineBudgetExhausted",
        "one more may be",
        {"gpufleet_quarantine_nodes": stays(2), "gpufleet_quarantine_budget": stays(3)},
        "20m",
    ),
    Case(
        "GpuQuarantineBreakerOpen",
        "open",
        {"gpufleet_quarantine_breaker_open": stays(1)},
        "5m",
        [{"severity": "critical"}],
    ),
    Case("GpuQuarantineBreakerOpen", "closed", {"gpufleet_quarantine_breaker_open": stays(0)}, "5m"),
    Case(
        "GpuHardwareXid",
        "dcgm-exporter alone",
        {
            'DCGM_EXP_XID_ERRORS_TOTAL{UUID="GPU-1",gpu="0",hostname="n1",xid="79"}': f"0x10 1x{LONG}",
            'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1",gpu="0",hostname="n1"}': stays(60),
        },
        "15m",
        [{"node": "n1", "gpu": "0", "uuid": "GPU-1"}],
        config="dcgm",
    ),
    Case(
        "GpuHardwareXid",
        "one that programs cause",
        {
            'DCGM_EXP_XID_ERRORS_TOTAL{UUID="GPU-1",gpu="0",hostname="n1",xid="31"}': f"0x10 1x{LONG}",
            'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1",gpu="0",hostname="n1"}': stays(60),
        },
        "15m",
        config="dcgm",
    ),
]
