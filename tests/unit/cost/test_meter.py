"""Who is billed for what, poll by poll."""

from __future__ import annotations

import math

import pytest

from gpufleet.cost.ledger import MOST_HELD, MOST_LINGERING, OTHERS
from gpufleet.cost.meter import Meter
from gpufleet.cost.meter_state import MeterState, MeterStateError
from gpufleet.model.meter import Account, Price
from gpufleet.model.owner import Hold
from gpufleet.model.readings import Key, Readings
from gpufleet.model.snapshot import GpuSnapshot
from gpufleet.model.state import GpuState
from tests.support.metered import IDENTITIES, Node, cut, gpu, held, owners, row, rows


def near(*values: float | None) -> list[object]:
    """Totals but for the rounding of sums."""
    return [None if value is None else pytest.approx(value) for value in values]


def test_a_holder_pays_for_its_time_and_wastes_what_it_does_not_use() -> None:
    """Two seconds at 50 %: two allocated, one productive, half of the cost unused, nothing down."""
    node = Node()
    node.poll([gpu()], owners(held()))
    node.poll([gpu()], owners(held()))

    view = node.poll([gpu()], owners(held()))

    assert list(row(view)) == near(2.0, 1.0, 0.002, 0.001, 0.0)
    assert view.accounts == (Account(0, "GPU-0", "p", "run", "t", "USD"),)
    assert view.prices == (node.price,)


def test_the_first_poll_bills_nothing_and_shows_zeros() -> None:
    """A counter that begins at zero loses nothing to whoever takes differences."""
    assert list(row(Node().poll([gpu()], owners(held())))) == [0.0, 0.0, 0.0, 0.0, 0.0]


def test_holders_share_a_gpu_by_their_shares() -> None:
    """Each pays for its fraction; together they pay for the GPU."""
    node = Node()
    view = owners(held(share=0.25, run="a"), held(share=0.75, run="b"))
    node.poll([gpu()], view)

    found = node.poll([gpu()], view, 4.0)

    assert list(row(found, "a")) == near(1.0, 0.5, 0.001, 0.0005, 0.0)
    assert list(row(found, "b")) == near(3.0, 1.5, 0.003, 0.0015, 0.0)


@pytest.mark.parametrize("hold", [Hold.UNALLOCATED, Hold.UNSLICED, Hold.UNKNOWN])
@pytest.mark.parametrize("state", [GpuState.OK, GpuState.LOST])
def test_what_nobody_holds_has_a_cost_and_neither_use_nor_waste(hold: Hold, state: GpuState) -> None:
    """Also while the GPU is down."""
    node = Node()
    node.poll([gpu(state=state)], owners(held(hold=hold)))

    view = node.poll([gpu(state=state)], owners(held(hold=hold)))

    assert list(row(view, "", hold.value)) == near(1.0, None, 0.001, None, None)


def test_a_gpu_of_which_no_source_knows_has_no_account() -> None:
    """Nobody could say whose time it is."""
    view = Node().poll([gpu(0), gpu(1)], owners(held(1)))

    assert [account.gpu for account in view.accounts] == [1]
    assert len(view.prices) == 2


def test_a_gpu_that_is_down_bills_its_holder_and_all_of_it_is_unused() -> None:
    """The reason is down, and idle goes no further."""
    node = Node()
    node.poll([gpu()], owners(held()))
    node.poll([gpu()], owners(held()))

    view = node.poll([gpu(state=GpuState.HUNG)], owners(held()), 2.0)

    assert list(row(view)) == near(3.0, 0.5, 0.003, 0.0005, 0.002)


def test_a_quiesced_exporter_measures_nothing_and_bills_all_the_same() -> None:
    """It is not down: nobody looked."""
    node = Node()
    node.poll([gpu(state=GpuState.GONE)], owners(held()), quiesced=True)

    view = node.poll([gpu(state=GpuState.GONE)], owners(held()), quiesced=True)

    assert list(row(view)) == near(1.0, None, 0.001, None, None)


def test_a_reading_that_is_missing_leaves_the_totals_as_they_are() -> None:
    """Allocated time and cost go on, the measured totals stay and are not lost."""
    node = Node()
    node.poll([gpu()], owners(held()))
    node.poll([gpu()], owners(held()))

    view = node.poll([gpu(sm=None)], owners(held()))

    assert list(row(view)) == near(2.0, 0.5, 0.002, 0.0005, 0.0)


@pytest.mark.parametrize(
    ("setting", "basis", "productive"),
    [
        ("auto", "sm", 0.5),
        ("auto", "gpu", 0.9),
        ("auto", None, None),
        ("sm", "gpu", 0.5),
        ("gpu", "sm", 0.9),
        ("tensor", "sm", 0.25),
    ],
)
def test_the_setting_chooses_the_reading(setting: str, basis: str | None, productive: float | None) -> None:
    """``auto`` follows the GPU; the others are what they say."""
    node = Node(utilization=setting)
    node.poll([gpu(basis=basis)], owners(held()))

    assert row(node.poll([gpu(basis=basis)], owners(held())))[1] == (
        None if productive is None else pytest.approx(productive)
    )


def test_an_unknown_basis_is_refused() -> None:
    """With the ones that there are."""
    with pytest.raises(ValueError, match="auto, sm, gpu, tensor"):
        Meter(interval=1.0, utilization="fp64", price_of=lambda _: None)


@pytest.mark.parametrize(("value", "productive"), [(1.5, 1.0), (-0.5, 0.0), (math.nan, None)])
def test_a_reading_that_cannot_be_is_clamped(value: float, productive: float | None) -> None:
    """Nobody produces more than was held, or less than nothing; what is no number is no measurement."""
    node = Node()
    node.poll([gpu(sm=value)], owners(held()))

    assert row(node.poll([gpu(sm=value)], owners(held())))[1] == productive


def test_a_reading_is_found_wherever_it_is() -> None:
    """Layouts come and go with the parts of a poll; none is taken for another."""
    node = Node()
    node.poll([gpu()], owners(held()))
    for _ in range(3000):
        keys = (Key("other"), Key("sm_active_ratio"))
        snapshot = GpuSnapshot(
            0,
            IDENTITIES[0],
            GpuState.OK,
            1.0,
            parts=(Readings((Key("a"),), (0.9,)), Readings(keys, (0.9, 1.0))),
            utilization_basis="sm",
        )
        node.poll([snapshot], owners(held()))

    assert row(node.meter.view)[:2] == (3000.0, 3000.0)


def test_slices_are_measured_by_their_own_activity_and_by_the_one_that_carries_it() -> None:
    """A compute instance without a sample of its own has that of its GPU instance."""
    node = Node()
    slices = (
        cut("MIG-a", 0.2, instance=1),
        cut("MIG-b", None, instance=1, carries=False),
        cut("MIG-c", 1.0, instance=2),
    )
    view = owners(
        held(share=0.25, run="a", mig="MIG-a"),
        held(share=0.25, run="b", mig="MIG-b"),
        held(share=0.25, run="c", mig="MIG-c"),
        held(share=0.25, hold=Hold.UNSLICED),
    )
    node.poll([gpu(slices=slices)], view)

    found = node.poll([gpu(slices=slices)], view, 4.0)

    assert [row(found, run)[1] for run in "abc"] == near(0.2, 0.2, 1.0)
    assert row(found, "", "(unsliced)")[1] is None


def test_the_drivers_own_utilization_is_none_of_a_slice() -> None:
    """There is no such reading."""
    node = Node(utilization="gpu")
    view = owners(held(mig="MIG-a"))
    node.poll([gpu(slices=[cut("MIG-a", 0.2, instance=1)])], view)

    assert row(node.poll([gpu(slices=[cut("MIG-a", 0.2, instance=1)])], view))[1] is None


def test_a_slice_that_is_gone_is_unmeasured_and_found_again() -> None:
    """Holders are refreshed less often than slices; positions among them change meanwhile."""
    node = Node()
    view = owners(held(mig="MIG-b"))
    both = [cut("MIG-a", 0.1, instance=1), cut("MIG-b", 1.0, instance=2)]
    node.poll([gpu(slices=both)], view)
    node.poll([gpu(slices=both)], view)
    node.poll([gpu(slices=both[:1])], view)

    found = node.poll([gpu(slices=both[1:])], view)

    assert row(found)[:2] == (3.0, 2.0)


def test_a_cut_gpu_that_is_down_bills_the_holders_of_its_slices() -> None:
    """It shows no slices then."""
    node = Node()
    view = owners(held(mig="MIG-a"))
    node.poll([gpu(slices=[cut("MIG-a", 1.0, instance=1)])], view)

    found = node.poll([gpu(state=GpuState.LOST)], view)

    assert list(row(found)) == near(1.0, 0.0, 0.001, 0.0, 0.001)


@pytest.mark.parametrize(("seconds", "unbilled"), [(5.1, 10.2), (-3.0, 0.0)])
def test_a_gap_is_billed_to_nobody_and_counted(seconds: float, unbilled: float) -> None:
    """More than five intervals, or a clock that ran back; of two GPUs with holders, not of the third."""
    node = Node()
    gpus = [gpu(0), gpu(1), gpu(2)]
    view = owners(held(0), held(1))
    node.poll(gpus, view)

    found = node.poll(gpus, view, seconds)

    assert [values[0] for values in rows(found).values()] == [0.0, 0.0]
    assert found.gaps == 1
    assert found.unbilled_seconds == pytest.approx(unbilled)
    assert [values[0] for values in rows(node.poll(gpus, view)).values()] == [1.0, 1.0]


def test_five_intervals_are_no_gap() -> None:
    """The limit itself is billed."""
    node = Node()
    node.poll([gpu()], owners(held()))

    assert row(node.poll([gpu()], owners(held()), 5.0))[0] == 5.0


def test_without_a_price_there_is_time_and_no_money() -> None:
    """The account has no currency."""
    node = Node(price=None)
    node.poll([gpu()], owners(held()))

    view = node.poll([gpu()], owners(held()))

    assert list(row(view, currency="")) == near(1.0, 0.5, None, None, None)
    assert view.prices == ()


def test_a_new_price_goes_on_in_the_same_account() -> None:
    """What was billed before stays as it was."""
    node = Node()
    node.poll([gpu()], owners(held()))
    before = node.poll([gpu()], owners(held()))
    node.price = Price("", 7.2, "USD", "7.2")

    after = node.poll([gpu()], owners(held()))

    assert row(after)[2] == pytest.approx(0.003)
    assert after.accounts is before.accounts
    assert after.prices == (node.price,)


def test_another_currency_takes_the_seconds_along_and_leaves_the_money() -> None:
    """Seconds have no currency: in two accounts at once they would be one series twice."""
    node = Node()
    node.poll([gpu()], owners(held()))
    node.poll([gpu()], owners(held()))
    node.price = Price("", 7.2, "EUR", "7.2")

    view = node.poll([gpu()], owners(held()))

    assert list(row(view, currency="EUR")) == near(2.0, 1.0, 0.002, 0.001, 0.0)
    assert list(row(view, currency="USD")) == near(None, None, 0.001, 0.0005, 0.0)
    assert [each.currency for each in node.poll([gpu()], owners(held()), 400.0).accounts] == ["EUR"]


def test_the_first_price_leaves_no_account_without_money_behind() -> None:
    """An account of nothing has nothing to show."""
    node = Node(price=None)
    node.poll([gpu()], owners(held()))
    node.price = Price("", 3.6, "USD", "3.6")

    assert [each.currency for each in node.poll([gpu()], owners(held())).accounts] == ["USD"]


def test_an_account_lingers_and_then_goes_for_good() -> None:
    """Six minutes after it held something last; its successor begins at zero."""
    node = Node()
    node.poll([gpu()], owners(held(run="a")))
    node.poll([gpu()], owners(held(run="a")))
    free = owners(held(hold=Hold.UNALLOCATED))
    for _ in range(71):
        node.poll([gpu()], free, 5.0)
    assert row(node.meter.view, "a")[0] == 1.0

    assert {each.run for each in node.poll([gpu()], free, 5.0).accounts} == {""}
    assert row(node.poll([gpu()], owners(held(run="a"))), "a")[0] == 1.0


def test_a_holder_that_comes_back_in_time_goes_on() -> None:
    """Its totals are still shown, so they go on."""
    node = Node()
    node.poll([gpu()], owners(held()))
    node.poll([gpu()], owners(held()))
    node.poll([gpu()], owners(), 5.0)

    assert row(node.poll([gpu()], owners(held())))[0] == 2.0


def test_views_keep_what_has_not_changed() -> None:
    """The same accounts and prices are the same objects, also for equal holders in another tuple."""
    node = Node()
    first = node.poll([gpu()], owners(held()))

    second = node.poll([gpu()], owners(held()))

    assert second.accounts is first.accounts
    assert second.prices is first.prices


def test_an_account_follows_the_number_of_its_gpu() -> None:
    """The number is a label like others; the UUID is who it is."""
    node = Node()
    node.poll([gpu()], owners(held()))
    moved = GpuSnapshot(7, IDENTITIES[0], GpuState.OK, 1.0)

    view = node.poll([moved], owners(held()))

    assert [account.gpu for account in view.accounts] == [7]
    assert row(view)[0] == 1.0


def test_holders_without_end_are_billed_together() -> None:
    """Nothing is lost: what has no account of its own any more has one with others."""
    node = Node()
    count = 2 * MOST_HELD
    view = owners(*(held(share=1 / count, run=f"{number:04}") for number in range(count)))
    node.poll([gpu()], view)

    found = node.poll([gpu()], view)

    assert len(found.accounts) == MOST_HELD + 1
    assert sum(values[0] or 0.0 for values in rows(found).values()) == pytest.approx(1.0)
    assert row(found, "", OTHERS)[0] == pytest.approx(0.5)


def test_accounts_that_hold_nothing_are_bounded() -> None:
    """The oldest go first when runs of seconds follow each other."""
    node = Node()
    for number in range(3 * MOST_LINGERING):
        node.poll([gpu()], owners(held(run=f"{number:04}")))

    accounts = node.meter.view.accounts
    assert len(accounts) == MOST_LINGERING + 1
    assert accounts[0].run == f"{2 * MOST_LINGERING - 1:04}"


def test_two_slices_of_one_run_are_one_account() -> None:
    """Labels of a bill have no slice."""
    node = Node()
    view = owners(held(share=0.5, mig="MIG-a"), held(share=0.5, mig="MIG-b"))
    node.poll([gpu()], view)

    assert row(node.poll([gpu()], view))[0] == 1.0


def test_a_restart_goes_on_where_it_was_and_bills_the_time_between() -> None:
    """The state of the same boot has the same clock."""
    old = Node()
    old.poll([gpu()], owners(held()))
    old.poll([gpu()], owners(held()))
    new = Node()
    new.meter.load(old.meter.dump(), same_boot=True)
    new.now = old.now

    view = new.poll([gpu()], owners(held()), 3.0)

    assert list(row(view)) == near(4.0, 2.0, 0.004, 0.002, 0.0)
    assert view.gaps == 0


def test_another_boot_has_another_clock() -> None:
    """Totals go on, the time between is billed to nobody, and what had ended does not come back."""
    old = Node()
    old.poll([gpu()], owners(held(run="ended")))
    old.poll([gpu()], owners(held(run="ended")))
    old.poll([gpu()], owners(held()))
    old.poll([gpu()], owners(held()))
    new = Node()
    new.meter.load(old.meter.dump(), same_boot=False)

    view = new.poll([gpu()], owners(held()))

    assert {account.run: values[0] for account, values in rows(view).items()} == {"run": 2.0}
    assert view.gaps == 0


def test_a_long_stop_is_a_gap() -> None:
    """As between two polls, and the accounts of then have lingered long enough."""
    old = Node()
    old.poll([gpu()], owners(held(run="a")))
    old.poll([gpu()], owners(held(run="a")))
    new = Node()
    new.meter.load(old.meter.dump(), same_boot=True)
    new.now = old.now

    view = new.poll([gpu()], owners(held(run="b")), 3600.0)

    assert (view.gaps, view.unbilled_seconds) == (1, 3600.0)
    assert {account.run for account in view.accounts} == {"b"}


@pytest.mark.parametrize(
    "state",
    [
        MeterState(values=(1.0,)),
        MeterState(accounts=(Account(0, "GPU-0", "p"),), values=(math.nan, None, None, None, None), until=(None,)),
        MeterState(accounts=(Account(0, "GPU-0", "p"),), values=(-1.0, None, None, None, None), until=(None,)),
        MeterState(accounts=(Account(0, "GPU-0", "p"),), values=(math.inf, None, None, None, None), until=(None,)),
        MeterState(accounts=(Account(0, "GPU-0", "p"),), values=(None,) * 5, until=(math.nan,)),
        MeterState(accounts=(Account(-1, "GPU-0", "p"),), values=(None,) * 5, until=(None,)),
        MeterState(accounts=(Account(0, "GPU-0", "\ud800"),), values=(None,) * 5, until=(None,)),
        MeterState(accounts=(Account(0, "GPU-0", "p" * 5000),), values=(None,) * 5, until=(None,)),
        MeterState(accounts=(Account(0, "GPU-0", "p"),) * 2, values=(None,) * 10, until=(None,) * 2),
        MeterState(
            accounts=(Account(0, "GPU-0", "p", currency="USD"), Account(0, "GPU-0", "p", currency="EUR")),
            values=(1.0, None, None, None, None) * 2,
            until=(None,) * 2,
        ),
        MeterState(monotonic=math.inf),
        MeterState(gaps=-1),
        MeterState(unbilled_seconds=math.nan),
    ],
)
def test_a_state_that_cannot_be_shown_is_refused_whole(state: MeterState) -> None:
    """The meter stays as it was."""
    node = Node()

    with pytest.raises(MeterStateError):
        node.meter.load(state, same_boot=True)

    assert node.poll([gpu()], owners(held())).accounts == (Account(0, "GPU-0", "p", "run", "t", "USD"),)


def test_an_owner_without_a_name_is_still_an_account() -> None:
    """Empty texts are labels like others."""
    node = Node()
    nameless = owners(held(run=""))
    node.poll([gpu()], nameless)

    assert row(node.poll([gpu()], nameless), "")[0] == 1.0
