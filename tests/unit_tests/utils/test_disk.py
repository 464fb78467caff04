"""A disk that is full costs files, and not the run."""

from __future__ import annotations

import pytest

from rlinf.utils import disk
from rlinf.utils.disk import tolerate_disk_errors


def test_a_full_disk_is_told_once(capsys, monkeypatch):
    monkeypatch.setattr(disk, "_told", set())
    for _ in range(3):
        with tolerate_disk_errors("samples.jsonl"), open("/dev/full", "w") as file:
            file.write("x" * 100_000)
    said = capsys.readouterr().err
    assert said.count("samples.jsonl cannot be written") == 1 and "No space left" in said


def test_other_mistakes_are_raised():
    with pytest.raises(ValueError), tolerate_disk_errors("x"):
        raise ValueError("x")
