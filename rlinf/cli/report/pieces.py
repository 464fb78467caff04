"""Pieces of HTML that sections are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rlinf.cli.report.headline import Tile
from rlinf.utils.numbers import interval, number, percent

_NAMES = ("id", "reset_id", "seed")
"""Keys of episodes whose numbers are names: they have no separators."""


def tile_grid(tiles: Iterable[Tile]) -> str:
    """Return numbers with their names, side by side."""
    cells = "".join(
        f'<div class="tile"><div class="label">{escape(tile.label)}</div>'
        f'<div class="value">{escape(tile.value)}</div>'
        f'<div class="note">{escape(tile.note)}</div></div>'
        for tile in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def definition_list(rows: Iterable[tuple[str, str]]) -> str:
    """Return the names and values, two columns."""
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f"<dl>{body}</dl>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts."""
    top = "".join(f"<th>{escape(str(cell))}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"
        for cells in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def cell(key: str, value: Any) -> str:
    """Return a number, a word or an interval of a result, for people.

    Args:
        key: what it is; rates of success are in percent.
        value: what was found.
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict) and value.keys() >= {"value", "low", "high"}:
        return interval(*(cell(key, value[end]) for end in ("value", "low", "high")))
    if isinstance(value, float) and key.startswith("success"):
        return percent(value)
    return number(value) if isinstance(value, int | float) and key not in _NAMES else str(value)
