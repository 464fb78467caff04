"""`benchmarks.gpu_parts.sglang_url`: what it asks for, and what it says when that goes wrong."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_parts import sglang_url
from benchmarks.gpu_parts.grpo import RECIPE, Steps
from benchmarks.gpu_parts.settings import Settings
from rlinf.config import build_config, validate_cfg


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the training was asked for; there is neither a server nor a contestant."""
    asked: list[Any] = []

    @contextlib.contextmanager
    def serving(*_: Any) -> Iterator[str]:
        yield "http://here:1"

    @contextlib.contextmanager
    def live(*_: Any) -> Iterator[tuple[Any]]:
        yield (SimpleNamespace(),)

    monkeypatch.setattr(sglang_url, "serving", serving)
    monkeypatch.setattr(sglang_url, "live", live)
    monkeypatch.setattr(Steps, "prepare", lambda *_: ["a=1"])
    yield asked


def test_eight_steps_are_made_and_each_is_compared(asked, monkeypatch, tmp_path: Path) -> None:
    def train_one(_: Any, steps: Steps, name: str, updates: int, overrides: list[str]) -> Any:
        asked.append((steps.shape, updates, overrides))
        return {"engine": name, "largest gap": 0.01}

    monkeypatch.setattr(sglang_url, "train_one", train_one)
    rows = list(sglang_url.measure(Settings(out=tmp_path, sizes=("0.5B",))))
    assert [row["engine"] for row in rows] == ["server", "sglang_server"]
    ((shape, updates, overrides),) = asked
    assert (shape, updates + 1, overrides[0]) == ("0.5B", 8, "a=1")
    monkeypatch.setenv("RLINF_EXT_MODULE", "benchmarks.parity_reward")
    files = [f"data.train_data_paths=[{tmp_path}]", f"actor.model.model_path={tmp_path}"]
    cfg = validate_cfg(build_config(str(RECIPE), [*files, *overrides[1:]]))
    assert (cfg.rollout.rollout_backend, cfg.rollout.server.url) == (
        "sglang_server",
        "http://here:1",
    )
    assert cfg.runner.agreement.interval == 1


def test_a_run_that_fails_fails_the_part(asked, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sglang_url, "train_one", lambda *_: {"note": "failed: no memory"})
    with pytest.raises(RuntimeError, match="failed: no memory"):
        list(sglang_url.measure(Settings(out=tmp_path)))


def test_a_server_that_ends_says_why(monkeypatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nraise SystemExit('no kernels')\n")
    program.chmod(0o755)
    monkeypatch.setattr(sglang_url.sys, "executable", str(program))
    with pytest.raises(RuntimeError, match="has ended with code 1: no kernels"):
        with sglang_url.serving(tmp_path, Settings(out=tmp_path)):
            pass
