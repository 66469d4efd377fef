"""What connects a GPU to the host, to its peers and to the network."""

from __future__ import annotations

from gpufleet.metrics.family import Facts, Group, counter, gauge, gpu_counter, gpu_gauge

_NVLINK = "boards with NVLink; not while MIG is enabled"
_NVLINK_ERRORS = (
    "crc",
    "replay",
    "recovery",
    "ecc",
    "malformed_packet",
    "buffer_overrun",
    "receive",
    "receive_remote",
    "receive_general",
    "local_integrity",
    "transmit_discard",
    "recovery_failed",
    "recovery_total",
    "effective",
    "symbol",
)
# What a bad cable or connector makes. The others are made behind the link: by a peer, a switch or too much traffic.
_LINK_LAYER_ERRORS = (
    "crc",
    "replay",
    "recovery",
    "ecc",
    "local_integrity",
    "recovery_failed",
    "recovery_total",
    "effective",
    "symbol",
)
_NVLINK_ERROR_SETS = f"{_NVLINK}. crc, replay, recovery and ecc up to Hopper, the others from Blackwell"
_NOW_AND_MOST = ("current", "max")

PCIE = Group(
    "PCIe",
    "An idle GPU lowers its link generation by itself: alert on it only while the GPU is busy. The width should never "
    "change.",
    (
        gpu_gauge(
            "gpu_pcie_link_generation",
            "PCIe generation of the link, now and at most.",
            "kind",
            members=_NOW_AND_MOST,
        ),
        gpu_gauge("gpu_pcie_link_width", "PCIe lanes of the link, now and at most.", "kind", members=_NOW_AND_MOST),
        gpu_counter("gpu_pcie_replays_total", "PCIe packets that had to be sent again.", core=True),
        gpu_gauge(
            "gpu_pcie_transmit_bytes_per_second",
            "Data sent by the GPU over PCIe.",
            reported_by="Hopper and newer",
        ),
        gpu_gauge(
            "gpu_pcie_receive_bytes_per_second",
            "Data received by the GPU over PCIe.",
            reported_by="Hopper and newer",
        ),
    ),
)

NVLINK = Group(
    "NVLink and fabric",
    "Totals over the links of a GPU, and of errors also the count of the worst link, since one bad cable hides in a "
    "total. With `--metrics.nvlink=links` traffic and errors are shown for each link (label `link`), not as totals.",
    (
        gpu_gauge(
            "gpu_nvlink_links",
            "NVLink links of the GPU in this state.",
            "state",
            members=("active", "inactive", "sleep"),
            reported_by=_NVLINK,
            core=True,
            core_members=("active", "inactive"),
        ),
        gpu_counter(
            "gpu_nvlink_transmit_bytes_total", "Data sent over NVLink.", "link", reported_by=_NVLINK, core=True
        ),
        gpu_counter(
            "gpu_nvlink_receive_bytes_total", "Data received over NVLink.", "link", reported_by=_NVLINK, core=True
        ),
        gpu_counter(
            "gpu_nvlink_errors_total",
            "NVLink errors and recoveries.",
            "error",
            "link",
            members=_NVLINK_ERRORS,
            reported_by=_NVLINK_ERROR_SETS,
        ),
        gpu_counter(
            "gpu_nvlink_worst_link_errors_total",
            "NVLink errors and recoveries of the link that has most of this kind; of the kinds that a bad cable makes.",
            "error",
            members=_LINK_LAYER_ERRORS,
            reported_by=_NVLINK_ERROR_SETS,
        ),
        gpu_gauge(
            "gpu_fabric_state",
            "1 for the state of the registration with the NVLink fabric and 0 for the others.",
            "state",
            members=("not_started", "in_progress", "completed", "unknown"),
            reported_by="Hopper and newer with NVSwitch",
        ),
        gpu_gauge(
            "gpu_fabric_health",
            "1 if the NVLink fabric reports this issue for the GPU, else 0.",
            "issue",
            members=(
                "degraded_bandwidth",
                "route_recovery",
                "route_unhealthy",
                "access_timeout_recovery",
                "incorrect_configuration",
            ),
            reported_by="Hopper and newer with NVSwitch, where the fabric manager reports it",
        ),
    ),
)


_NIC = ("nic", "port")

_NOT_YET: Facts = {"served": False, "simulated": True, "reported_by": "RDMA adapters: mlx5, EFA, bnxt_re, irdma"}

NETWORK = Group(
    "Network adapters",
    "RDMA traffic of the node's adapters. `gpu` in `nic_info` is the GPU nearest by PCIe.",
    (
        gauge(
            "nic_info",
            "Identity of an adapter's port, always 1.",
            (*_NIC, "node", "netdev", "link_layer", "pci_bus_id", "numa_node", "gpu"),
            **_NOT_YET,
        ),
        gauge("nic_link_up", "1 if the port's link is up, else 0.", _NIC, **_NOT_YET),
        gauge("nic_rate_bytes_per_second", "Speed of the port's link.", _NIC, **_NOT_YET),
        counter("nic_receive_bytes_total", "RDMA data received.", _NIC, **_NOT_YET),
        counter("nic_transmit_bytes_total", "RDMA data sent.", _NIC, **_NOT_YET),
        counter("nic_retransmits_total", "Packets sent again, by what showed the loss.", (*_NIC, "kind"), **_NOT_YET),
    ),
)
