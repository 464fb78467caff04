"""The curves of a run: one series of points per metric, few enough for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MOST_POINTS = 2_000
"""Points of a series on the page; a longer one is shown by the least and greatest of each part."""

Point = tuple[int, float]


def metric_series(lines: Sequence[dict[str, Any]]) -> dict[str, list[Point]]:
    """Return the points of each metric in the order of the file: (step, value)."""
    series: dict[str, list[Point]] = {}
    for line in lines:
        for name, value in line.items():
            if name != "step" and isinstance(value, (int, float)):
                series.setdefault(name, []).append((line["step"], value))
    return series


def thin(points: list[Point], most: int = MOST_POINTS) -> list[Point]:
    """Leave points out where there are too many.

    Every point that stays is one of the run. The first and the last stay, and of each part between
    them the least and the greatest, so that no peak is lost.

    Args:
        points: in order.
        most: how many may stay.
    """
    if len(points) <= most:
        return points
    inner = points[1:-1]
    parts = max(1, (most - 2) // 2)
    kept = [points[0]]
    for part in range(parts):
        begin, end = (index * len(inner) // parts for index in (part, part + 1))
        # A number that is none must not hide those that are.
        places = [i for i in range(begin, end) if not math.isnan(inner[i][1])] or [begin]
        chosen = {min(places, key=lambda i: inner[i][1]), max(places, key=lambda i: inner[i][1])}
        kept += [inner[i] for i in sorted(chosen)]
    return [*kept, points[-1]]


def for_page(lines: Sequence[dict[str, Any]], most: int = MOST_POINTS) -> dict[str, Any]:
    """Return series by name, env steps by step, and whether points were left out."""
    series = metric_series(lines)
    shown = {name: thin(points, most) for name, points in sorted(series.items())}
    return {
        "series": {
            name: {"steps": [s for s, _ in points], "values": [v for _, v in points]}
            for name, points in shown.items()
        },
        "env_steps": [list(point) for point in thin(series.get("env/total_steps", []), most)],
        "longest": max((len(points) for points in series.values()), default=0),
        "most": most,
    }
