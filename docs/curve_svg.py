"""Draws the curves of a recipe as SVG: each seed, their mean, and the band of `rlinf verify`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from rlinf.cli.curves import CurveFile
from rlinf.cli.runs.score import RATES

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 30, 12, 44
_STYLE = (
    "text{font:12px sans-serif;fill:#444}"
    ".grid{stroke:#999;stroke-opacity:.3}.band{fill:#dce8f6}"
    ".seed{fill:none;stroke:#8fb3dc;stroke-width:1.2}"
    ".mean{fill:none;stroke:#1d4f91;stroke-width:2.4}"
)
_TICKS = 5


def ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    """Return round numbers from one at or below `low` to one at or above `high`, evenly spaced."""
    if not high > low:
        raise ValueError(f"ticks need a range, not {low} to {high}")
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power * factor for factor in (1, 2, 2.5, 5, 10)):
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first < most + 1:
            break
    return [step * number for number in range(first, last + 1)]


def title(file: CurveFile) -> str:
    """Return what a picture shows."""
    return f"{ {'success_once': 'success'}.get(file.metric, file.metric) } over {file.unit}"


def draw(file: CurveFile) -> str:
    """Return the picture of a curve file, an SVG document."""
    rate = file.metric in RATES
    curves = [curve.values[file.metric] for curve in file.curves.values()]
    band = file.band()
    low, high = (min(band.low), max(band.high)) if not rate else (0.0, 1.0)
    rows = [0.0, 0.25, 0.5, 0.75, 1.0] if rate else ticks(low, high)
    columns = ticks(0, file.steps[-1], most=7)
    plot = _Plot(columns[-1], rows[0], rows[-1])
    edges = [
        [min(max(value, rows[0]), rows[-1]) for value in edge] for edge in (band.low, band.high)
    ]
    mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    there, back = plot.points(file.steps, edges[1]), plot.points(file.steps, edges[0])
    told = title(file)
    parts = [
        f'<polygon class="band" points="{" ".join([*there, *reversed(back)])}"/>',
        *(plot.row(value, f"{value:.0%}" if rate else f"{value:,.0f}") for value in rows),
        *(plot.column(value, f"{value:,.0f}") for value in columns),
        *(_line("seed", plot.points(file.steps, values)) for values in curves),
        _line("mean", plot.points(file.steps, mean)),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(told)}</text>",
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">\n'
        f"<title>{escape(file.recipe)}: {escape(told)}</title>\n"
        f'<style>{_STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


class _Plot:
    """Where numbers are in the picture."""

    def __init__(self, last: float, low: float, high: float) -> None:
        self._last, self._low, self._high = last, low, high

    def x(self, steps: float) -> float:
        return LEFT + steps / self._last * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def points(self, steps: Sequence[int], values: Iterable[float]) -> list[str]:
        pairs = zip(steps, values, strict=True)
        return [f"{self.x(place):.1f},{self.y(value):.1f}" for place, value in pairs]

    def row(self, value: float, label: str) -> str:
        y = self.y(value)
        return (
            f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        )

    def column(self, value: float, label: str) -> str:
        x, bottom = self.x(value), HEIGHT - BOTTOM
        return (
            f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>'
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>'
        )


def _line(kind: str, points: Sequence[str]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(points)}"/>'
