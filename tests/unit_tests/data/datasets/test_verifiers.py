"""Rows of environments of verifiers become questions, and what they hold comes along."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from rlinf.data.datasets.verifiers import VerifiersDataset


@pytest.fixture
def rows(monkeypatch):
    """Rows of an environment in place of the package."""
    held = {
        "train": [
            {"prompt": [{"role": "user", "content": "2+2?"}], "answer": "4", "info": {"level": 1}},
            {"prompt": "2+3?", "answer": "5"},
        ],
        "val": [],
    }
    package = ModuleType("verifiers")
    env = SimpleNamespace(
        get_dataset=lambda: held["train"], get_eval_dataset=lambda n: held["val"][:n]
    )
    package.load_environment = lambda name, **arguments: env
    monkeypatch.setitem(sys.modules, "verifiers", package)
    return held


CFG = SimpleNamespace(environment="sums", environment_args={}, val_size=2)


def test_rows_become_questions(rows):
    data = VerifiersDataset(CFG, "train", 0)
    first, second = data[0], data[1]
    assert len(data) == 2 and first.task == "sums"
    assert first.prompt == [{"role": "user", "content": "2+2?"}] and first.answer == "4"
    assert first.metadata == {"verifiers": {"answer": "4", "info": {"level": 1}}}
    assert second.prompt == "2+3?"


def test_an_environment_without_rows_is_refused(rows):
    with pytest.raises(ValueError, match="'sums' of verifiers has no rows to evaluate with"):
        VerifiersDataset(CFG, "val", 0)
