"""The page as a whole: node, banners, sums, table, sources. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet import __version__
from gpufleet.metrics.exposition import STALE_INTERVALS
from gpufleet.metrics.page.markup import bar, text
from gpufleet.metrics.page.table import table
from gpufleet.metrics.page.words import NVML_STATES, Values, age, gibibytes, percent, plural, present
from gpufleet.metrics.page_style import ICON, STYLE
from gpufleet.model.state import GpuState, NvmlState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpufleet.model.readings import Number
    from gpufleet.model.snapshot import Snapshot


def render(
    snapshot: Snapshot,
    *,
    now: float,
    interval: float,
    telemetry_path: str = "/metrics",
    refresh_seconds: int | None = 5,
) -> str:
    """Return the page.

    ``now`` is the monotonic clock, ``interval`` the poll interval in seconds. ``refresh_seconds`` is None for a page
    that stays as it is: the page links to ``?refresh=off`` and back.
    """
    old = now - snapshot.monotonic
    stale = old > STALE_INTERVALS * interval
    known = not stale and not snapshot.quiesced
    node = text(snapshot.node.node)
    refresh = "" if refresh_seconds is None else f'<meta http-equiv="refresh" content="{refresh_seconds}">'
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f'<title>{node} · gpufleet</title>\n<link rel="icon" href="{ICON}">\n{refresh}\n<style>{STYLE}</style>\n',
            "</head>\n<body>\n<header>\n",
            f"<h1>{node}</h1>\n<p>gpufleet exporter</p>\n",
            '<nav aria-label="Endpoints">',
            f'<a href="{text(telemetry_path)}">Metrics</a><a href="/-/healthy">Healthy</a><a href="/-/ready">Ready</a>',
            "</nav>\n</header>\n<main>\n",
            _about(snapshot, old),
            *_banners(snapshot, old, stale=stale),
            _tiles(snapshot) if known and snapshot.gpus else "",
            table(snapshot, known=known) if snapshot.gpus else _nothing(snapshot),
            _sources(snapshot),
            "</main>\n<footer>",
            f"<span>gpufleet {text(__version__)}</span>",
            _refreshing(refresh_seconds),
            "</footer>\n</body>\n</html>\n",
        )
    )


def _about(snapshot: Snapshot, old: float) -> str:
    node = snapshot.node
    facts = (
        ("Driver", node.driver_version),
        ("CUDA", node.cuda_version),
        ("NVML", node.nvml_version),
        ("Polled", f"{age(old)} ago" if snapshot.poll.polls else None),
        ("Poll took", f"{1000 * snapshot.poll.duration_seconds:.1f} ms" if snapshot.poll.polls else None),
    )
    items = "".join([f"<li>{name} <b>{text(value)}</b></li>" for name, value in facts if value])
    return f'<ul class="about">{items}</ul>\n'


def _banners(snapshot: Snapshot, old: float, *, stale: bool) -> Iterator[str]:
    if snapshot.node.simulated:
        yield _banner("note", "Simulated.", "No real GPU is behind these numbers: a scripted driver makes them.")
    if snapshot.quiesced:
        yield _banner(
            "warn",
            "Quiesced.",
            "The exporter has let go of the driver, so that GPUs can be reset or the driver be changed. "
            "Resume with: gpufleet resume",
        )
    elif snapshot.nvml_state is not NvmlState.OK:
        yield _banner("bad", f"{NVML_STATES[snapshot.nvml_state]}.", snapshot.reason or "")
    if stale:
        yield _banner("bad", "Out of date.", f"The last poll was {age(old)} ago, so no readings are shown.")
    expected, visible = snapshot.gpus_expected, snapshot.gpus_visible
    if not snapshot.quiesced and not stale and expected is not None and visible is not None and visible < expected:
        missing = expected - visible
        yield _banner("warn", f"{missing} of {expected} GPUs", f"{'does' if missing == 1 else 'do'} not answer.")


def _banner(tone: str, headline: str, rest: str) -> str:
    return f'<p class="banner {tone}" role="status"><b>{text(headline)}</b>{text(rest)}</p>\n'


def _tiles(snapshot: Snapshot) -> str:
    """Sum up the node over the GPUs that report."""
    well = [Values(gpu.parts) for gpu in snapshot.gpus if gpu.state is GpuState.OK]
    tiles = [_tile("GPUs answering", str(len(well)), f"of {snapshot.gpus_expected or len(snapshot.gpus)}")]
    for title, name in (("Mean SM activity", "sm_active_ratio"), ("Mean utilization", "utilization_ratio")):
        ratios = present([values(name) for values in well])
        if ratios:
            mean = sum(ratios) / len(ratios)
            tiles.append(_tile(title, percent(mean), f"over {len(ratios)} GPU{plural(len(ratios))}", mean))
            break
    used, total = _sums(well, "memory_used_bytes", "memory_total_bytes")
    if total:
        tiles.append(_tile("Memory used", f"{gibibytes(used)} GiB", f"of {gibibytes(total)}", used / total))
    watts, limit = _sums(well, "power_watts", "power_limit_watts", "enforced")
    if limit:
        tiles.append(_tile("Power", f"{watts / 1000:.2f} kW", f"of {limit / 1000:.2f}", watts / limit))
    tiles += _costs(snapshot)
    hottest = max(present([values("temperature_celsius") for values in well]), default=None)
    if hottest is not None:
        tiles.append(_tile("Hottest GPU", f"{hottest:.0f} °C", ""))
    return f'<dl class="tiles">{"".join(tiles)}</dl>\n'


def _costs(snapshot: Snapshot) -> Iterator[str]:
    """What the node's GPUs cost, by currency; amounts of two currencies can't be added up."""
    totals: dict[str, float] = {}
    for price in snapshot.meter.prices:
        totals[price.currency] = totals.get(price.currency, 0.0) + price.per_hour
    for currency, total in sorted(totals.items()):
        yield _tile("Costs", f"{total:.2f} {currency}", "an hour")


def _sums(gpus: list[Values], name: str, limit: str, *members: str) -> tuple[Number, Number]:
    """Return value and limit summed over the GPUs that report both."""
    both = [(values(name), values(limit, *members)) for values in gpus]
    whole = [(value, most) for value, most in both if value is not None and most is not None]
    return sum([value for value, _ in whole]), sum([most for _, most in whole])


def _tile(title: str, value: str, rest: str, ratio: float | None = None) -> str:
    of = f'<span class="of">{text(rest)}</span>' if rest else ""
    picture = "" if ratio is None else bar(ratio)
    return f'<div class="tile"><dt>{text(title)}</dt><dd><span class="big">{text(value)}</span>{of}{picture}</dd></div>'


def _nothing(snapshot: Snapshot) -> str:
    waiting = not snapshot.poll.polls
    words = "The first poll has not ended yet." if waiting else "There is no GPU to show."
    return f'<div class="frame"><p class="empty">{words}</p></div>\n'


def _sources(snapshot: Snapshot) -> str:
    items = []
    for source in snapshot.sources:
        words = "ok" if source.up else f"not available{f': {source.reason}' if source.reason else ''}"
        items.append(f"<li>Source {text(source.source)}: {text(words)}</li>")
    return f'<ul class="sources">{"".join(items)}</ul>\n' if items else ""


def _refreshing(seconds: int | None) -> str:
    if seconds is None:
        return '<span>Not refreshing. <a href="?">Refresh by itself</a></span>'
    return f'<span>Refreshes every {seconds} s. <a href="?refresh=off">Stop</a></span>'
