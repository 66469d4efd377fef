"""Whatever the order, the source and the content of events: one root, unique names, counts that only grow."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.faults.ledger import Ledger
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.incident import FaultsView, Owner
from gpufleet.model.state import GpuState, NvmlState
from tests.support.driver_lines import (
    CONTAINED,
    DBE,
    LINK_FAULT,
    MMU,
    OFF_THE_BUS,
    REMAP_FAILED,
    REMAPPED,
    TIMEOUT,
    UNCONTAINED,
)
from tests.support.fault_rig import START, FaultRig, Gpu, address

CHAIN = {
    13: "",
    31: MMU.format(pid=1),
    32: "",
    43: "",
    45: "pid=3, name=x, Ch 1",
    46: "",
    48: DBE,
    62: "",
    63: REMAPPED,
    64: REMAP_FAILED,
    69: "",
    74: LINK_FAULT,
    79: OFF_THE_BUS,
    94: CONTAINED,
    95: UNCONTAINED,
    109: "",
    119: TIMEOUT,
    122: "",
    140: "",
    143: "",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}

CODES = st.one_of(st.sampled_from(sorted(CHAIN)), st.integers(-5, 200), st.none())
ADDRESSES = st.one_of(st.sampled_from([address(gpu) for gpu in range(5)]), st.none(), st.text(max_size=20))
TEXTS = st.one_of(st.sampled_from(list(CHAIN.values())), st.text(max_size=40))
TIMES = st.one_of(st.floats(START - 1e6, START + 1e6), st.floats(), st.just(START))

EVENTS = st.builds(
    FaultEvent,
    kind=st.sampled_from(FaultKind),
    at=TIMES,
    source=st.sampled_from(["kmsg", "nvml", "udev", "poll", "file", ""]),
    pci_bus_id=ADDRESSES,
    code=CODES,
    condition=st.one_of(
        st.none(), st.sampled_from(["row_remap_failure", "gpu_lost", "recovery_action", "x"]), st.text(max_size=99)
    ),
    pid=st.one_of(st.none(), st.integers(-1, 1 << 40)),
    process=st.one_of(st.none(), st.text(max_size=20)),
    gpu_instance=st.one_of(st.none(), st.integers(0, 14)),
    text=TEXTS,
    sequence=st.one_of(st.none(), st.integers(-1, 1 << 40)),
    caused_by=CODES,
    recovery_action=st.one_of(st.none(), st.integers(-1, 9)),
    recovery_action_before=st.one_of(st.none(), st.integers(-1, 9)),
    needs_reset=st.one_of(st.none(), st.booleans()),
    needs_drain=st.one_of(st.none(), st.booleans()),
    fatal=st.one_of(st.none(), st.booleans()),
    link=st.one_of(st.none(), st.integers(-1, 40)),
    unit=st.one_of(st.none(), st.text(max_size=10)),
    registers=st.lists(st.integers(0, 1 << 32), max_size=8).map(tuple),
    continues=st.booleans(),
)

GPUS = st.builds(
    Gpu,
    number=st.integers(0, 4),
    generation=st.integers(0, 1),
    state=st.sampled_from(GpuState),
    recovery=st.sampled_from(["none", "gpu_reset", "node_reboot", "drain_p2p", "unknown", None]),
    pending=st.sampled_from([0, 1, None]),
    failure=st.sampled_from([0, 1, None]),
    threshold=st.sampled_from([0, 1, None]),
    energy=st.sampled_from([10.0, 1e6, None]),
    dram=st.sampled_from([0, 1, 2, None]),
    sram=st.sampled_from([0, 1, None]),
    fabric=st.sampled_from([{}, {"route_unhealthy": 1}]),
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), EVENTS),
        st.tuples(st.just("poll"), st.lists(GPUS, max_size=5)),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 1.0, 6.0, 31.0, 200.0, 4000.0, 100_000.0])),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("clear"), st.integers(0, 3)),
        st.tuples(st.just("device"), st.sampled_from(["add", "remove", "bind", "unbind"])),
        st.tuples(st.just("readable"), st.booleans()),
    ),
    max_size=60,
)


def new_ledger(boot: str = "boot-1", *, random_id: str | None = None) -> Ledger:
    """A ledger whose randomness is a counter, or always the same."""
    ids = itertools.count(1)
    return Ledger(
        node="node-1",
        boot_id=boot,
        random_id=lambda: random_id or f"{next(ids):016x}",
        owner_of=lambda uuid: Owner(project=uuid[-1:]),
    )


def names(view: FaultsView) -> list[str]:
    """Names of all incidents that are open."""
    return [each.id for each in (*view.active, *view.settling)]


@given(
    st.lists(st.sampled_from(sorted(CHAIN)), min_size=1, max_size=6, unique=True).flatmap(
        lambda codes: st.tuples(st.just(codes), st.permutations(codes), st.permutations(codes))
    )
)
@settings(max_examples=300)
def test_the_order_of_a_chain_does_not_change_its_root(orders: tuple[list[int], list[int], list[int]]) -> None:
    """Lines of one chain within a few seconds, in any order: the same root, and at least the same cure."""
    outcomes = set()
    for order in orders:
        rig = FaultRig(gpus=1)
        for code in order:
            rig.xid(code, CHAIN[code], after=0.01)
        rig.wait(60)
        outcomes.add(tuple((each.root, each.action, each.isolate) for each in rig.active()))

    assert len(outcomes) == 1


@given(
    st.lists(st.sampled_from([31, 45, 48, 63, 64, 94, 95, 119, 62, 140]), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from([31, 45, 48, 63, 64, 94, 95, 119, 62, 140]), min_size=1, max_size=4, unique=True),
    st.randoms(use_true_random=False),
)
def test_chains_of_two_gpus_fold_apart_however_they_are_mixed(one: list[int], other: list[int], random: object) -> None:
    """Each GPU's incident is what it would be alone."""
    lines = [(0, code) for code in one] + [(1, code) for code in other]
    getattr(random, "shuffle")(lines)  # noqa: B009 -- hypothesis's own Random has no public type
    rig = FaultRig(gpus=2)
    for gpu, code in lines:
        rig.xid(code, CHAIN[code], gpu=gpu, after=0.01)
    rig.wait(60)
    together = {each.gpu: (each.root, each.action, each.isolate, each.refund) for each in rig.active()}

    for gpu, codes in ((0, [code for at, code in lines if at == 0]), (1, [code for at, code in lines if at == 1])):
        alone = FaultRig(gpus=2)
        for code in codes:
            alone.xid(code, CHAIN[code], gpu=gpu, after=0.01)
        alone.wait(60)
        expected = [(each.root, each.action, each.isolate, each.refund) for each in alone.active()]
        assert [together[gpu]] == expected if expected else gpu not in together


@given(STEPS)
@settings(max_examples=300)
def test_nothing_that_is_fed_raises_and_every_name_is_unique(steps: list[tuple[str, object]]) -> None:
    """Any events, polls, waits, restarts and reboots in any order: names stay unique, counts only grow in a boot."""
    ledger, boots, now = new_ledger(random_id="f" * 16), itertools.count(2), START
    boot = "boot-1"
    ledger.replay_ended(now)
    counted: Counter[tuple[str | None, str | None, int | None]] = Counter()
    rig = FaultRig(gpus=0)
    for step, what in steps:
        match step, what:
            case "feed", FaultEvent():
                ledger.feed(what, now)
            case "poll", list():
                rig.gpus, rig.ledger, rig.now, rig.boot = what, ledger, now, boot
                rig.poll(nvml=NvmlState.OK)
            case "wait", float():
                now += what
                ledger.tick(now)
            case "restart", bool():
                kept = json.loads(json.dumps(ledger.dump()))
                if what:
                    boot = f"boot-{next(boots)}"
                    counted.clear()
                ledger = new_ledger(boot, random_id="f" * 16)
                ledger.load(kept, now)
                assert json.loads(json.dumps(ledger.dump())) == kept or what
                ledger.replay_ended(now)
            case "clear", int():
                open_now = names(ledger.view())
                if open_now:
                    assert ledger.clear(open_now[what % len(open_now)], now)
            case "device", str():
                ledger.device(what, address(0), now)
            case "readable", bool():
                ledger.log_readable(readable=what, now=now)
        view = ledger.view()
        assert len(names(view)) == len(set(names(view)))
        assert all(not each.refund or each.blame.value == "hardware" for each in view.active)
        assert all(len(each.id) == 16 and each.shown_at is not None for each in view.active)
        total = Counter({None: sum(row.count for row in view.xid_errors or ())})
        assert total[None] >= counted[None, None, None]
        counted[None, None, None] = total[None]


@given(st.lists(EVENTS, max_size=40), st.data())
def test_what_was_fed_before_a_restart_is_not_counted_again(events: list[FaultEvent], data: st.DataObject) -> None:
    """A log cut anywhere, the state written there, and the whole log read again: the same counts as read once."""
    log = [replace(event, source="kmsg", sequence=number) for number, event in enumerate(events)]
    cut = data.draw(st.integers(0, len(log)))
    once, twice = new_ledger(), new_ledger()
    for event in log:
        once.feed(event, START + 1e6)
    for event in log[:cut]:
        twice.feed(event, START + 1e6)
    kept = json.loads(json.dumps(twice.dump()))
    twice = new_ledger()
    twice.load(kept, START + 1e6)
    for event in log:
        twice.feed(event, START + 1e6)
    once.replay_ended(START + 1e6)
    twice.replay_ended(START + 1e6)

    assert twice.view().xid_errors == once.view().xid_errors
    assert twice.view().switch_errors == once.view().switch_errors
    assert names(twice.view()) == names(once.view())


@given(st.lists(EVENTS, max_size=30))
def test_a_view_once_given_never_changes(events: list[FaultEvent]) -> None:
    """It is immutable, whatever comes afterwards."""
    ledger = new_ledger()
    ledger.replay_ended(START)
    views: list[tuple[FaultsView, str]] = []
    for event in events:
        ledger.feed(event, START)
        ledger.tick(START)
        views.append((ledger.view(), repr(ledger.view())))

    assert all(repr(view) == was for view, was in views)
