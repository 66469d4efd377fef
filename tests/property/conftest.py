"""Hypothesis without a time limit per example: a busy machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gpufleet", deadline=None)
settings.load_profile("gpufleet")
