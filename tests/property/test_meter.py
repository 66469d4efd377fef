"""Whatever happens on a node: bills add up, nothing runs backwards, and no kill loses or mixes totals."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.collect.meter_file import NAME, _Writer
from gpufleet.cost.meter_bytes import decode_file, encode_file, encode_slot
from gpufleet.cost.meter_state import MeterState, MeterStateError, check
from gpufleet.model.meter import Account, MeterView, Price
from gpufleet.model.owner import Hold, Holding
from gpufleet.model.snapshot import GpuSnapshot
from gpufleet.model.state import GpuState
from tests.support.metered import Node, gpu, held, owners, rows

RUNS = "abc"
CURRENCIES = ("USD", "EUR")


@dataclass(frozen=True)
class Step:
    """What a poll finds."""

    seconds: float
    gpus: tuple[GpuSnapshot, ...]
    holdings: tuple[Holding, ...]
    price: Price | None
    quiesced: bool
    restart: bool


@st.composite
def holders(draw: st.DrawFn, number: int) -> list[Holding]:
    """Holders of one GPU whose shares sum to 1."""
    weights = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    total = sum(weights)
    found = []
    for weight in weights:
        hold = draw(st.sampled_from([Hold.HELD, Hold.HELD, Hold.UNALLOCATED, Hold.UNSLICED, Hold.UNKNOWN]))
        found.append(held(number, weight / total, draw(st.sampled_from(RUNS)), hold=hold))
    return found


prices = st.none() | st.builds(
    lambda per_hour, currency: Price("", per_hour, currency, "1"), st.floats(0, 100), st.sampled_from(CURRENCIES)
)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Polls of a node of two GPUs; most things stay from one to the next."""
    found: list[Step] = []
    for _ in range(draw(st.integers(2, 25))):
        gpus = tuple(
            gpu(
                number,
                draw(st.none() | st.floats(-0.5, 1.5)),
                state=draw(st.sampled_from([GpuState.OK, GpuState.OK, GpuState.OK, GpuState.LOST])),
            )
            for number in range(2)
        )
        if not found or draw(st.integers(0, 3)) == 0:
            holdings = tuple(holding for number in range(2) for holding in draw(holders(number)))
            price = draw(prices)
        else:
            holdings, price = found[-1].holdings, found[-1].price
        found.append(
            Step(
                draw(st.floats(0, 5) | st.sampled_from([30.0, 400.0, -2.0])),
                gpus,
                holdings,
                price,
                draw(st.integers(0, 9)) == 0,
                draw(st.integers(0, 5)) == 0,
            )
        )
    return found


def run(script: list[Step], *, restarts: bool = False) -> list[MeterView]:
    """The view after each step."""
    node = Node()
    views = []
    for step in script:
        if restarts and step.restart:
            content, _ = encode_file(node.meter.dump(), "boot", 1)
            again = Node()
            again.meter.load(decode_file(content).state, same_boot=True)
            again.now, node = node.now, again
        node.price = step.price
        views.append(node.poll(step.gpus, owners(*step.holdings), step.seconds, quiesced=step.quiesced))
    return views


@given(steps())
def test_what_was_billed_is_the_time_that_passed(script: list[Step]) -> None:
    """Allocated time over all accounts is the time of both GPUs; the rest is in gaps. Nothing lingers out before it is
    counted: what an account has when it goes is added.
    """
    views = run(script)

    gone = 0.0
    for before, after in pairwise(views):
        was, now = rows(before), rows(after)
        per_run = {
            (each.uuid, each.project, each.run, each.task): values[0] for each, values in now.items() if values[0]
        }
        for account, values in was.items():
            key = (account.uuid, account.project, account.run, account.task)
            # One that begins again from zero has less than it had.
            if values[0] is not None and per_run.get(key, 0.0) < values[0] - 1e-9:
                gone += values[0]
    total = gone + sum(values[0] or 0.0 for values in rows(views[-1]).values())
    passed = sum(2 * max(step.seconds, 0.0) for step in script[1:])
    assert total + views[-1].unbilled_seconds == pytest.approx(passed, abs=1e-6)


@given(steps())
def test_no_total_is_more_than_what_it_is_part_of(script: list[Step]) -> None:
    """Productive time is at most allocated time, unused cost at most cost, and nothing is negative."""
    for view in run(script):
        for account, (allocated, productive, cost, idle, down) in rows(view).items():
            assert productive is None or (allocated is not None and 0.0 <= productive <= allocated)
            for unused in (idle, down):
                assert unused is None or (cost is not None and 0.0 <= unused <= cost)
            assert (idle or 0.0) + (down or 0.0) <= (cost or 0.0) * (1 + 1e-9)
            assert bool(account.currency) == (cost is not None)
            if account.project.startswith("("):
                assert (productive, idle, down) == (None, None, None)


@given(steps())
def test_no_two_rows_are_the_same_series(script: list[Step]) -> None:
    """Seconds have no currency; money has."""
    for view in run(script):
        timed = [
            (account.uuid, account.project, account.run, account.task)
            for account, values in rows(view).items()
            if values[0] is not None
        ]
        assert len(timed) == len(set(timed))
        assert len(view.accounts) == len(set(view.accounts))
        assert set(view.accounts) == set(rows(view))


@given(steps())
def test_nothing_runs_backwards(script: list[Step]) -> None:
    """A total that stays is at least what it was, unless its account had gone meanwhile."""
    node = Node()
    for step in script:
        before = rows(node.meter.view)
        node.price = step.price
        after = rows(node.poll(step.gpus, owners(*step.holdings), step.seconds, quiesced=step.quiesced))
        if step.seconds > 300:
            continue
        for account, values in after.items():
            for column, (was, now) in enumerate(zip(before.get(account, values), values, strict=True)):
                # The seconds go to the account of the currency that the price has now.
                assert now is None or was is None or now >= was or column < 2
                assert was is None or now is not None or column < 2


@given(steps())
def test_restarts_change_no_total(script: list[Step]) -> None:
    """A meter that is stopped and started between any two polls says what one says that was not."""
    for through, restarted in zip(run(script), run(script, restarts=True), strict=True):
        assert restarted.accounts == through.accounts
        assert list(restarted.values) == [
            None if value is None else pytest.approx(value, abs=1e-9) for value in through.values
        ]
        assert restarted.gaps == through.gaps


texts = st.text(st.characters(codec="utf-8"), max_size=20)
totals = st.none() | st.floats(0, 1e15)


@st.composite
def states(draw: st.DrawFn) -> MeterState:
    """Any state that a meter could have."""
    names = draw(st.lists(st.tuples(texts, texts, texts, texts), max_size=6, unique=True))
    accounts = tuple(Account(number, *name, currency="USD") for number, name in enumerate(names))
    return MeterState(
        draw(st.none() | st.floats(0, 1e9)),
        draw(st.integers(0, 1 << 40)),
        draw(st.floats(0, 1e15)),
        accounts,
        tuple(draw(totals) for _ in range(5 * len(accounts))),
        tuple(draw(st.none() | st.floats(0, 1e9)) for _ in accounts),
    )


@given(states(), st.none() | texts, st.integers(0, (1 << 64) - 1))
def test_a_state_comes_back_exactly(state: MeterState, boot_id: str | None, sequence: int) -> None:
    """Every bit, and a meter takes it."""
    check(state)
    kept = decode_file(encode_file(state, boot_id, sequence)[0])

    assert (kept.state, kept.boot_id, kept.sequence) == (state, boot_id, sequence)
    assert kept.state.values == state.values
    node = Node()
    node.meter.load(kept.state, same_boot=True)
    assert set(node.meter.dump().accounts) == set(state.accounts)


@given(st.data(), st.integers(1, 1000))
def test_a_write_that_is_cut_short_leaves_the_state_before_or_the_new_one(data: st.DataObject, sequence: int) -> None:
    """At whatever byte the process or the power ends; never a mixture, never less than the write before."""
    accounts = tuple(Account(number, "GPU-0", f"p{number}") for number in range(data.draw(st.integers(1, 4))))
    count = len(accounts)

    def state(at: float) -> MeterState:
        return MeterState(at, 0, 0.0, accounts, (at,) * 5 * count, (None,) * count)

    content, layout = encode_file(state(1.0), "boot", sequence)
    file = bytearray(content)
    newest = 1.0
    for step in range(1, data.draw(st.integers(1, 6)) + 1):
        slot = encode_slot(state(1.0 + step), sequence + step)
        place = layout.place(sequence + step)
        length = data.draw(st.just(len(slot)) | st.integers(0, len(slot)))
        file[place : place + length] = slot[:length]
        found = decode_file(bytes(file)).state
        assert found in {state(newest), state(1.0 + step)}
        assert length < len(slot) or found == state(1.0 + step)
        if length < len(slot):
            return
        newest = 1.0 + step


@given(st.binary(max_size=300) | states().map(lambda state: encode_file(state, None, 1)[0]), st.data())
def test_any_bytes_are_refused_or_a_state(content: bytes, data: st.DataObject) -> None:
    """Whatever a disk gives back: one kind of error, or what can be shown."""
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(0, 3)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        state = decode_file(bytes(damaged)).state
        check(state)
    except MeterStateError:
        return
    assert len(state.values) == 5 * len(state.accounts)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_the_file_always_has_the_last_write(accounts: list[int]) -> None:
    """Whether accounts came or went, or only numbers changed; by the class that writes."""
    kinds = [tuple(Account(number, "GPU-0", f"p{number}") for number in range(count)) for count in range(3)]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / NAME
        writer = _Writer(file, "boot")
        for step, count in enumerate(accounts):
            state = MeterState(float(step), 0, 0.0, kinds[count], (float(step),) * 5 * count, (None,) * count)
            writer.write(state)
            assert decode_file(file.read_bytes()).state == state
        writer.forget()
