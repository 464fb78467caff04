"""What `benchmarks.reasoning` and `benchmarks.gpu_reasoning` make of what they are told."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_reasoning, harness, reasoning
from benchmarks.communication import Turns
from benchmarks.gpu_parts import training
from benchmarks.gpu_parts.settings import Settings
from benchmarks.harness import Board
from tests.long_tests import long_test


class Scripted:
    """A contestant that needs a fixed time for a step."""

    def __init__(self, name: str, seconds: float):
        self.name = name
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._seconds = seconds

    def ask(self, do: str, timeout: float = 0.0, **arguments: Any) -> Any:
        self.asked.append((do, arguments))
        if do != "train":
            return "somehow"
        found = {"seconds": self._seconds, "length": 12.0, "score": 0.5}
        if self.name == reasoning.OURS:
            found |= {"generate": 0.1, "training": 0.2, "sync_weights": 0.01}
        return found


def test_all_train_the_model_that_ours_has_made() -> None:
    running = [Scripted(reasoning.OURS, 0.4), Scripted(reasoning.TRL, 1.0)]
    board = Board([contestant.name for contestant in running])
    notes = reasoning.measure(board, Turns(board, running, rounds=2), 3, Path("/folder"))
    assert not board.failures
    table = board.render()
    # 32 x 8 samples in 0.4 s, and 2.5 times as fast as the other.
    assert "| GRPO, all of the loop (samples/s) | 640 | 256 |" in table
    assert "≥ 2 x TRL: 2.50 x met" in table
    assert "generate 0.100 s, training 0.200 s, sync weights 0.010 s" in notes[1]
    mine, theirs = running
    assert [do for do, _ in mine.asked] == ["make", "prepare", "train", "train"]
    assert [do for do, _ in theirs.asked] == ["prepare", "train", "train"]
    assert theirs.asked[0][1]["folder"] == mine.asked[0][1]["folder"] == "/folder/model"
    assert theirs.asked[1][1]["micro_batch"] == 256


def test_every_contestant_has_a_program() -> None:
    known = reasoning.entries("/env/bin/python")
    assert [entry.name for entry in known] == ["ours", "TRL", "TRL, 1 thread"]
    for entry in known:
        assert (harness.PROGRAMS / entry.program).is_file()
    assert known[2].env["OMP_NUM_THREADS"] == "1"
    assert [entry.name for entry in reasoning.entries()] == ["ours"]


def test_an_interpreter_without_trl_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(ValueError, match="trl-env/bin/pip install"):
        reasoning.check_trl(str(python))


def test_the_arithmetic_of_a_step() -> None:
    groups = training.random_groups(tokens=64, mean=8, vocabulary=32)
    assert len(groups) == 1 and all(len(group.samples) == training.GROUP for group in groups)
    sample = groups[0].samples[0]
    del groups[0].samples[1:]
    length = len(sample.prompt_ids) + len(sample.response_ids) - 1
    # The small shape: 3 layers of 4 heads of 32, 2 of them for keys, width 128, 320 inside.
    layer = 128 * 32 * (2 * 4 + 2 * 2) + 3 * 128 * 320
    forward = 3 * (2 * layer * length + 2 * 4 * 32 * length**2)
    forward += 2 * 32 * 128 * len(sample.response_ids)
    assert training.flops("small", groups) == 3 * forward


def test_rows_are_kept_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_: Settings) -> Any:
        yield {"what": "a", "tokens/s": 12345}
        yield {"what": "b", "note": "x|y"}
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(training, "measure", measure)
    with pytest.raises(RuntimeError):
        gpu_reasoning.run_part("training", Settings(out=tmp_path))
    lines = (tmp_path / gpu_reasoning.FILE).read_text().splitlines()
    assert [json.loads(line)["what"] for line in lines] == ["a", "b"]
    table = gpu_reasoning.table([{"what": "a", "tokens/s": 12345}, {"what": "b", "note": "x|y"}])
    assert table.splitlines()[2:] == ["| a | 12,345 |  |", "| b |  | x/y |"]
    assert "device is gone" not in capsys.readouterr().out


@long_test
@pytest.mark.timeout(120)
def test_the_learner_is_measured_without_a_gpu(tmp_path: Path) -> None:
    rows = list(training.measure(Settings(out=tmp_path, tiny=True)))
    assert rows[0]["TFLOP/s"] >= 0
    timed = [row for row in rows if "tokens/s" in row]
    assert [row["what"] for row in timed] == [
        "small, 256 tokens",
        "small, 256 tokens, recomputing",
    ]
    assert all(row["tokens/s"] > 0 for row in timed)
    begins = [number for number, row in enumerate(rows) if "device busy" in row["what"]]
    for begin in begins:
        listed = itertools.takewhile(lambda row: "calls" in row, rows[begin + 1 :])
        times = [row["ms"] for row in listed]
        assert times and times == sorted(times, reverse=True)
    assert begins


def test_smollm2_needs_its_weights(tmp_path: Path) -> None:
    from benchmarks.gpu_parts import smollm2

    with pytest.raises(ValueError, match="rlinf fetch smollm2"):
        next(smollm2.measure(Settings(out=tmp_path)))


def test_a_part_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    arguments = ["--out", str(tmp_path), "--parts", "weights", "grpo"]
    assert gpu_reasoning.main(arguments) == 1
    assert "FAILED weights, grpo" in capsys.readouterr().out
