from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from gpufleet.metrics.page import render
from gpufleet.metrics.page.words import GPU_STATES, NVML_STATES, REASONS, Values, age, chips, gibibytes, percent
from gpufleet.metrics.page_style import CONTENT_SECURITY_POLICY, STYLE, STYLE_HASH
from gpufleet.model.owner import Hold, Holding, OwnersView, Workload
from gpufleet.model.readings import Key, Readings
from gpufleet.model.state import GpuState, NvmlState
from tests.unit.metrics.snapshots import REASONS as HOPPER_REASONS
from tests.unit.metrics.snapshots import down, gpu, held, hopper_node, identity, node, simulated

if TYPE_CHECKING:
    from gpufleet.model.readings import Number
    from gpufleet.model.snapshot import Snapshot

VOID = {"meta", "link", "rect"}


class Document(HTMLParser):
    """What a browser makes of a page: its elements, their texts, and whether every element is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that closes itself, as in a picture."""
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        """Close the element that is open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note a text."""
        if data.strip() and self.open[-1] != "style":
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        """All that can be read."""
        return "\n".join(self.texts)


def page(snapshot: Snapshot, *, old: float = 0.4, telemetry_path: str = "/metrics") -> Document:
    """Render a snapshot that is so many seconds old."""
    return Document(render(snapshot, now=snapshot.monotonic + old, interval=1.0, telemetry_path=telemetry_path))


def reporting(**changed: Number) -> Snapshot:
    """Make a node with one GPU, some of whose readings are these; ``name__member`` for a member."""
    well = gpu(0)
    parts = []
    for part in well.parts:
        names = ["__".join((key.name, *key.members)) for key in part.keys]
        values = [changed.get(name, value) for name, value in zip(names, part.values, strict=True)]
        parts.append(Readings(part.keys, tuple(values)))
    return node(replace(well, parts=tuple(parts)))


def test_it_shows_each_gpu_with_its_readings() -> None:
    """Number, name, address, state, utilization, memory, temperature, power and clock of every GPU."""
    shown = page(hopper_node(8))
    rows = [attributes for tag, attributes in shown.tags if tag == "tr" and attributes.get("class") == "gpu"]
    assert len(rows) == 8
    for words in ("gpu-node-01", "NVIDIA H100 80GB HBM3", "0000:8b:00.0", "580.65.06", "of 80.0 GiB", "of 700 W"):
        assert words in shown.text
    assert shown.text.count("ok") >= 8
    assert not shown.open


def test_slices_stand_under_their_gpu() -> None:
    """Each MIG slice has a row with its profile, instances, activity and memory."""
    shown = page(node(gpu(0, slices=2), gpu(1)))
    classes = [attributes["class"] for tag, attributes in shown.tags if tag == "tr" and "class" in attributes]
    assert classes == ["gpu", "slice", "slice", "gpu"]
    assert shown.text.count("MIG 1g.10gb") == 2
    assert "GPU instance 7, compute instance 0" in shown.text


def test_a_reading_that_is_absent_is_called_so() -> None:
    """Neither zero nor the word None: a dash for the eye, words for a screen reader."""
    shown = page(node(replace(gpu(0), parts=())))
    assert shown.text.count("not reported") == 6
    assert "None" not in shown.text
    assert "0 %" not in shown.text


@pytest.mark.parametrize("state", [state for state in GpuState if state is not GpuState.OK])
def test_a_gpu_that_is_down_says_why(state: GpuState) -> None:
    """Its state in words, what that means, the driver's words, and its Xids instead of readings."""
    shown = page(node(gpu(0), down(1, state, "nvmlDeviceGetFieldValues: <no> answer")))
    assert GPU_STATES[state][0] in shown.texts
    assert "nvmlDeviceGetFieldValues: <no> answer" in shown.text
    assert "Xid 79 \N{MULTIPLICATION SIGN} 1" in shown.texts


@pytest.mark.parametrize("state", [state for state in NvmlState if state is not NvmlState.OK])
def test_a_driver_that_does_not_work_has_a_banner(state: NvmlState) -> None:
    """With what is wrong, and the reason with its remedy."""
    shown = page(replace(node(), nvml_state=state, reason="Load the module: modprobe nvidia"))
    assert f"{NVML_STATES[state]}." in shown.texts
    assert "Load the module: modprobe nvidia" in shown.text
    assert "There is no GPU to show." in shown.text


def test_simulated_quiesced_and_missing_have_banners() -> None:
    """Nobody takes a scripted node for a real one, or a quiesced exporter for a broken one."""
    assert "Simulated." not in page(hopper_node(1)).text
    assert "Simulated." in page(simulated(hopper_node(1))).text
    quiesced = page(replace(hopper_node(1), quiesced=True, nvml_state=NvmlState.NO_DRIVER, gpus_visible=0)).text
    assert "Quiesced." in quiesced
    assert NVML_STATES[NvmlState.NO_DRIVER] not in quiesced
    assert "of 700 W" not in quiesced
    assert "do not answer" not in quiesced
    assert "2 of 8 GPUs\ndo not answer." in page(replace(hopper_node(6), gpus_expected=8, gpus_visible=6)).text


def test_an_old_snapshot_shows_no_readings() -> None:
    """It says how old it is, and of no GPU that it is ok."""
    shown = page(hopper_node(1), old=90.0)
    assert "Out of date." in shown.texts
    assert "1.5 min" not in shown.text
    assert "90 s ago" in shown.text
    assert "unknown" in shown.texts
    assert "of 700 W" not in shown.text


def test_before_the_first_poll_it_says_so() -> None:
    """An empty page would look like a node without GPUs."""
    first = node()
    assert "The first poll has not ended yet." in page(replace(first, poll=replace(first.poll, polls=0))).text


HOSTILE = '</style><script>alert("1")</script><b onmouseover=x>\'&amp;"\x00\ud800\n'


def test_no_text_from_outside_becomes_markup() -> None:
    """Names, reasons and versions with tags, quotes, control characters and half characters are shown as text."""
    calm, hostile = hopper_node(2, slices=1), hopper_node(2, slices=1)
    one, two = hostile.gpus
    hostile = replace(
        hostile,
        node=replace(hostile.node, node=HOSTILE, driver_version=HOSTILE, cuda_version=HOSTILE),
        gpus=(
            replace(
                one,
                identity=replace(one.identity, name=HOSTILE, pci_bus_id=HOSTILE, uuid=HOSTILE),
                standing=(Readings((Key("xid_errors", (HOSTILE,)),), (1,)),),
                slices=(
                    replace(one.slices[0], identity=replace(one.slices[0].identity, profile=HOSTILE, mig_uuid=HOSTILE)),
                ),
            ),
            replace(two, state=GpuState.LOST, reason=HOSTILE),
        ),
        sources=(replace(hostile.sources[1], source=HOSTILE, reason=HOSTILE),),
        nvml_state=NvmlState.HUNG,
        reason=HOSTILE,
    )
    expected = {tag for tag, _ in page(calm).tags} | {"p", "ul", "li"}
    shown = page(hostile, telemetry_path='/"onload="x')
    assert {tag for tag, _ in shown.tags} <= expected
    assert not [name for _, attributes in shown.tags for name in attributes if name.startswith("on")]
    assert '<script>alert("1")</script>' in shown.text
    render(hostile, now=1.0, interval=1.0).encode()


def test_the_page_needs_nothing_that_its_policy_forbids() -> None:
    """No script, no style attribute, no other host; the one style is the one whose hash the policy has."""
    html = render(hopper_node(8, slices=2), now=1.0, interval=1.0)
    document = Document(html)
    assert [tag for tag, _ in document.tags if tag in {"script", "img", "iframe", "form", "object"}] == []
    assert [attributes for _, attributes in document.tags if "style" in attributes] == []
    links = [value for _, attributes in document.tags for name, value in attributes.items() if name in {"href", "src"}]
    assert sorted(links)[:-1] == ["/-/healthy", "/-/ready", "/metrics", "?refresh=off"]
    assert max(links).startswith("data:image/svg+xml,")
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style == STYLE
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"sha256-{digest}" == STYLE_HASH, "STYLE has changed: this is its new STYLE_HASH"
    assert f"style-src '{STYLE_HASH}'" in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY


def test_it_refreshes_itself_unless_told_not_to() -> None:
    """By a header in the document, without a script; each page links to the other."""
    snapshot = hopper_node(1)
    moving = render(snapshot, now=1.0, interval=1.0, refresh_seconds=7)
    assert '<meta http-equiv="refresh" content="7">' in moving
    assert 'href="?refresh=off"' in moving
    still = render(snapshot, now=1.0, interval=1.0, refresh_seconds=None)
    assert "http-equiv" not in still
    assert 'href="?"' in still


def test_links_follow_the_telemetry_path() -> None:
    """The metrics are where the exporter serves them."""
    links = [attributes.get("href") for tag, attributes in page(node(), telemetry_path="/gpu").tags if tag == "a"]
    assert "/gpu" in links
    assert "/metrics" not in links


def test_it_shows_who_holds_each_gpu_and_what_it_costs() -> None:
    """Run, project and task, the price, and what nobody holds; a hostile name is text; nothing without a source."""
    snapshot = held(hopper_node(2))
    shown = page(snapshot).text
    assert "llm-7b" in shown
    assert "llm \N{MIDDLE DOT} worker \N{MIDDLE DOT} ada" in shown
    assert "4.8 USD an hour" in shown
    assert "9.60 USD" in shown
    assert "unallocated" in shown
    assert "Held by" not in page(hopper_node(2)).text
    hostile = Holding(identity(0).uuid, 1.0, Workload(run='<img src=x onerror="1">'))
    document = page(replace(snapshot, owners=OwnersView((hostile,))))
    assert '<img src=x onerror="1">' in document.text
    assert "img" not in {tag for tag, _ in document.tags}


def test_holders_stay_on_the_page_while_a_gpu_is_down() -> None:
    """Whoever has it wants to know."""
    document = page(held(node(down(0, GpuState.LOST, "fell off the bus"), gpu(1))))
    assert "llm-7b" in document.text
    assert document.open == []


def test_slices_have_their_own_holders() -> None:
    """The GPU above them has none; of many holders of one slice some are named."""
    snapshot = hopper_node(1, slices=2)
    uuid, first = identity(0).uuid, snapshot.gpus[0].slices[0].identity.mig_uuid
    many = tuple(Holding(uuid, 0.01, Workload(run=f"run-{number}"), mig_uuid=first) for number in range(5))
    text = page(replace(snapshot, owners=OwnersView((*many, Holding(uuid, 0.95, hold=Hold.UNSLICED))))).text
    assert "run-2" in text
    assert "run-3" not in text
    assert "and 2 more" in text
    assert "no slice" not in text


def test_it_is_a_table_for_a_screen_reader() -> None:
    """Headers have scopes, the table a caption; pictures are hidden, since their values stand beside them."""
    document = page(hopper_node(1, slices=1))
    assert [attributes["scope"] for tag, attributes in document.tags if tag == "th"] == ["col"] * 9 + ["row"] * 2
    assert "caption" in {tag for tag, _ in document.tags}
    assert all(attributes.get("aria-hidden") == "true" for tag, attributes in document.tags if tag == "svg")
    assert ("html", {"lang": "en"}) in document.tags


@pytest.mark.parametrize(
    ("changed", "tone"),
    [({"temperature_margin_celsius": 30}, ""), ({"temperature_margin_celsius": 8}, "warn")]
    + [({"temperature_margin_celsius": margin}, "bad") for margin in (3, 0, -2)],
)
def test_heat_is_shown_by_what_is_left_to_the_limit(changed: dict[str, Number], tone: str) -> None:
    """Near the limit the bar changes; how hot that is differs between boards."""
    html = render(reporting(**changed), now=1.0, interval=1.0)
    cell = re.search(r'data-label="Temperature">.*?</td>', html)
    assert cell is not None
    assert f'class="bar {tone}"' in cell.group()


def test_bars_stay_within_their_frame() -> None:
    """A ratio above 1, as drivers report now and then, is a full bar and says what it is."""
    html = render(reporting(utilization_ratio=1.25, sm_active_ratio=-0.5), now=1.0, interval=1.0)
    assert "125 %" in html
    widths = [float(width) for width in re.findall(r'class="fill" width="([^"]*)"', html)]
    assert min(widths) == 0
    assert max(widths) == 100


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({"clock_event_active__hw_power_brake_slowdown": 1, "clock_event_active__hw_slowdown": 1}, "power brake"),
        ({"row_remap_pending": 1}, "memory row replaced at the next reset"),
        ({"row_remap_failure": 1}, "memory row not replaceable: replace the board"),
        ({"ecc_sram_threshold_exceeded": 1}, "too many SRAM errors: replace the board"),
        ({"recovery_action__none": 0, "recovery_action__node_reboot": 1}, "reboot the node"),
        ({"ecc_errors__uncorrectable__total": 1}, "1 uncorrectable ECC error"),
        ({"nvlink_links__active": 16, "nvlink_links__inactive": 2}, "2 NVLinks down"),
        ({"pcie_link_width__current": 8, "pcie_link_width__max": 16}, "PCIe \N{MULTIPLICATION SIGN} 8 of 16"),
        ({"mig_enabled": 1}, "MIG"),
    ],
)
def test_what_needs_a_person_is_noted_in_words(changed: dict[str, Number], note: str) -> None:
    """Each condition has its note, and a GPU without it has not."""
    assert note in page(reporting(**changed)).texts
    assert note not in page(reporting()).texts


def test_the_umbrella_reason_is_not_said_beside_its_cause() -> None:
    """The driver sets hw_slowdown together with the thermal and the brake bit."""
    assert "hardware slowdown" in page(reporting(clock_event_active__hw_slowdown=1)).texts
    both = reporting(clock_event_active__hw_slowdown=1, clock_event_active__hw_thermal_slowdown=1)
    assert "hardware slowdown" not in page(both).texts


def test_links_that_were_never_wired_up_are_no_fault() -> None:
    """A board with NVLink and no bridge reports all its links inactive."""
    assert "down" not in page(reporting(nvlink_links__active=0, nvlink_links__inactive=4)).text


def test_every_reason_and_state_has_its_words() -> None:
    """A new member of the model needs words here."""
    assert set(GPU_STATES) == set(GpuState)
    assert set(NVML_STATES) == set(NvmlState) - {NvmlState.OK}
    assert set(HOPPER_REASONS) <= set(REASONS)


def test_a_reason_without_words_is_still_shown() -> None:
    """A newer source may know a reason that this page does not."""
    values = Values((Readings((Key("clock_event_active", ("cosmic_rays",)),), (1,)),))
    assert [chip.text for chip in chips(values, Values(()))] == ["cosmic rays"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (percent(0), "0 %"),
        (percent(0.0001), "<1 %"),
        (percent(0.876), "88 %"),
        (gibibytes(0), "0.0"),
        (gibibytes(2**30 * 79.65), "79.7"),
        (gibibytes(2**30 * 191.5), "192"),
        (age(0.44), "0.4 s"),
        (age(-1.0), "0.0 s"),
        (age(75), "75 s"),
        (age(900), "15 min"),
        (age(8000), "2 h"),
    ],
)
def test_numbers_are_short(written: str, expected: str) -> None:
    """As many figures as a person reads at a glance."""
    assert written == expected
