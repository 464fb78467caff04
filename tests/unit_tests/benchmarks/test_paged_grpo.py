"""`benchmarks.gpu_parts.paged_grpo`: which runs it asks for, and when it says that they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_parts import paged_grpo
from benchmarks.gpu_parts.grpo import Steps
from benchmarks.gpu_parts.settings import TINY, Settings

FOUND = {"first score": 0.5, "first length": 255.75, "first gap": 0.0412}


def rows_of(**changes: float) -> list[dict[str, Any]]:
    return [
        {"engine": "rows", **FOUND},
        {"engine": "paged", **FOUND, **{key.replace("_", " "): v for key, v in changes.items()}},
    ]


def test_equal_first_steps_are_fine() -> None:
    assert paged_grpo.differences(rows_of()) == []
    assert paged_grpo.differences(rows_of(first_gap=0.0413)) == []


@pytest.mark.parametrize(
    ("key", "value"), [("first_score", 0.504), ("first_length", 255.0), ("first_gap", 0.06)]
)
def test_first_steps_that_differ_are_named(key: str, value: float) -> None:
    (problem,) = paged_grpo.differences(rows_of(**{key: value}))
    name = key.replace("_", " ")
    assert problem == f"{name} of paged and rows differ: {value:g} and {FOUND[name]:g}"


def test_a_run_that_fails_is_a_difference() -> None:
    rows = [{"engine": "rows", **FOUND}, {"engine": "paged", "note": "failed: out of memory"}]
    assert paged_grpo.differences(rows) == ["paged failed: out of memory"]


@pytest.mark.parametrize("tiny", [True, False])
def test_every_cache_is_asked_for_and_rows_come_before_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: bool
) -> None:
    asked: dict[str, list[str]] = {}

    def train_each(_: Settings, cases: dict[str, list[str]], shared: list[str]) -> Any:
        for name, further in cases.items():
            asked[name] = [*shared, *further]
            yield {"engine": name, **FOUND, "first score": 0.1 if name == "auto" else 0.5}

    monkeypatch.setattr(paged_grpo, "train_each", train_each)
    rows = []
    with pytest.raises(RuntimeError, match="first score of auto and rows differ: 0.1 and 0.5"):
        for row in paged_grpo.measure(Settings(out=tmp_path, tiny=tiny)):
            rows.append(row)
    assert [row["engine"] for row in rows] == ["rows", "paged", "auto"]
    caches = {name: overrides[-1] for name, overrides in asked.items()}
    assert caches == {
        "rows": "rollout.hf.paged_cache=false",
        "paged": "rollout.hf.paged_cache=true",
        "auto": "rollout.hf.paged_cache=auto",
    }
    assert all(("runner.seq_length=4096" in each) != tiny for each in asked.values())


def test_the_size_of_a_step(tmp_path: Path) -> None:
    assert Steps.of(Settings(out=tmp_path, sizes=("1.5B",))) == Steps("1.5B", 32, 8, 128, 256)
    small = Steps.of(Settings(out=tmp_path, tiny=True))
    assert small.shape == TINY and small.responses == 4
