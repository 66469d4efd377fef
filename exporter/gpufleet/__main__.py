"""``python -m gpufleet``: the same program as the ``gpufleet`` console script."""

from __future__ import annotations

from gpufleet.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
