from __future__ import annotations

import pytest

from gpufleet.metrics.labels import MOST_BYTES, fit, pairs


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("NVIDIA H100 80GB HBM3", 'name="NVIDIA H100 80GB HBM3"'),
        ('x"y\nz\\', r'name="x\"y\nz\\"'),
        ("Grafikkarte für Ö", 'name="Grafikkarte für Ö"'),
        ("tab\tbell\x07nul\x00", 'name="tab�bell�nul�"'),
        ("one\rtwo\u2028three", 'name="one�two�three"'),
        ("half \ud83d of a pair", 'name="half � of a pair"'),
        ("whole \U0001f600", 'name="whole \U0001f600"'),
        ("", ""),
        (None, ""),
    ],
)
def test_any_value_becomes_a_valid_label(value: str | None, written: str) -> None:
    """Quotes, backslashes and line feeds are escaped; what is no text is replaced; nothing at all is left out."""
    assert pairs([("name", value)]) == written


@pytest.mark.parametrize("value", ["x" * 500, "é" * 500, "a" + "é" * 500, "\U0001f600" * 500, "\ud800" * 500])
def test_long_values_are_cut_between_characters(value: str) -> None:
    """A cut value has at most 128 bytes of UTF-8, is a beginning of the whole, and wastes less than one character."""
    cut = fit(value)
    assert MOST_BYTES - 3 <= len(cut.encode()) <= MOST_BYTES
    assert value.replace("\ud800", "�").startswith(cut)


def test_a_value_of_the_greatest_length_is_kept() -> None:
    """128 bytes are not too long."""
    assert fit("x" * MOST_BYTES) == "x" * MOST_BYTES
    assert fit("é" * (MOST_BYTES // 2)) == "é" * (MOST_BYTES // 2)


def test_labels_are_joined_in_order() -> None:
    """Labels keep their order, and absent ones leave no comma behind."""
    assert pairs([("gpu", "0"), ("serial", None), ("uuid", "GPU-1")]) == 'gpu="0",uuid="GPU-1"'
