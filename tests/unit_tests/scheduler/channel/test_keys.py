"""Keys of channels: equal ones meet, in every process, and others are refused in words."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.scheduler import Channel
from rlinf.scheduler.channel.keys import stable_form
from rlinf.scheduler.channel.spec import ChannelSpec, keeper_of
from tests.unit_tests.scheduler.waits import PROMPTLY


class Color(enum.Enum):
    """An enum of which no member equals anything else."""

    RED = "red"


class Level(enum.IntEnum):
    """An enum whose members are numbers."""

    ONE = 1


class Name(str, enum.Enum):
    """An enum whose members are strings."""

    A = "a"


Pair = namedtuple("Pair", "first second")

EQUAL = [
    [1, True, 1.0, 1 + 0j, np.int64(1), np.uint8(1), np.float32(1), np.bool_(True), Level.ONE],
    [0.5, np.float16(0.5), np.float64(0.5)],
    [2, 2.0, Decimal(2), Fraction(4, 2)],
    ["a", np.str_("a"), Name.A],
    [b"a", np.bytes_(b"a")],
    [("a", 1), (np.str_("a"), np.int32(1)), Pair("a", True)],
    [(("a",), None), ((np.str_("a"),), None)],
    [frozenset({"a", 1}), frozenset({np.int8(1), np.str_("a")})],
]
DIFFERENT = ["1", b"1", 1, (1,), ((1,),), (1, 1), ("1",), frozenset({1}), None, "None", "", ()]


@pytest.mark.parametrize("keys", EQUAL, ids=lambda keys: str(keys[0]))
def test_equal_keys_have_one_form(keys):
    assert len(set(keys)) == 1, "they are one key of a dict"
    assert len({stable_form("c", key) for key in keys}) == 1


def test_different_keys_have_different_forms():
    assert len({stable_form("c", key) for key in DIFFERENT}) == len(DIFFERENT)


def disguised(key):
    """The same key made of NumPy scalars."""
    if isinstance(key, tuple):
        return tuple(map(disguised, key))
    kinds = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_, bytes: np.bytes_}
    return kinds[type(key)](key)


_PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
_PLAIN |= st.text() | st.binary()
_KEYS = st.recursive(_PLAIN, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


@settings(max_examples=50, deadline=None)
@given(_KEYS)
def test_numpy_scalars_have_the_form_of_what_they_equal(key):
    other = disguised(key)
    assert other != key or stable_form("c", other) == stable_form("c", key)


def test_keepers_are_the_same_in_every_process():
    code = (
        "from rlinf.scheduler.channel.spec import *;"
        "import numpy as np; s = ChannelSpec('c', keepers=tuple('abcdefg'));"
        "keys = ['a', 1, ('b', 2.5), b'x', None, frozenset('abc'), np.str_('z'), np.int64(77)];"
        "print(*(keeper_of(s, key) for key in keys))"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1] and len(set(answers[0].split())) > 2


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (["a"], "unhashable type: 'list'"),
        (("a", {}), "unhashable type: 'dict'"),
        (np.ones(2), "unhashable type"),
        (float("nan"), "does not equal itself"),
        (("a", np.float32("nan")), "does not equal itself"),
        (object(), "the hash of a object means nothing in another process"),
        (torch.tensor(1), "the hash of a Tensor means nothing"),
        (np.datetime64("2026-01-01"), "the hash of a datetime64 means nothing"),
    ],
    ids=str,
)
def test_unusable_keys_are_refused_in_words(small_run, key, reason):
    small_run.keeper()
    remote = small_run.channel(small_run.join("p:0"), "c")
    for channel in (remote, Channel.create("c", local=True)):
        for use in (
            lambda channel=channel: channel.put(b"x" * 100_000, key=key),
            lambda channel=channel: channel.get(key=key, timeout=PROMPTLY),
            lambda channel=channel: channel.get_batch(1, key=key, timeout=PROMPTLY),
            lambda channel=channel: channel.qsize(key=key),
        ):
            with pytest.raises(ValueError, match=reason) as caught:
                use()
            assert "channel 'c'" in str(caught.value) and "A key is None" in str(caught.value)
    assert len(remote._client().outbox) == 0, "nothing is kept of what could not be put"


@pytest.mark.parametrize("local", [False, True], ids=["distributed", "local"])
def test_equal_keys_meet(small_run, local):
    if local:
        putting = getting = Channel.create("c", local=True)
    else:
        keepers = tuple(small_run.keeper(f"keeper:{rank}").name for rank in range(3))
        putting, getting = (
            small_run.channel(small_run.join(name), "c", keepers=keepers) for name in ("p:0", "g:0")
        )
    for keys in EQUAL:
        for put_key in keys:
            for get_key in keys:
                putting.put("x", key=put_key)
                assert getting.get(key=get_key, timeout=PROMPTLY) == "x", (put_key, get_key)
    assert getting.keys() == []


def test_enum_members_are_keys():
    spec = ChannelSpec("c", keepers=("a", "b", "c"))
    assert keeper_of(spec, Color.RED) == keeper_of(spec, Color("red"))
    assert stable_form("c", Color.RED) != stable_form("c", "red")
