"""The price book's file: YAML, checked key by key, with the line of each mistake."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

from gpufleet.cost.amounts import HOURS_OF_A_MONTH, HOURS_OF_A_YEAR, MOST, PLACES, Owned, canonical, rounded
from gpufleet.cost.node_facts import CAPACITY_TYPES
from gpufleet.cost.price_rule import Patterns, Rule, day, pattern
from gpufleet.cost.yaml_tree import Items, Keys, PriceBookError, Text, Tree, parse, suggestion
from gpufleet.small_file import read_small_file

__all__ = ["PriceBookError", "parse_price_book", "read_price_book"]

MAX_BYTES = 1 << 18
MOST_RULES = 1000
_LONGEST_TEXT = 253
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME_SPAN = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) ?(?:(y|years?)|(mo|months?))")
_CURRENCY = re.compile(r"[A-Z]{3}")

_BOOK_KEYS = ("currency", "rules")
_PRICES = ("per_hour", "instance_per_hour", "owned")
_MATCHES = ("gpu", "mig_profile", "node", "instance_type", "node_labels", "capacity_type", "from", "until")
_RULE_KEYS = ("name", *_MATCHES, "currency", *_PRICES, "gpus")
_OWNED_KEYS = ("purchase_price", "amortization", "in_service", "power_watts", "tariff_per_kwh", "pue", "gpus")


def read_price_book(file: Path) -> bytes:
    """Content of the file. Raises PriceBookError."""
    try:
        content = read_small_file(file, MAX_BYTES)
    except OSError as error:
        raise PriceBookError(
            f"{file}: can't be read: {error.strerror}; check the path of --prices.file and who may read it"
        ) from error
    if len(content) > MAX_BYTES:
        raise PriceBookError(f"{file}: is larger than {MAX_BYTES} bytes; this is no price book")
    return content


def parse_price_book(content: bytes, name: str) -> tuple[Rule, ...]:
    """Rules of a YAML document; ``name`` is what messages call it. Raises PriceBookError."""
    book = _keys(parse(content, name), "a price book", "write currency: and rules:")
    _refuse_unknown(book, _BOOK_KEYS)
    currency = _currency(book)
    rules = book.values.get("rules")
    if not isinstance(rules, Items) or not rules.items:
        where = book if rules is None else rules
        raise where.wrong("rules", "is no list of rules", "write one rule, such as - {gpu: '*H100*', per_hour: 4.80}")
    if len(rules.items) > MOST_RULES:
        raise rules.wrong("rules", f"has {len(rules.items)} rules", f"write at most {MOST_RULES}")
    found: list[Rule] = []
    lines: dict[str, int] = {}
    for number, item in enumerate(rules.items, 1):
        rule = _rule(_keys(item, f"rules[{number}]", "write its keys, such as gpu: and per_hour:"), number, currency)
        if rule.name in lines:
            raise item.wrong("name", f"{rule.name!r} is the name of the rule in line {lines[rule.name]}, too", "rename")
        lines[rule.name] = rule.line
        found.append(rule)
    return tuple(found)


def _rule(keys: Keys, number: int, default_currency: str | None) -> Rule:
    _refuse_unknown(keys, _RULE_KEYS)
    begins, ends = _time(keys, "from"), _time(keys, "until")
    if begins is not None and ends is not None and ends <= begins:
        raise keys.values["until"].wrong(
            "until", f"{day(ends)} is not after from ({day(begins)})", "write the first day that the price is over"
        )
    currency = _currency(keys) or default_currency
    if currency is None:
        raise keys.wrong("currency", "is not set", "write currency: USD at the top of the file, or in this rule")
    per_hour, how = _price(keys, currency)
    return Rule(
        name=_name(keys, number),
        line=keys.line,
        per_hour=per_hour,
        currency=currency,
        how=how,
        gpu=_patterns(keys, "gpu"),
        mig_profile=_patterns(keys, "mig_profile"),
        node=_patterns(keys, "node"),
        instance_type=_patterns(keys, "instance_type"),
        capacity_type=_capacity_types(keys),
        node_labels=_node_labels(keys),
        begins=begins,
        ends=ends,
    )


# --- the parts of a rule ----------------------------------------------------------------------------------------------
def _name(keys: Keys, number: int) -> str:
    value = keys.values.get("name")
    return f"rule {number}" if value is None else _text(value, "name")


def _price(keys: Keys, currency: str) -> tuple[Decimal, str]:
    given = [key for key in _PRICES if key in keys.values]
    if len(given) != 1:
        problem = "has no price" if not given else f"has {' and '.join(given)}"
        raise keys.wrong(given[-1] if given else "per_hour", problem, f"write one of {', '.join(_PRICES)}")
    key = given[0]
    value = keys.values[key]
    if key != "instance_per_hour" and "gpus" in keys.values:
        raise keys.values["gpus"].wrong("gpus", f"does not go with {key}", "write it beside instance_per_hour only")
    if key == "per_hour":
        amount = _number(value, key)
        how = f"{canonical(amount)} {currency} an hour"
    elif key == "instance_per_hour":
        whole, gpus = _number(value, key), _gpus(keys)
        amount = whole / gpus
        how = f"{canonical(whole)} {currency} an hour for {gpus} GPUs"
    else:
        amount, how = _owned(_keys(value, "owned", "write purchase_price: and amortization:"), currency)
    exact = rounded(amount)
    if exact > MOST or (exact == 0 and amount != 0):
        raise value.wrong(key, f"comes to {amount:f} an hour", f"write what is between {PLACES:f} and {MOST}")
    return exact, how


def _gpus(keys: Keys) -> Decimal:
    value = keys.values.get("gpus")
    if value is None:
        raise keys.wrong("gpus", "is not set", "write how many GPUs one instance has, such as gpus: 8")
    text = _text(value, "gpus")
    count = Decimal(text) if _NUMBER.fullmatch(text) else Decimal(-1)
    if count < 1 or count > 64 or count != count.to_integral_value():
        raise value.wrong("gpus", f"{text} is no number of GPUs of one machine", "write one from 1 to 64")
    return count.to_integral_value()


def _owned(keys: Keys, currency: str) -> tuple[Decimal, str]:
    _refuse_unknown(keys, _OWNED_KEYS)
    for needed in ("purchase_price", "amortization"):
        if needed not in keys.values:
            raise keys.wrong(needed, "is not set", "write purchase_price: 30000 and amortization: 4y")
    if ("power_watts" in keys.values) != ("tariff_per_kwh" in keys.values):
        raise keys.wrong("power_watts", "and tariff_per_kwh go together", "write both, or leave both out")
    span = _text(keys.values["amortization"], "amortization")
    hours = _hours(keys.values["amortization"], span)
    numbers = {
        key: _number(keys.values[key], key)
        for key in ("purchase_price", "in_service", "power_watts", "tariff_per_kwh", "pue")
        if key in keys.values
    }
    if not 0 < numbers.get("in_service", Decimal(1)) <= 1:
        raise keys.values["in_service"].wrong("in_service", "is no fraction", "write one above 0 and up to 1, as 0.95")
    if numbers.get("pue", Decimal(1)) < 1:
        raise keys.values["pue"].wrong("pue", "is below 1", "write total power over the machines' own, such as 1.3")
    gpus = _gpus(keys) if "gpus" in keys.values else Decimal(1)
    owned = Owned(hours=hours, gpus=gpus, **numbers)
    how = f"{canonical(owned.purchase_price)} {currency} over {span}"
    if owned.power_watts:
        how += f", {canonical(owned.power_watts)} W at {canonical(owned.tariff_per_kwh)} {currency}/kWh"
        how += f" times PUE {canonical(owned.pue)}"
    return owned.per_hour, how if gpus == 1 else f"{how}, for {gpus} GPUs"


def _hours(value: Tree, span: str) -> Decimal:
    found = _TIME_SPAN.fullmatch(span)
    hours = Decimal(0)
    if found is not None:
        hours = Decimal(found[1]) * (HOURS_OF_A_YEAR if found[2] else HOURS_OF_A_MONTH)
    if not 0 < hours <= 50 * HOURS_OF_A_YEAR:
        raise value.wrong("amortization", f"{span!r} is no such time", "write years or months: 4y, 48mo")
    return hours


def _capacity_types(keys: Keys) -> tuple[str, ...]:
    words = []
    for text in _texts(keys, "capacity_type"):
        word = _text(text, "capacity_type")
        if word not in CAPACITY_TYPES:
            hint = suggestion(word, CAPACITY_TYPES) or f"write one of {', '.join(CAPACITY_TYPES)}"
            raise text.wrong("capacity_type", f"{word!r} is not known", hint)
        words.append(word)
    return tuple(words)


def _node_labels(keys: Keys) -> Mapping[str, Patterns]:
    value = keys.values.get("node_labels")
    if value is None:
        return {}
    labels = _keys(value, "node_labels", "write labels of the node, such as pool: research")
    return {label: _patterns(labels, label) for label in labels.values}


def _patterns(keys: Keys, key: str) -> Patterns:
    found = []
    for text in _texts(keys, key):
        try:
            found.append(pattern(_text(text, key)))
        except re.error as error:
            raise text.wrong(
                key, f"is no regular expression: {error}", "correct it, or write a pattern with *"
            ) from None
    return tuple(found)


def _time(keys: Keys, key: str) -> int | None:
    value = keys.values.get(key)
    if value is None:
        return None
    text = _text(value, key)
    try:
        # Only this way of writing: fromisoformat also takes weeks and days without dashes.
        at = date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        at = None
    if at is None:
        raise value.wrong(key, f"{text!r} is no day", "write one as 2026-01-31; it begins at 00:00 UTC")
    return int(datetime(at.year, at.month, at.day, tzinfo=UTC).timestamp())


def _currency(keys: Keys) -> str | None:
    value = keys.values.get("currency")
    if value is None:
        return None
    text = _text(value, "currency")
    if not _CURRENCY.fullmatch(text):
        raise value.wrong(
            "currency", f"{text!r} is no code of a currency", "write its three letters, such as USD or EUR"
        )
    return text


# --- kinds of values --------------------------------------------------------------------------------------------------
def _keys(value: Tree, key: str, remedy: str) -> Keys:
    if not isinstance(value, Keys):
        raise value.wrong(key, "is no mapping", remedy)
    return value


def _texts(keys: Keys, key: str) -> Iterable[Tree]:
    value = keys.values.get(key)
    if value is None:
        return ()
    if isinstance(value, Items):
        if not value.items:
            raise value.wrong(key, "is an empty list, which nothing matches", "write a value, or leave the key out")
        return value.items
    return (value,)


def _text(value: Tree, key: str) -> str:
    if not isinstance(value, Text):
        raise value.wrong(key, "is no plain text", "write one value")
    if not value.text or len(value.text) > _LONGEST_TEXT or not value.text.isprintable():
        raise value.wrong(key, "is empty, too long, or has characters that can't be printed", "write a plain text")
    return value.text


def _number(value: Tree, key: str) -> Decimal:
    text = _text(value, key)
    if not _NUMBER.fullmatch(text):
        raise value.wrong(key, f"{text!r} is no amount", "write a plain number that is not negative, such as 4.80")
    return Decimal(text)


def _refuse_unknown(keys: Keys, known: tuple[str, ...]) -> None:
    for key, value in keys.values.items():
        if key not in known:
            hint = suggestion(key, known) or f"the keys here are {', '.join(known)}"
            raise value.wrong(key, "is no key of a price book here", hint)
