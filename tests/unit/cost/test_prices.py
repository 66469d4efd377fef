"""Which rule prices which GPU, and why the others do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.cost.node_facts import NodeFacts, node_facts
from gpufleet.cost.pricer import FRESH_SECONDS, Pricer
from gpufleet.cost.prices import PriceBook, Subject
from gpufleet.model.state import GpuState
from tests.support.metered import cut, gpu

NEW_YEAR = 1767225600.0
"""2026-01-01T00:00:00Z."""
NODE = node_facts(
    "gpu-7",
    {"node.kubernetes.io/instance-type": "p5.48xlarge", "karpenter.sh/capacity-type": "spot", "pool": "research-a"},
)
H100 = Subject("NVIDIA H100 80GB HBM3", "GPU-0", (), NODE)


def book(*rules: str) -> PriceBook:
    """A book of rules, each without its braces; the first costs 1 an hour, the second 2."""
    lines = [f"- {{{rule}{', ' if rule else ''}per_hour: {number}}}" for number, rule in enumerate(rules, 1)]
    return PriceBook.parse("\n".join(["currency: USD", "rules:", *lines]).encode(), "prices.yml")


@pytest.mark.parametrize(
    ("rule", "mismatch"),
    [
        ("", None),
        ("gpu: '*h100*'", None),
        ("gpu: '*H100'", "gpu: NVIDIA H100 80GB HBM3 is not *H100"),
        ("gpu: '/nvidia H[12]00.*/'", None),
        ("gpu: /H100/", "gpu: NVIDIA H100 80GB HBM3 is not /H100/"),
        ("gpu: ['*A100*', '*H100*']", None),
        ("gpu: ['*A100*', '*L4*']", "gpu: NVIDIA H100 80GB HBM3 is not *A100* or *L4*"),
        ("node: gpu-*", None),
        ("node: cpu-*", "node: gpu-7 is not cpu-*"),
        ("instance_type: p5.*", None),
        ("instance_type: p4d.*", "instance_type: p5.48xlarge is not p4d.*"),
        ("capacity_type: [spot, reserved]", None),
        ("capacity_type: owned", "capacity_type: it is spot, not owned"),
        ("node_labels: {pool: research-*}", None),
        ("node_labels: {pool: batch}", "node_labels.pool: research-a is not batch"),
        ("node_labels: {zone: a}", "node_labels.zone: it is not known here, and would have to be a"),
        ("mig_profile: 1g.*", "mig_profile: it has no MIG slices"),
        ("from: 2026-01-01", None),
        ("from: 2026-01-02", "from: it counts from 2026-01-02"),
        ("until: 2026-01-02", None),
        ("until: 2026-01-01", "until: it counted until 2026-01-01"),
    ],
)
def test_a_rule_says_why_it_is_not_for_a_gpu(rule: str, mismatch: str | None) -> None:
    """In terms of its keys."""
    rules = book(rule)

    (tried,) = rules.explain(H100, NEW_YEAR)
    assert tried.mismatch == mismatch
    assert (rules.price(H100, NEW_YEAR) is None) == (mismatch is not None)


def test_facts_that_nobody_knows_match_nothing() -> None:
    """A price for spot is not for what may be spot."""
    unknown = replace(H100, node=NodeFacts("n"))

    (tried,) = book("capacity_type: spot").explain(unknown, 0.0)
    assert "set --node.label=gpufleet.io/capacity-type=spot if it is that" in (tried.mismatch or "")
    assert book("instance_type: '*'").price(unknown, 0.0) is None


def test_the_first_rule_that_is_for_a_gpu_prices_it() -> None:
    """Those before say why not, those after are not asked."""
    rules = book("gpu: '*A100*'", "gpu: '*H100*'", "node: gpu-7")

    match = rules.price(H100, 0.0)

    assert match is not None
    assert (match.price.text, match.price.uuid, match.price.rule) == ("2", "GPU-0", "rule 2")
    assert [tried.mismatch is None for tried in rules.explain(H100, 0.0)] == [False, True]


def test_a_rule_for_a_profile_is_for_gpus_of_that_profile_alone() -> None:
    """A GPU has one price, whatever it is cut into."""
    rules = book("mig_profile: 1g.10gb")

    assert rules.price(replace(H100, profiles=("1g.10gb", "1g.10gb")), 0.0) is not None
    assert rules.price(replace(H100, profiles=("1g.10gb", "2g.20gb")), 0.0) is None


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ({}, None),
        ({"karpenter.sh/capacity-type": "on-demand"}, "on_demand"),
        ({"karpenter.sh/capacity-type": "reserved"}, "reserved"),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "reserved"),
        ({"cloud.google.com/gke-spot": "true"}, "spot"),
        ({"cloud.google.com/gke-spot": "false"}, None),
        ({"cloud.google.com/gke-provisioning": "standard"}, "on_demand"),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        ({"kubernetes.azure.com/scalesetpriority": "regular"}, "on_demand"),
        ({"gpufleet.io/capacity-type": "owned", "karpenter.sh/capacity-type": "spot"}, "owned"),
        ({"karpenter.sh/capacity-type": "weird"}, None),
    ],
)
def test_clouds_say_how_a_node_is_paid_for(labels: dict[str, str], capacity: str | None) -> None:
    """Each by a label of its own."""
    assert node_facts("n", labels).capacity_type == capacity


def test_the_older_label_of_the_instance_type_counts_too() -> None:
    """Where the newer one is not set."""
    assert node_facts("n", {"beta.kubernetes.io/instance-type": "a2"}).instance_type == "a2"


def test_a_price_is_the_same_object_until_it_changes() -> None:
    """It is asked for at each poll; a rule that ends does so within seconds of its day."""
    now = [NEW_YEAR - 1]
    pricer = Pricer(book("until: 2026-01-01", ""), NODE, lambda: now[0])

    first = pricer.price_of(gpu())
    assert pricer.price_of(gpu()) is first
    now[0] += FRESH_SECONDS + 1
    second = pricer.price_of(gpu())

    assert first is not None
    assert second is not None
    assert (first.text, second.text) == ("1", "2")
    now[0] += FRESH_SECONDS + 1
    assert pricer.price_of(gpu()) is second


def test_a_gpu_that_is_down_costs_what_it_did() -> None:
    """It shows no slices then, and is cut all the same."""
    now = [0.0]
    pricer = Pricer(book("mig_profile: 1g.10gb", ""), NODE, lambda: now[0])
    up = pricer.price_of(gpu(slices=[cut("MIG-a", 0.5, instance=1)]))
    now[0] += FRESH_SECONDS + 1

    assert pricer.price_of(gpu(state=GpuState.LOST)) is up
    now[0] += FRESH_SECONDS + 1
    whole = pricer.price_of(gpu())
    assert whole is not None
    assert whole.text == "2"


def test_a_gpu_without_a_rule_has_no_price() -> None:
    """That is an answer, too, and is kept."""
    pricer = Pricer(book("gpu: nothing"), NODE, lambda: 0.0)

    assert pricer.price_of(gpu()) is None
    assert pricer.price_of(gpu()) is None
