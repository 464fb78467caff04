"""Tables that fit the terminal: columns are left out or wrapped, and no name is ever cut."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its name, and its key in a row.
        right: whether it is set flush right, as numbers are.
        redundant: whether other columns say the same; such columns go first.
        rank: of those that may be left out, the higher ones go earlier; 0 never goes.
    """

    title: str
    right: bool = False
    redundant: bool = False
    rank: int = 0


@dataclass(frozen=True)
class Layout:
    """How a table is set.

    Attributes:
        columns: those of a row's first line.
        below: the column on a line of its own; None if a row is one line.
    """

    columns: list[Column]
    below: Column | None = None


def terminal_width() -> int | None:
    """Return how wide the output may be; None if it goes to no terminal."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return shutil.get_terminal_size().columns


def set_table(
    columns: Sequence[Column], rows: Sequence[Mapping[str, str]], width: int | None
) -> tuple[list[str], list[str]]:
    """Set a table.

    Columns without content are left out. If the rest is too wide, these come next, until it fits:
    leave out what is redundant; put the last column on a line of its own; leave out columns by
    rank. What is still too wide is left to the terminal to wrap.

    Args:
        columns: from left to right.
        rows: texts by title of a column; a missing one is empty.
        width: characters of a line; None for no limit.

    Returns:
        The lines, and the titles of columns that were left out although they say something.
    """
    filled = [column for column in columns if any(row.get(column.title) for row in rows)]
    layouts = list(_layouts(filled))
    fits = (layout for layout in layouts if width is None or _width(layout, rows) <= width)
    chosen = next(fits, layouts[-1])
    kept = [*chosen.columns, chosen.below]
    lost = [column.title for column in filled if column not in kept and not column.redundant]
    return list(_lines(chosen, rows)), lost


def _layouts(columns: list[Column]) -> Iterator[Layout]:
    lean = [column for column in columns if not column.redundant]
    yield Layout(columns)
    yield Layout(lean)
    if len(lean) < 2:
        return
    yield Layout(columns[:-1], columns[-1])
    left = lean[:-1]
    yield Layout(left, lean[-1])
    for column in sorted(left, key=lambda column: -column.rank):
        if column.rank > 0:
            left = [other for other in left if other is not column]
            yield Layout(left, lean[-1])


def _widths(layout: Layout, rows: Sequence[Mapping[str, str]]) -> list[int]:
    return [
        max(len(column.title), *(len(row.get(column.title, "")) for row in rows))
        for column in layout.columns
    ]


def _width(layout: Layout, rows: Sequence[Mapping[str, str]]) -> int:
    widths = _widths(layout, rows)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _lines(layout: Layout, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    widths = _widths(layout, rows) if rows else []
    titles = {column.title: column.title for column in layout.columns}
    for row in [titles, *rows] if rows else []:
        cells = [
            f"{row.get(column.title, ''):{'>' if column.right else '<'}{width}}"
            for column, width in zip(layout.columns, widths, strict=True)
        ]
        yield _GAP.join(cells).rstrip()
        if layout.below is not None and row is not titles:
            yield _GAP + row.get(layout.below.title, "")
