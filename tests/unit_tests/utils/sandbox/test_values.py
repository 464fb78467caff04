"""Plain values cross the border of a sandbox unchanged, and nothing else does."""

from __future__ import annotations

import collections
import enum
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.utils.sandbox import values

KEYS = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3)
PLAIN = st.recursive(
    KEYS | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
        | st.dictionaries(KEYS | st.tuples(KEYS, KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one, other) -> bool:
    """Equal, and of the same type all the way down."""
    return one == other and repr(one) == repr(other)


@given(PLAIN)
def test_plain_values_come_back(value):
    back = values.decode(values.encode(value))
    if isinstance(value, set | frozenset | dict):
        assert back == value and type(back) is type(value)
    else:
        assert same(back, value) or back == value


class Seven(enum.IntEnum):
    SEVEN = 7


class EqualsAll(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Seven.SEVEN, 7),
        (EqualsAll(3), 3),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.namedtuple("P", "x y")(1, 2), (1, 2)),
        (np.arange(3), [0, 1, 2]),
        (np.float64(0.5), 0.5),
        (np.int32(4), 4),
        (-0.0, -0.0),
    ],
)
def test_instances_of_subclasses_become_plain(value, plain):
    back = values.decode(values.encode(value))
    assert type(back) is type(plain) and repr(back) == repr(plain)


@pytest.mark.parametrize("value", [object(), len, values, [lambda: 1], {"a": object()}])
def test_other_types_are_refused(value):
    with pytest.raises(values.BadValue, match="has type"):
        values.encode(value)


def test_objects_are_referred_to_only_where_that_is_asked_for():
    data = values.encode([len], refer=lambda thing: 4)
    assert values.decode(data, dereference=lambda number: ("object", number)) == [("object", 4)]
    with pytest.raises(values.BadValue):
        values.decode(data)


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_depth_is_bounded():
    assert values.decode(values.encode(nested(values.MAX_DEPTH))) == nested(values.MAX_DEPTH)
    with pytest.raises(values.BadValue, match="nested"):
        values.encode(nested(values.MAX_DEPTH + 1))
    with pytest.raises(values.BadValue, match="nested"):
        values.decode(json.dumps(nested(values.MAX_DEPTH + 2)).encode())
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(values.BadValue, match="nested"):
        values.encode(cycle)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 10**6,
        b'{"a":' * 10**6,
        b"[" * 100_000 + b"]" * 100_000,
        b'"' + b"[" * 1000,
        b"{}",
        b'{"a": 1, "b": 2}',
        b'{"dict": 3}',
        b'{"dict": [[1]]}',
        b'{"dict": [[[], 1]]}',
        b'{"dict": [["ab", 1, 2]]}',
        b'{"set": [[1]]}',
        b'{"bytes": "0g"}',
        b'{"bytes": [1]}',
        b'{"complex": ["x", 1]}',
        b'{"complex": [1, 2, 3]}',
        b'{"object": -1}',
        b'{"object": true}',
        b'{"object": 1}',
        b'{"eval": ["1"]}',
        b"9" * 10_000,
    ],
)
def test_what_is_not_a_value_is_refused(data):
    with pytest.raises(values.BadValue):
        values.decode(data)


def test_brackets_in_texts_are_no_depth():
    text = '[{"\\' * 1000
    assert values.decode(values.encode([text])) == [text]


@given(st.binary(max_size=60) | st.text('[]{}":,1tuplesdic \\', max_size=60).map(str.encode))
def test_garbage_is_a_value_or_refused(data):
    try:
        values.encode(values.decode(data))
    except values.BadValue:
        pass
