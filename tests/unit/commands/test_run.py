"""The command line of ``gpufleet run``, and what the environment adds to it."""

from __future__ import annotations

import pytest

from gpufleet.commands.run import Options, UsageError, parse


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Options()),
        ({"NODE_IP": "10.0.0.7"}, Options(exporter="http://10.0.0.7:9839")),
        ({"NODE_IP": "fd00::7"}, Options(exporter="http://[fd00::7]:9839")),
        ({"NODE_IP": "10.0.0.7", "GPUFLEET_EXPORTER": "unix:/x"}, Options(exporter="unix:/x")),
        ({"GPUFLEET_RUN": "r", "GPUFLEET_PROJECT": "p"}, Options(project="p", run="r")),
        ({"SLURM_JOB_ID": "42"}, Options(slurm_run="42")),
        ({"SLURM_JOB_ID": "44", "SLURM_ARRAY_JOB_ID": "42", "SLURM_ARRAY_TASK_ID": "1"}, Options(slurm_run="42_1")),
    ],
)
def test_the_environment_says_what_no_flag_says(environ: dict[str, str], expected: Options) -> None:
    """In a manifest it is the easier place."""
    found = parse(["--", "train", "--run=x"], environ)

    assert found == Options(
        exporter=expected.exporter,
        project=expected.project,
        run=expected.run,
        slurm_run=expected.slurm_run,
        program=("train", "--run=x"),
    )


def test_flags_end_where_the_program_begins() -> None:
    """Its own are its own, with the two dashes before it or without."""
    assert parse(["--run", "r", "train", "--run=x"], {}).run == "r"
    assert parse(["--run=r", "train", "--run=x"], {}).program == ("train", "--run=x")
    assert parse(["--exit-code=137", "--", "--strange"], {}).program == ("--strange",)


@pytest.mark.parametrize("value", ["0", "1", "255", "x", "-1", ""])
def test_codes_that_mean_something_else_are_refused(value: str) -> None:
    """0 is success, 1 what the program's own use of the code becomes."""
    with pytest.raises(UsageError, match="must be a number from 2 to 254"):
        parse([f"--exit-code={value}", "true"], {})
