"""The landing page of a node: its GPUs in a table, for the person who has just opened the exporter in a browser.

One self-contained document without scripts and without other hosts. Send it with ``CONTENT_SECURITY_POLICY``.
"""

from __future__ import annotations

from gpufleet.metrics.page.layout import render
from gpufleet.metrics.page.style import CONTENT_SECURITY_POLICY

__all__ = ["CONTENT_SECURITY_POLICY", "CONTENT_TYPE", "render"]

CONTENT_TYPE = "text/html; charset=utf-8"
