"""Settings: one table of options for flags and file, everything wrong refused with its place and remedy."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from gpufleet.config_file import ConfigFileError, parse_config
from gpufleet.durations import format_duration, parse_duration
from gpufleet.option_table import OPTIONS
from gpufleet.options import AlertLabel, NodeLabel, Option
from gpufleet.settings import Settings, SettingsError, effective, read_settings, selected
from gpufleet.web.addresses import ListenAddress

CASES = Path(__file__).parent / "cases" / "config"

REFUSALS = {
    "alias": ["{file}:3: *time is an alias; write the value itself"],
    "control_character": [
        "{file}:2: node.name: 'gpu\\n01' has characters that can't be printed: write it without them"
    ],
    "deadline_beyond_interval": [
        (
            "{file}:3: poll.deadline: 1s is longer than the poll interval of 500ms: shorten it, lengthen "
            "--poll.interval, "
            "or leave it out for 500ms"
        )
    ],
    "duplicate_key": ["{file}:5: poll: is there twice, first in line 1; keep one of them"],
    "empty_list": ["{file}:2: web.listen-address: the list is empty; name at least one value, or leave the key out"],
    "empty_value": ["{file}:2: node.name: the value is empty: write one, or leave the option out"],
    "flag_name": ["{file}:1: poll.interval: dots are for flags; write it as poll: {interval: 1s}"],
    "flag_only": ["{file}:2: config.file: can't be set in the file; use the flag --config.file"],
    "key_as_list": ["{file}:1: a key is no plain text; write keys such as poll or interval"],
    "landing_page_as_metrics": [
        "{file}:2: web.telemetry-path: '/' is the landing page: write a path of its own, such as /metrics"
    ],
    "list_at_the_top": ["{file}:1: is no mapping; write keys and values, such as poll: {interval: 1s}"],
    "list_for_one_value": ["{file}:2: node.name: takes one value, not a list; write it behind the colon"],
    "mapping_in_list": ["{file}:3: web.listen-address: an item is no plain text; write one value for each item"],
    "max_age_below_two_intervals": [
        "{file}:2: node.label: rack has two values: keep one of them",
        (
            "{file}:5: owners.max-age: a maximal age of 1m30s is less than two intervals of 1m: lengthen "
            "--owners.max-age, or shorten --owners.interval"
        ),
    ],
    "no_yaml": ["{file}:3: is no YAML: expected <block end>, but found '<block mapping start>'; correct it there"],
    "not_an_address": [
        (
            "{file}:2: web.listen-address: '9837' is no listen address: write HOST:PORT, :PORT or [IPV6]:PORT, "
            "with a port "
            "up to 65535"
        )
    ],
    "number_without_unit": [
        "{file}:2: poll.interval: '5' is no duration: write a number with its unit, such as 500ms, 1s or 1m30s"
    ],
    "owners_and_cost": [
        (
            "{file}:2: node.label: 'rack' is no label of a node: write one such as "
            "node.kubernetes.io/instance-type=p5.48xlarge"
        ),
        (
            "{file}:7: kubernetes.api-server: has credentials in it, which would show in logs: write in-cluster, none, "
            "or a URL such as http://127.0.0.1:8001"
        ),
        "{file}:9: cost.utilization: 'power' is not known: write auto, sm, gpu or tensor",
    ],
    "same_address_twice": ["{file}:2: web.listen-address: ':9837' is given twice; keep one of them"],
    "section_as_value": ["{file}:1: poll: is no option by itself; under it there can be deadline, interval"],
    "several_mistakes": [
        "{file}:3: poll.dedline: is no option; did you mean poll.deadline?",
        "{file}:2: poll.interval: '1' is no duration: write a number with its unit, such as 500ms, 1s or 1m30s",
        "{file}:5: log.format: 'text' is not known: write logfmt or json",
    ],
    "tag": ["{file}:2: tag:yaml.org,2002:python/name:os.getcwd is a tag; write the value without it"],
    "too_long": ["{file}:2: poll.interval: '2m' is longer than 1m: write a duration from 100ms to 1m"],
    "too_short": ["{file}:2: poll.interval: '50ms' is shorter than 100ms: write a duration from 100ms to 1m"],
    "two_documents": ["{file}:2: is no YAML: but found another document; correct it there"],
    "unknown_key": ["{file}:2: poll.intervall: is no option; did you mean poll.interval?"],
    "unknown_section": ["{file}:2: scrape.timeout: is no option; --help lists them"],
    "unknown_section_left_blank": ["{file}:2: pol: is no option; --help lists them"],
    "unknown_word": ["{file}:2: metrics.level: 'all' is not known: write core or standard"],
    "value_as_section": ["{file}:3: poll.interval.seconds: is no option; did you mean poll.interval?"],
}


def read(
    flags: dict[str, list[str]] | None = None,
    *,
    file: Path | None = None,
    environ: dict[str, str] | None = None,
    host_name: str = "host",
) -> Settings:
    """Settings of the given flags and file, with nothing from the machine."""
    given = dict(flags or {})
    if file is not None:
        given["config.file"] = [str(file)]
    return read_settings(given, environ=environ or {}, host_name=host_name)


def refusals(flags: dict[str, list[str]] | None = None, *, file: Path | None = None) -> list[str]:
    """Why the given flags and file are refused."""
    with pytest.raises(SettingsError) as caught:
        read(flags, file=file)
    return list(caught.value.refusals)


def test_each_bad_file_has_its_exact_refusal() -> None:
    """No case is without an expectation, and no expectation without its file."""
    assert {path.name.removesuffix(".bad.yml") for path in CASES.glob("*.bad.yml")} == set(REFUSALS)


@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_a_bad_file_is_refused_with_line_key_value_and_remedy(case: str) -> None:
    """The operator sees where the mistake is and what to write instead."""
    file = CASES / f"{case}.bad.yml"
    assert refusals(file=file) == [text.replace("{file}", str(file)) for text in REFUSALS[case]]


@pytest.mark.parametrize("file", sorted(CASES.glob("*.good.yml")), ids=lambda file: file.name)
def test_a_good_file_is_accepted(file: Path) -> None:
    """What the documentation shows as a file is one."""
    assert read(file=file).config_file == file


def test_a_file_sets_every_option() -> None:
    """Flags have no option that a file lacks, but for the file itself."""
    settings = read(file=CASES / "complete.good.yml")
    assert settings == Settings(
        config_file=CASES / "complete.good.yml",
        node_name="gpu-a-01",
        node_label=(NodeLabel("karpenter.sh/capacity-type", "spot"), NodeLabel("rack", "r7")),
        web_listen_address=(ListenAddress("", 9837), ListenAddress("::1", 9838)),
        faults_listen_address=(ListenAddress("", 9839),),
        web_telemetry_path="/gpu/metrics",
        web_config_file=CASES / "web.yml",
        nvml_library=str(CASES / "driver" / "libnvidia-ml.so.1"),
        poll_interval=2.0,
        poll_deadline=0.5,
        metrics_level="core",
        metrics_nvlink="links",
        quiesce_max=1800.0,
        path_procfs=Path("/host/proc"),
        path_sysfs=Path("/host/sys"),
        state_dir=Path("/srv/gpufleet"),
        control_socket=Path("/srv/gpufleet/socket"),
        kmsg_path=Path("/host/dev/kmsg"),
        kmsg_accept_userspace=True,
        owners_interval=20.0,
        owners_max_age=120.0,
        owners_processes=False,
        owners_config_file=CASES / "owners.yml",
        podresources_socket=Path("/host/kubelet.sock"),
        kubernetes_api_server="https://api.example.com:6443",
        slurm_dir=Path("/srv/slurm"),
        slurm_dcgm_dir=Path("/srv/dcgm"),
        slurm_jobstats_dir=Path("/run/gpustat"),
        prices_file=CASES / "prices.yml",
        cost_utilization="tensor",
        alertmanager_url=("http://alertmanager-0:9093", "https://alertmanager-1.example.com/prefix"),
        alertmanager_label=(AlertLabel("cluster", "east-1"), AlertLabel("team", "gpu")),
        alertmanager_config_file=CASES / "alertmanager.yml",
        log_level="warn",
        log_format="json",
    )
    unset = [option.name for option in OPTIONS if getattr(settings, option.field) == getattr(read(), option.field)]
    assert not unset


def test_defaults_are_those_of_the_documentation() -> None:
    """An exporter that is given nothing polls each second and serves on every address."""
    assert read() == Settings(
        config_file=None,
        node_name="host",
        node_label=(),
        web_listen_address=(ListenAddress("", 9837),),
        faults_listen_address=(),
        web_telemetry_path="/metrics",
        web_config_file=None,
        nvml_library="libnvidia-ml.so.1",
        poll_interval=1.0,
        poll_deadline=1.0,
        metrics_level="standard",
        metrics_nvlink="totals",
        quiesce_max=900.0,
        path_procfs=Path("/proc"),
        path_sysfs=Path("/sys"),
        state_dir=Path("/var/lib/gpufleet"),
        control_socket=None,
        kmsg_path=Path("/dev/kmsg"),
        kmsg_accept_userspace=False,
        owners_interval=10.0,
        owners_max_age=300.0,
        owners_processes=True,
        owners_config_file=None,
        podresources_socket=None,
        kubernetes_api_server=None,
        slurm_dir=None,
        slurm_dcgm_dir=None,
        slurm_jobstats_dir=None,
        prices_file=None,
        cost_utilization="auto",
        alertmanager_url=(),
        alertmanager_label=(),
        alertmanager_config_file=None,
        log_level="info",
        log_format="logfmt",
    )


def test_settings_and_options_name_the_same_things() -> None:
    """The frozen settings have one field for each option, in the same order."""
    assert [field.name for field in fields(Settings)] == [option.field for option in OPTIONS]


def test_settings_cannot_be_changed() -> None:
    """Every thread may read them without a lock."""
    with pytest.raises(FrozenInstanceError):
        read().node_name = "other"  # type: ignore[misc]


def test_a_flag_wins_over_the_file() -> None:
    """A file is the fleet's, a flag is this node's; a flag replaces a whole list."""
    settings = read({"poll.interval": ["10s"], "web.listen-address": [":1"]}, file=CASES / "complete.good.yml")
    assert (settings.poll_interval, settings.poll_deadline) == (10.0, 0.5)
    assert settings.web_listen_address == (ListenAddress("", 1),)


def test_text_that_yaml_would_change_stays_as_written() -> None:
    """A node named "no" is not named False."""
    assert read(file=CASES / "texts_that_yaml_would_change.good.yml").node_name == "no"


@pytest.mark.parametrize(
    ("interval", "deadline"), [("100ms", 0.1), ("500ms", 0.5), ("1s", 1.0), ("10s", 1.0), ("1m", 1.0)]
)
def test_an_unset_deadline_is_the_smaller_of_interval_and_one_second(interval: str, deadline: float) -> None:
    """A slow interval does not make a hung GPU look well for longer."""
    assert read({"poll.interval": [interval]}).poll_deadline == deadline


def test_the_node_is_named_by_flag_then_environment_then_host() -> None:
    """In Kubernetes the host name of the pod says nothing; NODE_NAME comes from the downward API."""
    environ = {"NODE_NAME": "from-environment"}
    assert read({"node.name": ["from-flag"]}, environ=environ).node_name == "from-flag"
    assert read(environ=environ).node_name == "from-environment"
    assert read(environ={"NODE_NAME": ""}).node_name == "host"
    assert read(host_name="").node_name == "localhost"


def test_a_bad_environment_variable_is_named_in_its_refusal() -> None:
    """Nobody would look for it among the flags."""
    with pytest.raises(SettingsError) as caught:
        read(environ={"NODE_NAME": "a\x07"})
    assert caught.value.refusals == (
        "environment variable NODE_NAME: 'a\\x07' has characters that can't be printed: write it without them",
    )


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        ({"poll.interval": ["1s", "2s"]}, "--poll.interval: is given 2 times; keep one of them"),
        ({"config.file": ["a", "b"]}, "--config.file: is given 2 times; keep one of them"),
        ({"config.file": [""]}, "--config.file: the value is empty: write one, or leave the option out"),
        ({"nvml.library": [""]}, "--nvml.library: the value is empty: write one, or leave the option out"),
        (
            {"poll.deadline": ["2s"]},
            (
                "--poll.deadline: 2s is longer than the poll interval of 1s: shorten it, lengthen "
                "--poll.interval, or leave "
                "it out for 1s"
            ),
        ),
        (
            {"quiesce.max": ["2d"]},
            "--quiesce.max: '2d' is longer than 1d: write a duration from 1s to 1d",
        ),
        (
            {"web.telemetry-path": ["/-/metrics"]},
            (
                "--web.telemetry-path: '/-/metrics' is where /-/healthy and /-/ready are: write another path, such as "
                "/metrics"
            ),
        ),
        (
            {"web.telemetry-path": ["metrics"]},
            "--web.telemetry-path: 'metrics' is no path that a URL can have as it is: write one such as /metrics",
        ),
        (
            {"node.name": ["n" * 254]},
            "--node.name: 'nnnnnnnnnnnnnnnnnnnn…' has 254 characters: write at most 253, as in a DNS name",
        ),
        (
            {"alertmanager.url": ["http://scott:tiger@alertmanager:9093"]},
            (
                "--alertmanager.url: has credentials in it, which would show in logs and metrics: write basic_auth "
                "into --alertmanager.config.file"
            ),
        ),
        (
            {"alertmanager.url": ["alertmanager:9093"]},
            (
                "--alertmanager.url: 'alertmanager:9093' is no URL of a web server: write one such as "
                "http://alertmanager:9093"
            ),
        ),
        (
            {"alertmanager.url": ["http://alertmanager:90930"]},
            (
                "--alertmanager.url: 'http://alertmanager:90930' is no URL of a web server: write one such as "
                "http://alertmanager:9093"
            ),
        ),
        (
            {"alertmanager.url": ["http://alertmanager:9093/?a=b"]},
            "--alertmanager.url: 'http://alertmanager:9093/?a=b' has a query or a fragment: write it without",
        ),
        (
            {"alertmanager.url": ["http://alertmanager:9093/api/v2/alerts"]},
            (
                "--alertmanager.url: 'http://alertmanager:9093/api/v2/alerts' names the API itself: write only what "
                "comes before /api"
            ),
        ),
        (
            {"alertmanager.url": ["http://am:9093", "http://am:9093/"]},
            "--alertmanager.url: 'http://am:9093/' is given twice; keep one of them",
        ),
        (
            {"alertmanager.label": ["cluster"]},
            "--alertmanager.label: 'cluster' is no label with a value: write one such as cluster=east-1",
        ),
        (
            {"alertmanager.label": ["my-cluster=a"]},
            (
                "--alertmanager.label: 'my-cluster' is no name of a label: write letters, digits and _, such as "
                "cluster=east-1"
            ),
        ),
        (
            {"alertmanager.label": ["node=a"]},
            "--alertmanager.label: 'node' is a label that the alert itself always has: leave it out",
        ),
        (
            {"alertmanager.url": ["http://am:9093"], "alertmanager.label": ["cluster=a", "cluster=b"]},
            "--alertmanager.label: cluster has two values: keep one of them",
        ),
        (
            {"alertmanager.label": ["cluster=a"]},
            "--alertmanager.label: is of no use without --alertmanager.url: give that, too, or leave this out",
        ),
        ({"log.level": ["loud"]}, "--log.level: 'loud' is not known: write debug, info, warn or error"),
    ],
)
def test_a_bad_flag_is_refused_with_value_and_remedy(flags: dict[str, list[str]], refusal: str) -> None:
    """A flag's refusal names the flag, as a file's names the line."""
    assert refusals(flags) == [refusal]


def test_everything_wrong_is_said_at_once() -> None:
    """Three mistakes need one start to be seen, not three."""
    assert len(refusals({"poll.interval": ["x"], "metrics.level": ["y"], "log.format": ["z"]})) == 3


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    """A file that was named must be there: going on without it would run other settings than were asked for."""
    file = tmp_path / "none.yml"
    assert refusals(file=file) == [
        (
            f"{file}: can't be read: No such file or directory; check the path and who may read it, or leave "
            "--config.file out"
        )
    ]


def test_an_endless_file_is_refused() -> None:
    """A device or a log by mistake must not fill the memory."""
    assert refusals(file=Path("/dev/zero")) == [
        "/dev/zero: is larger than 65536 bytes; this is no configuration of gpufleet"
    ]


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"[" * 100_000, "f:1: is nested too deeply; keys are at most three deep"),
        (b"a: " + b"{a: " * 50 + b"1" + b"}" * 50, "is nested too deeply"),
        (b"\xff\xfe\xff", "f: is no YAML: "),
        (b"node: {name: \x00}", "f: is no YAML: "),
    ],
)
def test_hostile_content_is_refused(content: bytes, refusal: str) -> None:
    """Whatever the file holds, the answer is a sentence."""
    with pytest.raises(ConfigFileError, match=refusal):
        parse_config(content, "f")


def test_a_path_in_the_file_starts_at_the_file_and_one_in_a_flag_at_the_working_directory() -> None:
    """A file and what it names move together, as Prometheus's do; a bare library name is no path."""
    assert read(file=CASES / "complete.good.yml").web_config_file == CASES / "web.yml"
    assert read({"web.config.file": ["web.yml"]}).web_config_file == Path("web.yml")
    assert read(file=CASES / "empty.good.yml").nvml_library == "libnvidia-ml.so.1"


def test_effective_settings_can_be_given_back_as_flags() -> None:
    """The line in the log says what to write to run the same again."""
    settings = read(file=CASES / "complete.good.yml")
    shown = effective(settings)
    lists = {option.name for option in OPTIONS if option.repeatable}
    again = read({name: text.split(",") if name in lists else [text] for name, text in shown.items()})
    assert again == settings


def test_effective_settings_leave_out_what_is_unset() -> None:
    """An unset path is not shown as the word None."""
    assert "web.config.file" not in effective(read())


def test_options_are_selected_by_name_or_by_group() -> None:
    """Commands that take only a part of the options share their definition."""
    assert [option.name for option in selected("log", "state.dir")] == ["state.dir", "log.level", "log.format"]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_default_is_a_value_of_its_own_option(option: Option) -> None:
    """A default that its own parser refuses would refuse every start."""
    if option.default is not None:
        option.kind.parse(option.default)
    assert option.help


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100ms", 0.1), ("1s", 1.0), ("1m30s", 90.0), ("15m", 900.0), ("1h", 3600.0), ("1d2h", 93_600.0), ("0s", 0.0)],
)
def test_durations_are_read_as_prometheus_writes_them(text: str, seconds: float) -> None:
    """Flags look as in every other part of the stack."""
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    "text", ["", "1", "1.5s", "-1s", "s", "1s1m", "1S", " 1s", "1s ", "1e3s", "1" * 30 + "s", "١s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A bare number's unit would be a guess; nothing is guessed."""
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        parse_duration(text)
