from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.metrics.catalog import FAMILIES, ORDER
from gpufleet.metrics.family import Level
from gpufleet.metrics.render import OPENMETRICS_END, Renderer
from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.incident import FaultsView
from gpufleet.model.readings import Key, Readings
from gpufleet.model.snapshot import GpuSnapshot, NodeIdentity, PollHealth, Snapshot
from gpufleet.model.state import GpuState, NvmlState
from tests.unit.metrics.incidents import INCIDENT, SWITCH
from tests.unit.metrics.snapshots import FAST, GPM, MEDIUM, OTHERS, SLOW, down, gpu, held, hopper_node, node, simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.core import Metric

    from gpufleet.model.readings import Number
    from tests.promtool import Promtool

LEVELS = tuple(Level)
# Named in the catalogue and shown by the process itself, not by the snapshot.
OF_THE_PROCESS = {
    "gpufleet_build_info",
    "gpufleet_collector_errors_total",
    "gpufleet_alertmanager_up",
    "gpufleet_alertmanager_notifications_total",
}


def series(text: str) -> dict[str, str]:
    """Map each line's series, as written, to its value, as written."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = dict(line.rsplit(" ", 1) for line in lines)
    assert len(found) == len(lines), "a series is there twice"
    return found


def values_of(text: str, family: str) -> dict[str, str]:
    """Map the labels of a family's series to their values."""
    return {name.removeprefix(family): value for name, value in series(text).items() if name.split("{")[0] == family}


def one_gpu(*readings: tuple[Key, Number | None]) -> Snapshot:
    """Make a node with one GPU that reports these."""
    keys, values = tuple([key for key, _ in readings]), tuple([value for _, value in readings])
    return node(replace(gpu(0, parts=()), parts=(Readings(keys, values),)))


def test_a_small_snapshot_is_written_exactly_so() -> None:
    """The whole text of a node with one GPU, in the text format."""
    snapshot = Snapshot(
        sequence=1,
        at=1000.5,
        monotonic=1.0,
        node=NodeIdentity(node="n1", driver_version="580.65.06"),
        nvml_state=NvmlState.OK,
        gpus=(
            GpuSnapshot(
                number=3,
                identity=GpuIdentity(uuid="GPU-a", name="NVIDIA L4", pci_bus_id="0000:1b:00.0"),
                state=GpuState.OK,
                polled_at=1000.25,
                parts=(
                    Readings(
                        (Key("energy_joules"), Key("clock_event_active", ("gpu_idle",)), Key("temperature_celsius")),
                        (12.5, 1, None),
                    ),
                ),
            ),
        ),
        gpus_expected=1,
        poll=PollHealth(duration_seconds=0.002, polls=7),
    )
    expected = """\
# HELP gpu_info Identity of the GPU, always 1. Labels that its driver or the configuration does not give are left out.
# TYPE gpu_info gauge
gpu_info{gpu="3",uuid="GPU-a",node="n1",name="NVIDIA L4",pci_bus_id="0000:1b:00.0",driver_version="580.65.06"} 1
# HELP gpu_up 1 if the GPU answered its last poll, 0 if it did not. Absent while the exporter is quiesced.
# TYPE gpu_up gauge
gpu_up{gpu="3",uuid="GPU-a"} 1
# HELP gpu_state 1 for the state that the GPU is in and 0 for the others. Absent when it is not known.
# TYPE gpu_state gauge
gpu_state{gpu="3",uuid="GPU-a",state="ok"} 1
gpu_state{gpu="3",uuid="GPU-a",state="hung"} 0
gpu_state{gpu="3",uuid="GPU-a",state="driver_blocked"} 0
gpu_state{gpu="3",uuid="GPU-a",state="lost"} 0
gpu_state{gpu="3",uuid="GPU-a",state="reset_required"} 0
gpu_state{gpu="3",uuid="GPU-a",state="no_permission"} 0
gpu_state{gpu="3",uuid="GPU-a",state="gone"} 0
# HELP gpufleet_last_poll_timestamp_seconds Unix time of the last poll that this GPU answered.
# TYPE gpufleet_last_poll_timestamp_seconds gauge
gpufleet_last_poll_timestamp_seconds{gpu="3",uuid="GPU-a"} 1000.25
# HELP gpu_clock_event_active 1 if this reason holds the clocks back now, else 0.
# TYPE gpu_clock_event_active gauge
gpu_clock_event_active{gpu="3",uuid="GPU-a",reason="gpu_idle"} 1
# HELP gpu_energy_joules_total Energy used since the driver was loaded.
# TYPE gpu_energy_joules_total counter
gpu_energy_joules_total{gpu="3",uuid="GPU-a"} 12.5
# HELP gpu_count_expected GPUs known to the kernel driver, or to this exporter since boot.
# TYPE gpu_count_expected gauge
gpu_count_expected 1
# HELP gpufleet_node_info The node, always 1.
# TYPE gpufleet_node_info gauge
gpufleet_node_info{node="n1",driver_version="580.65.06"} 1
# HELP gpufleet_nvml_up 1 if the driver library works, else 0. Absent while quiesced.
# TYPE gpufleet_nvml_up gauge
gpufleet_nvml_up 1
# HELP gpufleet_nvml_state 1 for the state that the driver library is in and 0 for the others. Absent when it is not known.
# TYPE gpufleet_nvml_state gauge
gpufleet_nvml_state{state="ok"} 1
gpufleet_nvml_state{state="no_library"} 0
gpufleet_nvml_state{state="no_driver"} 0
gpufleet_nvml_state{state="mismatch"} 0
gpufleet_nvml_state{state="no_permission"} 0
gpufleet_nvml_state{state="no_gpu"} 0
gpufleet_nvml_state{state="hung"} 0
# HELP gpufleet_poll_duration_seconds How long the last poll of the node's GPUs took.
# TYPE gpufleet_poll_duration_seconds gauge
gpufleet_poll_duration_seconds 0.002
# HELP gpufleet_polls_total Polls of the node's GPUs.
# TYPE gpufleet_polls_total counter
gpufleet_polls_total 7
# HELP gpufleet_poll_gaps_total Polls that came more than five intervals after the one before; nothing is integrated over such a gap.
# TYPE gpufleet_poll_gaps_total counter
gpufleet_poll_gaps_total 0
# HELP gpufleet_quiesced 1 while the exporter has let go of the driver as it was told, else 0.
# TYPE gpufleet_quiesced gauge
gpufleet_quiesced 0
# HELP gpufleet_simulated 1 if no real GPU is behind these metrics, else 0.
# TYPE gpufleet_simulated gauge
gpufleet_simulated 0
"""  # noqa: E501 - lines of the exposition
    assert Renderer().text(snapshot) == expected


def test_openmetrics_differs_in_its_headers_only() -> None:
    """Samples are the same; a counter's family loses its _total, and units are said where the name ends in one."""
    snapshot = one_gpu((Key("energy_joules"), 12.5), (Key("xid_errors", ("79",)), 2))
    renderer = Renderer()
    openmetrics = renderer.openmetrics(snapshot)
    assert series(openmetrics) == series(renderer.text(snapshot))
    assert "# TYPE gpu_energy_joules counter\n# UNIT gpu_energy_joules joules\n# HELP gpu_energy_joules " in openmetrics
    assert "# TYPE gpu_xid_errors counter\n# HELP gpu_xid_errors " in openmetrics


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [0, 1, 8])
def test_both_parsers_read_back_every_sample(level: Level, count: int) -> None:
    """The parsers of prometheus-client accept the text and find the types and units of the catalogue."""
    renderer = Renderer(level)
    snapshot = hopper_node(count, slices=3)
    text, openmetrics = renderer.text(snapshot), renderer.openmetrics(snapshot)
    for families in (list(parse_text(text)), list(parse_openmetrics(openmetrics + OPENMETRICS_END))):
        assert sum(len(family.samples) for family in families) == len(series(text))
        declared = {family.openmetrics_name: family for family in FAMILIES.values()}
        for family in families:
            assert family.type == declared[family.name].kind.value
            assert family.documentation == declared[family.name].help
    units: dict[str, Metric] = {family.name: family for family in parse_openmetrics(openmetrics + OPENMETRICS_END)}
    assert units["gpufleet_poll_duration_seconds"].unit == "seconds"


def test_families_stand_in_the_order_of_the_catalogue() -> None:
    """Headers come in catalogue order, and under each the GPUs by number, then the members in their order."""
    gpus = tuple([gpu(number) for number in (11, 2, 0)])
    text = Renderer().text(node(*gpus))
    headers = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert headers == sorted(headers, key=ORDER.__getitem__)
    first = [labels.split('"')[1] for labels in values_of(text, "gpu_temperature_celsius")]
    assert first == ["0", "2", "11"]
    limits = [labels.split('"')[5] for labels in values_of(text, "gpu_power_limit_watts")]
    assert limits[:5] == ["enforced", "requested", "default", "min", "max"]


def test_members_that_are_numbers_are_ordered_as_numbers() -> None:
    """Link 2 comes before link 10, whatever the order in which they were read; names come last."""
    links = ["10", "2", "x", "0"]
    text = Renderer().text(one_gpu(*[(Key("nvlink_transmit_bytes", (link,)), 1) for link in links]))
    assert [labels.split('"')[5] for labels in values_of(text, "gpu_nvlink_transmit_bytes_total")] == [
        "0",
        "2",
        "10",
        "x",
    ]


def test_trailing_labels_without_a_value_are_left_out() -> None:
    """NVLink as a total has no label link, and Xids have no class as long as nobody says it."""
    text = Renderer().text(one_gpu((Key("nvlink_errors", ("crc",)), 4), (Key("xid_errors", ("79",)), 1)))
    assert list(values_of(text, "gpu_nvlink_errors_total")) == [
        '{gpu="0",uuid="GPU-8f1e2d3c-4b5a-6978-8796-a5b4c3d2e100",error="crc"}'
    ]
    assert list(values_of(text, "gpu_xid_errors_total")) == [
        '{gpu="0",uuid="GPU-8f1e2d3c-4b5a-6978-8796-a5b4c3d2e100",xid="79"}'
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (18446744073709551615, "18446744073709551615"),
        (True, "1"),
        (0.1, "0.1"),
        (1e-5, "1e-05"),
        (-2, "-2"),
        (-0.0, "0.0"),
        (1755000000.0, "1755000000.0"),
    ],
)
def test_numbers_are_written_exactly(value: Number, written: str) -> None:
    """Integers as integers, floats as the shortest text that is read back as the same float."""
    text = Renderer().text(one_gpu((Key("memory_used_bytes"), value)))
    assert list(values_of(text, "gpu_memory_used_bytes").values()) == [written]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, 10**400])
def test_what_is_no_number_is_no_series(value: Number | None) -> None:
    """Neither the series nor the header of its family is there, at first and after it was there."""
    renderer = Renderer()
    without = one_gpu((Key("memory_used_bytes"), value), (Key("temperature_celsius"), 54))
    with_it = one_gpu((Key("memory_used_bytes"), 7), (Key("temperature_celsius"), 54))
    for snapshot, there in ((without, False), (with_it, True), (without, False), (with_it, True)):
        for text in (renderer.text(snapshot), renderer.openmetrics(snapshot)):
            assert ("gpu_memory_used_bytes" in text) is there
            assert "gpu_temperature_celsius" in text


def test_a_header_stays_while_one_gpu_has_the_reading() -> None:
    """A family loses its header with its last series, not with its first."""
    renderer = Renderer()

    def both(first: Number | None, second: Number | None) -> Snapshot:
        key = (Key("memory_used_bytes"),)
        return node(
            *[replace(gpu(n, parts=()), parts=(Readings(key, (value,)),)) for n, value in enumerate((first, second))]
        )

    assert renderer.text(both(1, 2)).count("gpu_memory_used_bytes") == 4
    assert renderer.text(both(None, 2)).count("gpu_memory_used_bytes") == 3
    assert renderer.text(both(None, None)).count("gpu_memory_used_bytes") == 0
    assert renderer.text(both(1, None)).count("gpu_memory_used_bytes") == 3


@pytest.mark.parametrize("level", LEVELS)
def test_a_warm_renderer_writes_what_a_new_one_does(level: Level) -> None:
    """What a renderer remembers never shows: GPUs that go, come, hang and change their plan, values and names."""
    well = hopper_node(3, slices=2)
    hung = down(1, GpuState.HUNG, "nvmlDeviceGetFieldValues has not answered for 2 s")
    course = [
        well,
        hopper_node(3, slices=2, poll=2),
        node(gpu(0, poll=3), hung, gpu(2, poll=3), poll=3),
        node(gpu(0, poll=4), gpu(2, poll=4), poll=4),
        hopper_node(4, poll=5),
        node(gpu(0, poll=6, parts=(FAST, SLOW)), poll=6),
        node(gpu(0, poll=7, parts=(FAST, GPM, MEDIUM, SLOW, OTHERS)), poll=7),
        simulated(hopper_node(2, poll=8)),
        replace(hopper_node(2, poll=9), quiesced=True),
        replace(hopper_node(2, poll=10), poll=PollHealth(nvml_errors=(("unknown", 1),), polls=10)),
        well,
    ]
    warm = Renderer(level)
    for snapshot in course:
        for stale in (False, True, False):
            fresh = Renderer(level)
            assert warm.text(snapshot, stale=stale) == fresh.text(snapshot, stale=stale)
            assert warm.openmetrics(snapshot, stale=stale) == fresh.openmetrics(snapshot, stale=stale)


def test_only_changed_values_are_written_anew() -> None:
    """Lines of values that stayed the same are the very objects that they were."""
    renderer = Renderer()
    renderer.text(one_gpu((Key("memory_used_bytes"), 7), (Key("temperature_celsius"), 54)))
    before = {id(piece) for piece in renderer._pieces if piece}
    renderer.text(one_gpu((Key("memory_used_bytes"), 7), (Key("temperature_celsius"), 55)))
    anew = [piece for piece in renderer._pieces if piece and id(piece) not in before]
    assert anew == ['gpu_temperature_celsius{gpu="0",uuid="GPU-8f1e2d3c-4b5a-6978-8796-a5b4c3d2e100"} 55\n']


def test_series_that_would_be_there_twice_are_there_once() -> None:
    """Label values that are the same once they are cut give one series, the first: two would cost the whole scrape."""
    text = Renderer().text(
        one_gpu(*[(Key("fan_speed_ratio", ("x" * 200 + end,)), value) for end, value in (("a", 1), ("b", 2))])
    )
    assert list(values_of(text, "gpu_fan_speed_ratio").values()) == ["1"]


def test_readings_without_a_name_in_the_catalogue_are_not_shown() -> None:
    """Neither an unknown reading nor one with more members than its family has labels."""
    text = Renderer().text(one_gpu((Key("mood"), 1), (Key("power_watts", ("x",)), 2), (Key("temperature_celsius"), 54)))
    assert "mood" not in text
    assert "gpu_power_watts" not in text
    assert "gpu_temperature_celsius" in text


def test_values_that_do_not_fit_their_keys_are_not_shown() -> None:
    """With a value too few nobody knows whose they are: that part is absent, the rest is there."""
    good = one_gpu((Key("memory_used_bytes"), 7), (Key("temperature_celsius"), 54))
    bad = node(replace(good.gpus[0], parts=(Readings(good.gpus[0].parts[0].keys, (7,)),)))
    renderer = Renderer()
    for snapshot in (bad, good, bad):
        text = renderer.text(snapshot)
        assert ("gpu_memory_used_bytes" in text) is (snapshot is good)
        assert ("gpu_temperature_celsius" in text) is (snapshot is good)
        assert "gpu_info" in text


def test_a_gpu_that_is_down_keeps_its_identity_and_faults_only() -> None:
    """gpu_up is 0, the state has its name, counts of driver errors stay, and no driver reading is there."""
    text = Renderer().text(node(gpu(0), down(1, GpuState.LOST, "fell off the bus")))
    of_it = [line for line in series(text) if 'gpu="1"' in line]
    assert {line.split("{")[0] for line in of_it} == {
        "gpu_info",
        "gpu_up",
        "gpu_state",
        "gpufleet_last_poll_timestamp_seconds",
        "gpu_xid_errors_total",
    }
    uuid = "GPU-8f1e2d3c-4b5a-6978-8796-a5b4c3d2e101"
    assert values_of(text, "gpu_up")[f'{{gpu="1",uuid="{uuid}"}}'] == "0"
    states = {labels: value for labels, value in values_of(text, "gpu_state").items() if uuid in labels}
    assert [labels for labels, value in states.items() if value == "1"] == [f'{{gpu="1",uuid="{uuid}",state="lost"}}']
    assert len(states) == len(GpuState)


def test_readings_of_a_gpu_that_is_not_ok_are_never_shown() -> None:
    """Even if a snapshot carries them: a reading that is shown is a reading of now."""
    text = Renderer().text(node(replace(gpu(0, slices=1), state=GpuState.HUNG)))
    assert "gpu_power_watts" not in text
    assert "gpu_mig_memory_used_bytes" not in text
    assert "gpu_mig_info" in text


def test_a_stale_snapshot_shows_no_driver_reading_and_calls_nothing_up() -> None:
    """Too old to tell: no reading, no state, nothing is up; identity, time of the last poll and counters stay."""
    text = Renderer().text(hopper_node(2, slices=1), stale=True)
    names = {line.split("{")[0] for line in series(text)}
    assert names == {
        "gpu_info",
        "gpu_up",
        "gpu_mig_info",
        "gpu_count_expected",
        *(name for name in names if name.startswith("gpufleet_")),
    }
    assert set(values_of(text, "gpu_up").values()) == {"0"}
    assert "gpufleet_last_poll_timestamp_seconds" in names
    assert values_of(text, "gpufleet_nvml_up") == {"": "0"}
    assert "gpufleet_nvml_state" not in names
    assert "gpufleet_nvml_errors_total" in names


def test_a_quiesced_exporter_says_so_and_calls_nothing_up_or_down() -> None:
    """Nobody asks the driver, so gpu_up would be made up, and gpu_up 0 would raise an alert."""
    text = Renderer().text(replace(hopper_node(2), quiesced=True))
    names = {line.split("{")[0] for line in series(text)}
    assert values_of(text, "gpufleet_quiesced") == {"": "1"}
    assert "gpu_info" in names
    assert "gpu_count_expected" in names
    of_the_driver = {"gpu_up", "gpu_state", "gpu_count_visible", "gpufleet_nvml_up", "gpufleet_nvml_state"}
    assert names.isdisjoint({*of_the_driver, "gpu_power_watts"})


def test_every_served_family_is_shown_by_some_snapshot() -> None:
    """What the catalogue calls served can be served, and what it does not is not."""
    everything = node(
        replace(
            gpu(0, slices=1, parts=(FAST, GPM, MEDIUM, SLOW, OTHERS)),
            standing=(
                Readings((Key("xid_errors", ("79", "hardware")), Key("last_fault_timestamp_seconds")), (1, 7.5)),
            ),
        )
    )
    everything = held(
        replace(
            everything, faults=FaultsView(active=(INCIDENT,), switch_errors=(SWITCH,)), gpus=(*everything.gpus, gpu(1))
        )
    )
    names = {line.split("{")[0] for line in series(Renderer().text(everything))}
    assert names == {family.name for family in FAMILIES.values() if family.served} - OF_THE_PROCESS


@pytest.mark.parametrize(("level", "most", "most_of_a_slice"), [(Level.CORE, 70, 25), (Level.STANDARD, 160, 25)])
def test_series_stay_within_their_budget(level: Level, most: int, most_of_a_slice: int) -> None:
    """A Hopper GPU with all that it can report, ten Xids included, and each of its slices."""
    xids = Readings(tuple([Key("xid_errors", (str(code),)) for code in range(10)]), (1,) * 10)
    text = Renderer(level).text(node(replace(gpu(0, slices=7), standing=(xids,))))
    of_slices = [line for line in series(text) if "mig_uuid=" in line]
    of_the_gpu = [line for line in series(text) if 'gpu="0"' in line and "mig_uuid=" not in line]
    assert 0 < len(of_the_gpu) <= most
    assert 0 < len(of_slices) <= 7 * most_of_a_slice


@pytest.mark.parametrize(
    "make",
    [
        lambda: hopper_node(8),
        lambda: hopper_node(2, slices=7),
        lambda: node(gpu(0), down(1, GpuState.LOST, "fell off the bus")),
        lambda: replace(node(), nvml_state=NvmlState.NO_DRIVER),
        lambda: node(gpu(0, parts=(FAST, GPM, MEDIUM, SLOW, OTHERS))),
    ],
    ids=["hopper", "mig", "lost", "no_driver", "everything"],
)
def test_promtool_has_no_complaint(make: Callable[[], Snapshot], promtool: Promtool) -> None:
    """promtool check metrics is content with names, types and help."""
    assert promtool.check_metrics(Renderer().text(make()).encode()) == ""
