"""Members of a broadcast: who they are, however they are listed, without listing them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rlinf.scheduler.collective.members import Members

FOUR = [("a", [0, 1, 2, 3])]
MANY = 10**15
"""More ranks than anything that lists them could do with."""


@pytest.mark.parametrize(
    "groups, first",
    [
        (FOUR, "a:0"),
        ((("a", range(4)),), "a:0"),
        ([("a", [3, 1, 0, 2])], "a:3"),
        ([("a", range(3, -1, -1))], "a:3"),
        ([("a", range(0, 4, 2)), ("a", range(1, 4, 2))], "a:0"),
        ([("a", (3,)), ("a", [0, 1]), ("a", 2)], "a:3"),
        ([("a", []), ("a", [np.int64(2), 1, (0,)]), ("a", [3])], "a:2"),
    ],
)
def test_the_same_members_have_the_same_tag(groups, first):
    members = Members(groups)
    assert members.tag("a:0") == Members(FOUR).tag("a:0")
    # In the same order, too, so that each hands on to the same ones.
    assert members.names() == ["a:0", "a:1", "a:2", "a:3"]
    assert members.first == first
    assert str(members) == "a:0-3"


def test_other_members_or_another_source_have_another_tag():
    rng = random.Random(0)
    # Ranks, and children of a rank, of two groups.
    every = [(g, r) for g in ("a", "b") for r in (*range(6), (0, 0), (0, 1), (1, 0))]
    tags: dict[str, tuple[str, frozenset]] = {}
    for _ in range(300):
        chosen = rng.sample(every, rng.randint(1, len(every)))
        members = Members(chosen)
        names = members.names()
        assert all((Members([one]).first in names) == (one in chosen) for one in every)
        assert all((Members([one]).first in members) == (one in chosen) for one in every)
        shuffled = Members(rng.sample(chosen, len(chosen)))
        for source in names[:2]:
            key = source, frozenset(names)
            assert tags.setdefault(members.tag(source), key) == key
            assert shuffled.tag(source) == members.tag(source)
    assert len(set(tags.values())) == len(tags) > 300


def test_children_are_members_by_their_path():
    members = Members([("a", [(1, 1), (1, 0)]), ("a", 1)])
    assert members.first == "a:1:1"
    assert members.names() == ["a:1", "a:1:0", "a:1:1"]
    assert "a:1:1" in members and "a:1" in members
    assert "a:0" not in members and "a:1:2" not in members and "a" not in members
    assert str(members) == "a:1, a:1:0-1"


def test_what_a_receiver_needs_takes_no_longer_for_many():
    members = Members([("a", range(MANY)), ("b", 0), ("a", range(MANY, 2 * MANY))])
    assert members.first == "a:0"
    assert f"a:{2 * MANY - 1}" in members and f"a:{2 * MANY}" not in members
    assert members.tag("b:0") == Members([("b", 0), ("a", range(2 * MANY))]).tag("b:0")
    assert str(members) == f"a:0-{2 * MANY - 1}, b:0"


def test_ranks_that_follow_each_other_are_one_range():
    for parts in itertools.permutations([[0, 1], [2], [3, 4, 5]]):
        assert str(Members([("a", part) for part in parts])) == "a:0-5"
    assert str(Members([("a", [0, 2, 3, 7])])) == "a:0, a:2-3, a:7"


@pytest.mark.parametrize(
    "groups, error, message",
    [
        ([], TypeError, "must be a list"),
        ("a", TypeError, "must be a list"),
        ([("a", 0, 1)], TypeError, r"\('a', 0, 1\) is not a pair"),
        ([(0, "a")], TypeError, "is not a pair"),
        ([("a", [])], ValueError, "name no rank"),
        ([("a", None)], ValueError, r"\('a', None\).* names no rank"),
        ([("a", [0.5])], TypeError, "float"),
        ([("a:0", [1])], ValueError, "must not hold ':'"),
        ([("a", [0, 1, 0])], ValueError, "^a:0 is named twice"),
        ([("a", range(MANY)), ("a", range(2, MANY))], ValueError, f"^a:2-{MANY - 1} is named"),
        ([("a", range(3)), ("b", 1), ("a", [2, (1,)])], ValueError, "^a:1 is named twice"),
    ],
)
def test_mistakes(groups, error, message):
    with pytest.raises(error, match=message):
        Members(groups)
