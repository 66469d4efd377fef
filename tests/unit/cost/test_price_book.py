"""What a price book may say, and what is refused with file, line, key and remedy."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gpufleet.cost.prices import PriceBook, PriceBookError, Subject
from tests.project.tree import ROOT

H100 = Subject("NVIDIA H100 80GB HBM3", "GPU-0")


def book(text: str) -> PriceBook:
    """The book of a text, called prices.yml."""
    return PriceBook.parse(text.encode(), "prices.yml")


def one(rule: str) -> Decimal:
    """The price of the only rule of a book."""
    (found,) = book(f"currency: USD\nrules:\n- {{{rule}}}\n").rules
    return found.per_hour


@pytest.mark.parametrize(
    ("rule", "price"),
    [
        ("per_hour: 4.80", "4.8"),
        ("per_hour: 0", "0"),
        ("per_hour: '12'", "12"),
        ("instance_per_hour: 98.32, gpus: 8", "12.29"),
        ("instance_per_hour: 1, gpus: 3", "0.333333"),
        ("owned: {purchase_price: 35040, amortization: 4y}", "1"),
        ("owned: {purchase_price: 35040, amortization: 48mo}", "1"),
        ("owned: {purchase_price: 35040, amortization: 4 years, in_service: 0.5}", "2"),
        ("owned: {purchase_price: 0, amortization: 1y, power_watts: 1000, tariff_per_kwh: 0.1, pue: 1.5}", "0.15"),
        ("owned: {purchase_price: 280320, amortization: 4y, gpus: 8, power_watts: 8000, tariff_per_kwh: 0.1}", "1.1"),
    ],
)
def test_prices_are_exact_decimals(rule: str, price: str) -> None:
    """Of the whole GPU for an hour, to a millionth."""
    match = book(f"currency: USD\nrules: [{{{rule}}}]").price(H100, 0.0)

    assert match is not None
    assert one(rule) == Decimal(price)
    assert (match.price.text, match.price.per_hour, match.price.currency) == (price, float(price), "USD")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "prices.yml:1: a price book: is no mapping"),
        ("- 1", "is no mapping"),
        ("currency: USD", "rules: is no list of rules; write one rule, such as"),
        ("currency: USD\nrules: []", "prices.yml:2: rules: is no list of rules"),
        ("currency: USD\nrules:\n- 4.8", "prices.yml:3: rules[1]: is no mapping"),
        ("rules: [{per_hour: 1}]", "currency: is not set; write currency: USD"),
        ("currency: dollars\nrules: [{per_hour: 1}]", "prices.yml:1: currency: 'dollars' is no code"),
        ("currency: USD\nrule: []", "prices.yml:2: rule: is no key of a price book here; did you mean rules?"),
        ("currency: USD\nrules:\n- gpus: 8\n  per_hour: 1", "prices.yml:3: gpus: does not go with per_hour"),
        (
            "currency: USD\nrules:\n- per-hour: 1",
            "prices.yml:3: per-hour: is no key of a price book here; did you mean per_hour?",
        ),
        ("currency: USD\nrules:\n- gpu: x", "prices.yml:3: per_hour: has no price; write one of per_hour"),
        ("currency: USD\nrules: [{per_hour: 1, owned: {}}]", "has per_hour and owned; write one of"),
        (
            "currency: USD\nrules:\n- per_hour: 1\n  per_hour: 2",
            "prices.yml:4: per_hour: is there twice, first in line 3",
        ),
        ("currency: USD\nrules: [{per_hour: -1}]", "per_hour: '-1' is no amount; write a plain number"),
        ("currency: USD\nrules: [{per_hour: .nan}]", "'.nan' is no amount"),
        ("currency: USD\nrules: [{per_hour: .inf}]", "'.inf' is no amount"),
        ("currency: USD\nrules: [{per_hour: 1e3}]", "'1e3' is no amount"),
        ("currency: USD\nrules: [{per_hour: '1,50'}]", "'1,50' is no amount"),
        ("currency: USD\nrules: [{per_hour: 0.0000001}]", "comes to 0.0000001 an hour"),
        ("currency: USD\nrules: [{per_hour: 10000000}]", "comes to 10000000 an hour"),
        ("currency: USD\nrules: [{instance_per_hour: 1}]", "gpus: is not set; write how many GPUs"),
        ("currency: USD\nrules: [{instance_per_hour: 1, gpus: 0}]", "gpus: 0 is no number of GPUs"),
        ("currency: USD\nrules: [{instance_per_hour: 1, gpus: 2.5}]", "gpus: 2.5 is no number of GPUs"),
        ("currency: USD\nrules: [{instance_per_hour: 1, gpus: -3}]", "gpus: -3 is no number of GPUs"),
        ("currency: USD\nrules: [{owned: 30000}]", "owned: is no mapping"),
        ("currency: USD\nrules: [{owned: {purchase_price: 1}}]", "amortization: is not set"),
        ("currency: USD\nrules: [{owned: {purchase_price: 1, amortization: 4}}]", "'4' is no such time; write years"),
        ("currency: USD\nrules: [{owned: {purchase_price: 1, amortization: 0y}}]", "'0y' is no such time"),
        ("currency: USD\nrules: [{owned: {purchase_price: 1, amortization: 4y, power_watts: 9}}]", "go together"),
        ("currency: USD\nrules: [{owned: {purchase_price: 1, amortization: 4y, in_service: 0}}]", "is no fraction"),
        ("currency: USD\nrules: [{owned: {purchase_price: 1, amortization: 4y, pue: 0.9}}]", "pue: is below 1"),
        ("currency: USD\nrules: [{owned: {purchase_price: 1, amortization: 4y, powerwatts: 9}}]", "mean power_watts?"),
        ("currency: USD\nrules: [{per_hour: 1, from: 2026-02-30}]", "from: '2026-02-30' is no day"),
        ("currency: USD\nrules: [{per_hour: 1, from: 2026-W01-1}]", "is no day; write one as 2026-01-31"),
        ("currency: USD\nrules: [{per_hour: 1, from: 2026-02-01, until: 2026-02-01}]", "is not after from"),
        ("currency: USD\nrules: [{per_hour: 1, capacity_type: on-demand}]", "did you mean on_demand?"),
        ("currency: USD\nrules: [{per_hour: 1, capacity_type: []}]", "is an empty list, which nothing matches"),
        ("currency: USD\nrules: [{per_hour: 1, gpu: '/[/'}]", "gpu: is no regular expression"),
        ("currency: USD\nrules: [{per_hour: 1, gpu: ''}]", "gpu: is empty"),
        ("currency: USD\nrules: [{per_hour: 1, gpu: {a: b}}]", "gpu: is no plain text"),
        ("currency: USD\nrules: [{per_hour: 1, node_labels: pool}]", "node_labels: is no mapping"),
        ("currency: USD\nrules: [{per_hour: 1, name: a}, {per_hour: 2, name: a}]", "name: 'a' is the name of"),
        ("currency: USD\nrules: [", "is no YAML"),
        ("a: &a [1]\nb: *a", "prices.yml:2: *a: is an alias"),
        (
            "rules:\n- gpu: *H100*",
            "prices.yml:2: is no YAML: expected alphabetic or numeric character, but found '*'; put",
        ),
        ("a: !!python/object:os.system x", "is a tag"),
        ("a: " + "[" * 50 + "]" * 50, "is nested too deeply"),
        ("? [a]\n: b", "is no plain text"),
        ("\x00", "prices.yml: is no YAML"),
        ("currency: USD\nrules: [" + "{per_hour: 1}, " * 1001 + "]", "has 1001 rules; write at most 1000"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_stands(text: str, words: str) -> None:
    """The message has file, line, key, problem and remedy."""
    with pytest.raises(PriceBookError) as refused:
        book(text)

    assert words in str(refused.value)
    assert str(refused.value).startswith("prices.yml:")
    assert "; " in str(refused.value) or str(refused.value).endswith("?")


def test_bytes_that_are_no_text_are_refused() -> None:
    """As a price book, not as an error of Python."""
    with pytest.raises(PriceBookError, match="is no YAML"):
        PriceBook.parse(b"\xff\xfe\xfd", "prices.yml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With the setting that names it."""
    with pytest.raises(PriceBookError, match=r"no\.yml: can't be read: No such file.*--prices\.file"):
        PriceBook.load(tmp_path / "no.yml")


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    """No more than a price book can have."""
    (tmp_path / "big.yml").write_bytes(b"#" * (1 << 20))

    with pytest.raises(PriceBookError, match="larger than"):
        PriceBook.load(tmp_path / "big.yml")


@pytest.mark.parametrize(
    ("first", "second", "is_shadowed"),
    [
        ("", "gpu: x", True),
        ("gpu: '*'", "gpu: x", True),
        ("gpu: '*H100*'", "gpu: NVIDIA h100", True),
        ("gpu: '*H100*'", "gpu: '*H100*', node: n", True),
        ("gpu: [a, b]", "gpu: b", True),
        ("gpu: b", "gpu: [a, b]", False),
        ("gpu: '*H100*'", "gpu: '*H1*'", False),
        ("gpu: x, node: n", "gpu: x", False),
        ("capacity_type: [spot, owned]", "capacity_type: spot", True),
        ("capacity_type: spot", "capacity_type: [spot, owned]", False),
        ("node_labels: {pool: a}", "node_labels: {pool: a, zone: b}", True),
        ("node_labels: {pool: a, zone: b}", "node_labels: {pool: a}", False),
        ("until: 2026-01-01", "gpu: x", False),
        ("until: 2026-01-01", "until: 2025-06-01", True),
        ("from: 2026-01-01", "from: 2025-01-01", False),
    ],
)
def test_a_rule_that_is_never_reached_is_told(first: str, second: str, is_shadowed: bool) -> None:
    """Only what is certain: a rule that some GPU could still reach is none."""
    found = book(f"currency: USD\nrules:\n- {{{first}{', ' if first else ''}per_hour: 1}}\n- {{{second}, per_hour: 2}}")

    assert bool(found.warnings) == is_shadowed
    if is_shadowed:
        assert found.warnings[0].startswith("prices.yml:4: rule 2: is never reached: rule 1 in line 3")


def test_the_example_is_accepted_and_prices_what_it_says() -> None:
    """The file that comes with gpufleet has no rule that does nothing, and none that is not reached."""
    example = PriceBook.load(ROOT / "deploy" / "prices" / "example.yaml")

    assert example.warnings == ()
    match = example.price(H100, 0.0)
    assert match is not None
    assert match.rule.name == "any H100"
    assert len({rule.name for rule in example.rules}) == len(example.rules)
