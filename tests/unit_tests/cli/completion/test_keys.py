"""The keys of the schema, and the file in which they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.cli.completion import keys
from rlinf.config.schema.root import TASKS, root_model
from rlinf.config.walk import fields_below


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rlinf"


def no_schema() -> None:
    raise AssertionError("the schema is read again")


def test_every_key_of_every_task_is_known() -> None:
    found = keys.read_schema()
    for task in TASKS:
        paths = {path for path, _, _ in fields_below(root_model(task)) if "[]" not in path}
        assert paths <= found.keys()
    assert found["runner.logger"].section and not found["runner.seed"].section
    assert found["runner.progress"].values == ["auto", "plain", "off"]


def test_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = keys.config_keys()
    monkeypatch.setattr(keys, "read_schema", no_schema)
    assert keys.config_keys() == first


def test_another_schema_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    keys.config_keys()
    state = [*keys._state(), ["another file", 1, 1]]
    monkeypatch.setattr(keys, "_state", lambda: state)
    monkeypatch.setattr(keys, "read_schema", lambda: {"new": keys.Key(False, [], "")})
    assert list(keys.config_keys()) == ["new"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": 1}'])
def test_a_broken_file_is_made_anew(content: str, cache: Path) -> None:
    cache.mkdir()
    (cache / "config_keys.json").write_text(content)
    assert "runner.seed" in keys.config_keys()
    assert len((cache / "config_keys.json").read_text()) > 1000
    assert len(list(cache.iterdir())) == 1


def test_without_a_place_to_keep_them(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert "runner.seed" in keys.config_keys()
