"""Settings hold for any text, not only for those that somebody thought of."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.config_file import ConfigFileError, parse_config
from gpufleet.durations import format_duration, parse_duration
from gpufleet.option_table import OPTIONS
from gpufleet.settings import SettingsError, effective, read_settings

FLAGS = [option.name for option in OPTIONS if option.in_file]


@given(st.integers(0, 10**10))
def test_a_duration_is_read_back_as_it_was(milliseconds: int) -> None:
    """Writing a duration and reading it gives the same time, to the millisecond."""
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.dictionaries(st.sampled_from(FLAGS), st.lists(st.text(max_size=40), min_size=1, max_size=2)))
def test_any_flags_are_accepted_whole_or_refused_with_a_line_each(flags: dict[str, list[str]]) -> None:
    """Each refusal is one line that names its flag; settings that are accepted keep their promises."""
    settings = None
    refusals: tuple[str, ...] = ()
    try:
        settings = read_settings(flags, environ={}, host_name="host")
    except SettingsError as error:
        refusals = error.refusals
    assert (settings is None) == bool(refusals)
    for refusal in refusals:
        assert refusal.isprintable()
        assert refusal.partition(":")[0].removeprefix("--") in flags
    if settings is not None:
        assert 0 < settings.poll_deadline <= settings.poll_interval <= 60
        assert settings.node_name.isprintable()
        assert effective(settings)


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!? \n\"'#|>%@", max_size=60).map(str.encode))
def test_any_bytes_are_entries_or_a_refusal(content: bytes) -> None:
    """No content of a file ends in a traceback."""
    with contextlib.suppress(ConfigFileError):
        for entry in parse_config(content, "f"):
            assert entry.path
            assert entry.line >= 1


@given(st.text(max_size=60))
def test_any_node_name_that_can_be_printed_is_kept_exactly(name: str) -> None:
    """A name is not trimmed, cut or changed on its way into the settings."""
    flags = {"node.name": [name]}
    if name and name.isprintable():
        assert read_settings(flags, environ={}, host_name="host").node_name == name
    else:
        with pytest.raises(SettingsError):
            read_settings(flags, environ={}, host_name="host")
