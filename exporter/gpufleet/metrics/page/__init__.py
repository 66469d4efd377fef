"""The landing page of a node: its GPUs in a table, for the person who has just opened the exporter in a browser.

One self-contained document, without scripts and other hosts. Send it with ``page_style.CONTENT_SECURITY_POLICY``.
"""

from __future__ import annotations

from gpufleet.metrics.page.layout import render

__all__ = ["render"]
