"""Cases of the alerts about served models, networks, money, and the monitoring itself."""

from __future__ import annotations

from tests.mixin.alert_case import LONG, Case, Series, rises, stays, text, there

DAYS = 2000
"""Minutes of what is counted in money."""
MODEL = {"model": "m", "system": "vllm"}


def vllm(readings: Series, model: str = "m") -> dict[str, str]:
    """Series of a vLLM server."""
    made = {}
    for reading, values in readings.items():
        name, _, more = reading.partition("{")
        series = text(f"vllm:{name}", {"model_name": model, "instance": "s1", "job": "vllm"})
        made[f"{series[:-1]},{more}" if more else series] = values
    return made


def histogram(name: str, fast: float, every: float) -> dict[str, str]:
    """So many a minute within 2.5 s, and in all."""
    return {
        f'{name}_bucket{{le="2.5"}}': rises(fast),
        f'{name}_bucket{{le="+Inf"}}': rises(every),
        f"{name}_sum": rises(every),
        f"{name}_count": rises(every),
    }


FINISHED = 'request_success_total{finished_reason="stop"}'
ERRORS = 'request_success_total{finished_reason="error"}'
ABORTED = 'request_success_total{finished_reason="abort"}'
TTFT = "time_to_first_token_seconds"


def port(values: str, node: str = "n1", name: str = "nic_link_up") -> dict[str, str]:
    """A port's state, and the adapter that it belongs to."""
    labels = {"nic": "mlx5_0", "port": "1", "instance": f"{node}:9837"}
    return {text("nic_info", {**labels, "node": node}): stays(1), text(name, labels): values}


def traffic(node: str, again: float, gigabytes: float = 1) -> dict[str, str]:
    """So many gigabytes a second, and packets sent again a minute."""
    labels = {"nic": "mlx5_0", "port": "1", "instance": f"{node}:9837"}
    return {
        text("nic_info", {**labels, "node": node}): stays(1),
        text("nic_receive_bytes_total", labels): rises(30e9 * gigabytes),
        text("nic_transmit_bytes_total", labels): rises(30e9 * gigabytes),
        text("nic_retransmits_total", {**labels, "kind": "local_ack_timeout"}): rises(again),
    }


def runs_on(*nodes: str) -> dict[str, str]:
    """A run that holds a GPU on each node."""
    made: dict[str, str] = {}
    for node in nodes:
        made |= there(0, node)
    return made


def account(
    project: str, seconds: float, cost: float = 0.0, unused: float = 0.0, currency: str = "USD"
) -> dict[str, str]:
    """An owner's counters: so much a minute."""
    labels = {"node": "n1", "gpu": "0", "uuid": f"GPU-{project}", "project": project, "run": "r", "task": "t"}
    made = {text("gpu_allocated_seconds_total", labels): rises(seconds, DAYS)}
    if cost:
        made[text("gpu_cost_total", {**labels, "currency": currency})] = rises(cost, DAYS)
        made[text("gpu_unused_cost_total", {**labels, "currency": currency, "reason": "idle"})] = rises(unused, DAYS)
    return made


def paid(budgets: float, project: str = "p", currency: str = "USD") -> dict[str, str]:
    """Money that comes to so many monthly budgets in a month of 30 days."""
    return account(project, 60, cost=budgets * 1000 / 43200, currency=currency)


def up(node: str, values: str, told: str, address: str = "") -> dict[str, str]:
    """A target, and what the exporter there tells of its node."""
    labels = {"job": "gpufleet", "instance": address or f"{node}:9837"}
    return {text("up", labels): values, text("gpufleet_node_info", {**labels, "node": node}): told}


def of_dcgm(values: str, told: str) -> dict[str, str]:
    """A target with dcgm-exporter's labels."""
    labels = {"job": "dcgm", "instance": "10.0.0.1:9400"}
    reading = {**labels, "gpu": "0", "UUID": "GPU-0", "Hostname": "n1", "modelName": "H100"}
    return {text("up", labels): values, text("DCGM_FI_DEV_GPU_TEMP", reading): told}


def exporter(node: str, name: str, values: str) -> dict[str, str]:
    """An exporter's own series."""
    return {
        text("gpufleet_node_info", {"node": node, "driver_version": "580", "instance": f"{node}:9837"}): stays(1),
        text(name, {"instance": f"{node}:9837", "job": "gpufleet"}): values,
    }


FLAPPING = f"1x20 {'0x1 1x1 ' * 12}1x{LONG}"
ONE_PORT = {"node": "n1", "nic": "mlx5_0", "port": "1"}
MISSED = "prometheus_rule_group_iterations_missed_total"
PRICED = {'gpu_price_per_hour{gpu="0",uuid="GPU-n1-0",currency="USD"}': stays(2)}

CASES = [
    Case(
        "InferenceNoProgress",
        "requests in work and no token",
        vllm({"num_requests_running": stays(4), "generation_tokens_total": stays(100)}),
        "20m",
        [{**MODEL, "severity": "critical"}],
    ),
    Case(
        "InferenceNoProgress",
        "it generates",
        vllm({"num_requests_running": stays(4), "generation_tokens_total": rises(600)}),
        "20m",
    ),
    Case(
        "InferenceNoProgress",
        "nobody asks",
        vllm({"num_requests_running": stays(0), "generation_tokens_total": stays(100)}),
        "20m",
    ),
    Case(
        "InferenceErrorsHigh",
        "a third fails",
        vllm({FINISHED: rises(60), ERRORS: rises(30)}),
        "80m",
        [{**MODEL, "severity": "critical"}, {**MODEL, "severity": "warning"}],
    ),
    Case(
        "InferenceErrorsHigh",
        "a tenth has failed for hours",
        vllm({FINISHED: rises(54), ERRORS: rises(6)}),
        "400m",
        [{**MODEL, "severity": "warning"}],
    ),
    Case("InferenceErrorsHigh", "clients give up", vllm({FINISHED: rises(60), ABORTED: rises(30)}), "80m"),
    Case(
        "InferenceErrorsHigh", "it was an hour ago", vllm({FINISHED: rises(60), ERRORS: f"0+30x60 1800x{LONG}"}), "90m"
    ),
    Case("InferenceErrorsHigh", "two requests an hour", vllm({FINISHED: rises(0.02), ERRORS: rises(0.02)}), "80m"),
    Case(
        "InferenceLatencyBurn",
        "nine of ten come too late",
        vllm(histogram(TTFT, 6, 60)),
        "80m",
        [{**MODEL, "severity": "critical"}, {**MODEL, "severity": "warning"}],
    ),
    Case("InferenceLatencyBurn", "one of a hundred", vllm(histogram(TTFT, 59.4, 60)), "400m"),
    Case("InferenceLatencyBurn", "one request an hour, late", vllm(histogram(TTFT, 0, 0.02)), "80m"),
    Case(
        "InferenceQueueGrowing",
        "more and more wait",
        vllm({"num_requests_running": stays(8), "num_requests_waiting": rises(1)}),
        "40m",
        [{**MODEL, "severity": "warning"}],
    ),
    Case(
        "InferenceQueueGrowing",
        "a long queue that shrinks",
        vllm({"num_requests_running": stays(8), "num_requests_waiting": f"200-1x{LONG}"}),
        "40m",
    ),
    Case(
        "InferenceQueueGrowing",
        "few wait",
        vllm({"num_requests_running": stays(8), "num_requests_waiting": stays(2)}),
        "40m",
    ),
    Case(
        "InferenceKvCacheSaturated",
        "full, and requests wait",
        vllm({"kv_cache_usage_perc": stays(0.99), "num_requests_waiting": stays(3)}),
        "20m",
        [MODEL],
    ),
    Case(
        "InferenceKvCacheSaturated",
        "full and well",
        vllm({"kv_cache_usage_perc": stays(0.99), "num_requests_waiting": stays(0), "num_preemptions_total": stays(7)}),
        "20m",
    ),
    Case(
        "InferenceKvCacheSaturated",
        "by its old name, with preemptions",
        vllm(
            {"gpu_cache_usage_perc": stays(0.99), "num_requests_waiting": stays(0), "num_preemptions_total": rises(2)}
        ),
        "30m",
        [MODEL],
    ),
    Case(
        "RdmaRetransmitsHigh",
        "one of four",
        {**traffic("n1", 600_000), **traffic("n2", 600), **traffic("n3", 600), **traffic("n4", 600)},
        "40m",
        [{"node": "n1"}],
    ),
    Case(
        "RdmaRetransmitsHigh",
        "all of them: no node's own trouble",
        {**traffic("n1", 600_000), **traffic("n2", 600_000), **traffic("n3", 600_000)},
        "40m",
    ),
    Case(
        "RdmaRetransmitsHigh",
        "ten times the others and little",
        {**traffic("n1", 3_000), **traffic("n2", 6), **traffic("n3", 6)},
        "40m",
    ),
    Case(
        "RdmaRetransmitsHigh",
        "a node that sends next to nothing",
        {**traffic("n1", 12, 1e-6), **traffic("n2", 600), **traffic("n3", 600)},
        "40m",
    ),
    Case(
        "RdmaPortFlapping",
        "on a node that nobody waits for",
        port(FLAPPING),
        "44m",
        [{**ONE_PORT, "severity": "warning"}],
    ),
    Case(
        "RdmaPortFlapping",
        "in a run of two nodes",
        {**port(FLAPPING), **runs_on("n1", "n2")},
        "44m",
        [{**ONE_PORT, "severity": "critical"}],
    ),
    Case("RdmaPortFlapping", "once down", port(f"1x20 0x2 1x{LONG}"), "40m"),
    Case("RdmaPortDown", "down", port(f"1x20 0x{LONG}"), "40m", [{**ONE_PORT, "severity": "warning"}]),
    Case(
        "RdmaPortDown",
        "down in a run of two nodes",
        {**port(f"1x20 0x{LONG}"), **runs_on("n1", "n2")},
        "40m",
        [{**ONE_PORT, "severity": "critical"}],
    ),
    Case(
        "RdmaPortDown",
        "for hours, which no window reaches back to",
        port(f"1x20 0x{LONG}"),
        "590m",
        [{**ONE_PORT, "severity": "warning"}],
    ),
    Case("RdmaPortDown", "it is up again", port(f"1x20 0x60 1x{LONG}"), "100m"),
    Case("RdmaPortDown", "the adapter was taken out", port("1x20 0x60"), "100m"),
    Case("RdmaPortDown", "never had a cable", port(stays(0)), "40m"),
    Case(
        "GpuAttributionMissing",
        "a tenth has no holder",
        {**account("(unknown)", 6), **account("p", 54), **account("(unallocated)", 60)},
        "60m",
        [{"team": "monitoring"}],
    ),
    Case("GpuAttributionMissing", "a hundredth", {**account("(unknown)", 0.5), **account("p", 54)}, "60m"),
    Case(
        "GpuAttributionMissing",
        "what nobody holds is no gap",
        {**account("(unallocated)", 54), **account("p", 6)},
        "60m",
    ),
    Case(
        "GpuPriceMissing",
        "one of two has none",
        {**there(0), **there(1), **PRICED},
        "60m",
        [{"name": "H100"}],
    ),
    Case("GpuPriceMissing", "there is neither a price book nor a budget", there(0), "60m", config="no budget"),
    Case("GpuPriceMissing", "there is a budget, and no price book", there(0), "60m", [{"name": "H100"}]),
    Case("GpuPriceMissing", "all have one", {**there(0), **PRICED}, "60m"),
    Case("GpuBudgetBurn", "three times the pace for more than a day", paid(3), "1900m", [{"team": "finops"}]),
    Case("GpuBudgetBurn", "three times the pace for hours, within the budget of three days", paid(3), "450m"),
    Case(
        "GpuBudgetBurn",
        "two currencies, of which each is within it",
        {**paid(1.6), **paid(1.6, "q", "EUR")},
        "1900m",
    ),
    Case("GpuBudgetBurn", "within it", paid(1.1), "1900m"),
    Case(
        "GpuUnusedSpendHigh",
        "most of it unused",
        account("p", 60, cost=10, unused=8),
        "590m",
        [{"project": "p", "severity": "info"}],
    ),
    Case("GpuUnusedSpendHigh", "little of it unused", account("p", 60, cost=5, unused=1), "590m"),
    Case("GpuUnusedSpendHigh", "all of it, and little money", account("p", 60, cost=0.1, unused=0.1), "590m"),
    Case(
        "GpuExporterDown",
        "it was there today",
        up("n1", f"1x30 0x{LONG}", "1x30"),
        "40m",
        [{"node": "n1", "job": "gpufleet", "severity": "warning"}],
    ),
    Case(
        "GpuExporterDown",
        "for hours, as long as it is a target",
        up("n1", f"1x30 0x{LONG}", "1x30"),
        "590m",
        [{"node": "n1", "job": "gpufleet"}],
    ),
    Case("GpuExporterDown", "the target was taken away", up("n1", "1x30 0x60", "1x30"), "100m"),
    Case(
        "GpuExporterDown",
        "its pod was replaced, and the old target lingers",
        {
            **up("n1", f"1x30 0x{LONG}", "1x30", "10.0.0.1:9837"),
            **up("n1", f"_x30 1x{LONG}", f"_x30 1x{LONG}", "10.0.0.2:9837"),
        },
        "60m",
    ),
    Case(
        "GpuExporterDown",
        "its address is another node's now, and that one is down",
        {
            **up("n1", f"_x25 1x{LONG}", f"_x25 1x{LONG}", "10.0.0.2:9837"),
            **up("n1", "1x60 0x600", "1x20 stale", "10.0.0.1:9837"),
            text("gpufleet_node_info", {"job": "gpufleet", "instance": "10.0.0.1:9837", "node": "n2"}): "_x25 1x35",
        },
        "90m",
        [{"node": "n2", "job": "gpufleet"}],
    ),
    Case(
        "GpuExporterDown",
        "dcgm-exporter",
        of_dcgm(f"1x30 0x{LONG}", "1x30"),
        "90m",
        [{"node": "n1", "job": "dcgm"}],
        config="dcgm",
    ),
    Case("GpuExporterDown", "dcgm-exporter that answers", of_dcgm(stays(1), stays(1)), "90m", config="dcgm"),
    Case(
        "GpuExporterDown", "a target that never was a GPU node", {'up{job="node",instance="x:9100"}': stays(0)}, "40m"
    ),
    Case("GpuExporterDown", "a scrape was missed", up("n1", f"1x30 0x2 1x{LONG}", stays(1)), "40m"),
    Case(
        "GpuExportersDown",
        "two of three",
        {
            **up("n1", f"1x30 0x{LONG}", "1x30"),
            **up("n2", f"1x30 0x{LONG}", "1x30"),
            **up("n3", stays(1), stays(1)),
        },
        "40m",
        [{"severity": "critical"}],
    ),
    Case(
        "GpuExportersDown",
        "one of two: it is the node's trouble",
        {**up("n1", f"1x30 0x{LONG}", "1x30"), **up("n2", stays(1), stays(1))},
        "40m",
    ),
    Case(
        "GpuExportersDown",
        "two of thirty",
        {
            **{key: value for node in ("a", "b") for key, value in up(node, f"1x30 0x{LONG}", "1x30").items()},
            **{key: value for place in range(28) for key, value in up(f"n{place}", stays(1), stays(1)).items()},
        },
        "40m",
    ),
    Case(
        "GpuExporterPollStalled",
        "it answers, and reads nothing",
        exporter("n1", "gpufleet_last_poll_timestamp_seconds", f"0+60x20 1200x{LONG}"),
        "30m",
        [{"node": "n1"}],
    ),
    Case(
        "GpuExporterPollStalled",
        "it was told to let go of the driver",
        {
            **exporter("n1", "gpufleet_last_poll_timestamp_seconds", f"0+60x20 1200x{LONG}"),
            **exporter("n1", "gpufleet_quiesced", f"0x20 1x{LONG}"),
        },
        "30m",
    ),
    Case(
        "GpuExporterPollStalled",
        "the clock of its node is an hour behind",
        exporter("n1", "gpufleet_last_poll_timestamp_seconds", rises(60, start=-3600)),
        "30m",
    ),
    Case(
        "GpuExporterPollStalled", "it reads", exporter("n1", "gpufleet_last_poll_timestamp_seconds", rises(60)), "30m"
    ),
    Case(
        "GpuExporterSourceDown",
        "the kubelet does not answer",
        {'gpufleet_source_up{instance="n1:9837",job="gpufleet",source="podresources"}': stays(0)},
        "30m",
        [{"instance": "n1:9837", "source": "podresources"}],
    ),
    Case(
        "GpuExporterSourceDown",
        "it answers again",
        {'gpufleet_source_up{instance="n1:9837",job="gpufleet",source="podresources"}': f"0x10 1x{LONG}"},
        "30m",
    ),
    Case("GpuExporterQuiesced", "for an hour", exporter("n1", "gpufleet_quiesced", stays(1)), "60m", [{"node": "n1"}]),
    Case("GpuExporterQuiesced", "for a driver upgrade", exporter("n1", "gpufleet_quiesced", f"1x15 0x{LONG}"), "60m"),
    Case(
        "GpuSimulatedData", "a demo is scraped", exporter("n1", "gpufleet_simulated", stays(1)), "20m", [{"node": "n1"}]
    ),
    Case("GpuSimulatedData", "it is real", exporter("n1", "gpufleet_simulated", stays(0)), "20m"),
    Case(
        "GpuRulesMissed",
        "our rules are skipped",
        {f'{MISSED}{{rule_group="/etc/rules.yaml;gpufleet-cost"}}': rises(0.5)},
        "60m",
        [{"rule_group": "/etc/rules.yaml;gpufleet-cost"}],
    ),
    Case(
        "GpuRulesMissed",
        "our rules fail",
        {'prometheus_rule_evaluation_failures_total{rule_group="/etc/rules.yaml;gpufleet-owners"}': rises(1)},
        "60m",
        [{"rule_group": "/etc/rules.yaml;gpufleet-owners"}],
    ),
    Case("GpuRulesMissed", "others' rules are", {f'{MISSED}{{rule_group="/etc/rules.yaml;node"}}': rises(0.5)}, "60m"),
    Case(
        "GpuRulesMissed",
        "once, at a start",
        {f'{MISSED}{{rule_group="/r.yaml;gpufleet-cost"}}': f"0x5 1x{LONG}"},
        "60m",
    ),
]
