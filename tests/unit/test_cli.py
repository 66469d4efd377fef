"""The command line: it imports only the command asked for, and answers a slip with the near word."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import gpufleet
from gpufleet.cli import COMMANDS, main, usage
from gpufleet.commands.flags import FlagParser
from gpufleet.option_table import OPTIONS
from gpufleet.settings import selected


def test_version_is_printed_by_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """What is installed can be asked without starting it."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gpufleet {gpufleet.__version__}\n"


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_lists_every_command_with_examples(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A newcomer finds the demo, an operator the doctor."""
    assert main([word]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS)
    assert "examples:\n  gpufleet demo" in printed


def test_no_command_is_a_usage_error_that_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """A unit file that forgot the command must not look successful."""
    assert main([]) == 2
    assert capsys.readouterr().out == usage() + "\n"


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("exportr", "gpufleet: exportr is no command; did you mean gpufleet exporter?"),
        ("docter", "gpufleet: docter is no command; did you mean gpufleet doctor?"),
        ("xyz", "gpufleet: xyz is no command; gpufleet --help lists them"),
        (
            "--poll.interval=5s",
            "gpufleet: a command comes before --poll.interval=5s; did you mean gpufleet exporter --poll.interval=5s?",
        ),
    ],
)
def test_a_mistyped_command_is_answered_with_the_near_one(
    word: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The remedy is in the message."""
    assert main([word]) == 2
    assert capsys.readouterr().err == f"{answer}\n"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_each_command_is_there_and_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table of commands names modules and functions that exist."""
    module, function, _ = COMMANDS[command]
    assert callable(getattr(importlib.import_module(module), function))
    try:
        status: object = main([command, "--help"])
    except SystemExit as ended:
        status = ended.code
    assert status == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: gpufleet {command} ")
    assert "examples:" in printed


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["--pol.interval=2s"], "--pol.interval is no flag of gpufleet try; did you mean --poll.interval?"),
        (["--zzz"], "--zzz is no flag of gpufleet try; gpufleet try --help lists them"),
        (["now"], "now is no argument of gpufleet try; gpufleet try --help lists them"),
        (["--poll.int=2s"], "--poll.int is no flag of gpufleet try; did you mean --poll.interval?"),
        (
            ["--poll.interval"],
            "argument --poll.interval: expected one argument; gpufleet try --help says what it takes",
        ),
        (["--metrics.level=all"], "--metrics.level: 'all' is not known: write core or standard"),
    ],
)
def test_a_bad_flag_ends_with_status_two_and_one_line(
    argv: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason stands alone on the screen, not under a page of synopsis."""
    with pytest.raises(SystemExit) as ended:
        FlagParser("try", "Try.").read(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"gpufleet try: {answer}\n"


def test_every_refusal_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Several mistakes are seen with one start."""
    with pytest.raises(SystemExit):
        FlagParser("try", "Try.").read(["--poll.interval=x", "--log.format=y"])
    assert [line.split(":")[1] for line in capsys.readouterr().err.splitlines()] == [
        " --poll.interval",
        " --log.format",
    ]


def test_a_command_takes_only_its_own_options_and_may_add_arguments() -> None:
    """Commands share the options' definition, not all of the options."""
    parser = FlagParser("try", "Try.", selected("log"))
    parser.add_argument("--json", action="store_true")
    arguments, settings = parser.read(["--log.level=debug", "--json"])
    assert (arguments.json, settings.log_level, settings.poll_interval) == (True, "debug", 1.0)
    with pytest.raises(SystemExit):
        parser.read(["--poll.interval=1s"])


def test_help_shows_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Help is made from the table of options, so it can't lag behind."""
    FlagParser("exporter", "Serve.").print_help()
    printed = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        # A switch may stand alone: its value is shown as one that can be left out.
        value = f"[{option.kind.metavar}]" if option.kind.is_switch else option.kind.metavar
        assert f"--{option.name} {value}" in printed
        assert option.default is None or f"(default {option.default})" in printed


def test_the_demo_tells_its_own_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """It keeps apart from a real exporter on the same host, and its help must not say otherwise."""
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--node.name NAME node of the scenario; default: its first" in printed
    assert "/var/lib/gpufleet" not in printed
    assert "/run/gpufleet" not in printed


def test_help_imports_no_command() -> None:
    """Asking for help costs neither the driver's bindings nor a YAML parser."""
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from gpufleet.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stderr.split()
    assert not [name for name in loaded if name.startswith("gpufleet.commands")]
    assert {"pynvml", "yaml", "msgspec", "prometheus_client", "argparse"}.isdisjoint(loaded)
