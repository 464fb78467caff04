"""Tags of a run stay what they are, whatever the run writes."""

from __future__ import annotations

import pytest

from rlinf.utils.runs.tags import FILE, add_tags, check_tag, read_tags, remove_tags


def test_tags_keep_their_order_and_come_once(tmp_path):
    assert read_tags(tmp_path) == []
    assert add_tags(tmp_path, ["b", "a", "b"]) == ["b", "a"]
    assert add_tags(tmp_path, ["c", "a"]) == ["b", "a", "c"]
    assert (tmp_path / FILE).read_text() == "b\na\nc\n"
    assert remove_tags(tmp_path, ["a"]) == read_tags(tmp_path) == ["b", "c"]
    assert remove_tags(tmp_path, ["b", "c"]) == []
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_a_file_that_was_edited_is_read(tmp_path):
    (tmp_path / FILE).write_text("\n  paper \r\n\nseed sweep\npaper")
    assert read_tags(tmp_path) == ["paper", "seed sweep"]
    assert remove_tags(tmp_path, ["seed sweep"]) == ["paper"]


@pytest.mark.parametrize("tag", ["paper", "v2", "lr=3e-4", "2026-11:a+b_c.d", "x" * 40])
def test_what_is_a_tag(tag):
    assert check_tag(tag) == tag


@pytest.mark.parametrize("tag", ["", "a b", "a,b", "-a", "a/b", ".a", "ä", "a\n", "x" * 41])
def test_what_is_not(tmp_path, tag):
    add_tags(tmp_path, ["known"])
    with pytest.raises(ValueError, match="is not a tag: one begins with"):
        add_tags(tmp_path, ["fine", tag])
    assert read_tags(tmp_path) == ["known"], "none is given"


def test_a_tag_that_is_not_there_is_not_taken(tmp_path):
    add_tags(tmp_path, ["a", "b"])
    with pytest.raises(ValueError, match="has no tag c; it has: a, b"):
        remove_tags(tmp_path, ["a", "c"])
    assert read_tags(tmp_path) == ["a", "b"]
