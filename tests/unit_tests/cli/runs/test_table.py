from __future__ import annotations

from rlinf.cli.runs.table import Column, set_table

COLUMNS = [
    Column("name", redundant=True),
    Column("count", right=True, rank=1),
    Column("speed", right=True, rank=2),
    Column("empty"),
    Column("folder"),
]
ROWS = [
    {"name": "one", "count": "1", "speed": "10/s", "folder": "logs/one"},
    {"name": "three", "count": "333", "folder": "logs/three"},
]


def test_a_table_is_aligned_and_has_no_empty_columns():
    lines, lost = set_table(COLUMNS, ROWS, None)
    assert lines == [
        "name   count  speed  folder",
        "one        1   10/s  logs/one",
        "three    333         logs/three",
    ]
    assert lost == []


def test_what_is_too_wide_gives_up_what_says_least_first():
    full = max(map(len, set_table(COLUMNS, ROWS, None)[0]))
    assert set_table(COLUMNS, ROWS, full) == set_table(COLUMNS, ROWS, None)
    without_name, lost = set_table(COLUMNS, ROWS, full - 1)
    assert without_name[0] == "count  speed  folder" and lost == []
    two_lines, lost = set_table(COLUMNS, ROWS, 19)
    assert two_lines[:3] == ["name   count  speed", "one        1   10/s", "  logs/one"]
    assert lost == []
    two_lines, lost = set_table(COLUMNS, ROWS, 11)
    assert two_lines == ["count", "    1", "  logs/one", "  333", "  logs/three"]
    assert lost == ["speed"]


def test_nothing_to_show():
    assert set_table(COLUMNS, [], 80) == ([], [])
