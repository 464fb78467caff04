"""What `benchmarks.generation` makes of its contestants' answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import generation, harness
from benchmarks.communication import Turns
from benchmarks.harness import Board


class Scripted:
    """A contestant with a fixed speed, slow the first time."""

    def __init__(self, name: str, speed: float):
        self.name = name
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._speed = speed

    def ask(self, do: str, timeout: float = 0.0, **arguments: Any) -> Any:
        self.asked.append((do, arguments))
        if do == "make":
            return {"weight_bytes": 1e9, "token_bytes": 1e4}
        if do == "prepare":
            return "somehow"
        first = [each for each, _ in self.asked].count("generate") == 1
        return {"tokens": 1000.0, "seconds": 1000.0 / self._speed * (10 if first else 1)}


def measured(*arguments: str) -> tuple[str, list[str], list[Scripted]]:
    settings = generation.parser().parse_args([*arguments, "--prompt", "8", "--tokens", "16"])
    running = [Scripted(generation.OURS, 6000.0), Scripted(generation.GENERATE, 1000.0)]
    board = Board([contestant.name for contestant in running])
    turns = Turns(board, running, rounds=3)
    notes = generation.measure(board, turns, settings, Path("/folder"))
    assert not board.failures
    return board.render([(generation.OURS, generation.GENERATE)]), notes, running


def test_the_first_round_does_not_count() -> None:
    table, notes, running = measured()
    assert table.count("≥ 5 x generate: 6.00 x met") == 2
    assert "32 x 8, 16 tokens, responses end by chance (tokens/s) | 6,000 [6,000–6,000]" in table
    assert notes == ["ours: somehow; generate: somehow."]
    assert [do for do, _ in running[0].asked] == ["make", "prepare", *["generate"] * 8]
    assert [keys["ends"] for do, keys in running[0].asked if do == "generate"] == [
        *[False] * 4,
        *[True] * 4,
    ]


def test_large_models_are_compared_with_the_bandwidth() -> None:
    table, notes, _ = measured("--shape", "0.5B", "--bandwidth", "2")
    assert table.count("≥ 15 x generate: 6.00 x **missed**") == 1
    # 256 sequences at 16 tokens of 1e4 bytes and weights of 1e9 bytes, at 2e12 bytes/s.
    assert "491,854 tokens/s; ours is at 1.2%" in notes[1]


def test_prompts_repeat_and_differ() -> None:
    first = generation.prompts(5, 12)
    assert first == generation.prompts(5, 12) and len({tuple(p) for p in first}) == 5
    assert all(9 <= len(prompt) <= 12 for prompt in first)


def test_every_contestant_has_a_program() -> None:
    entries = generation.entries(vllm="/env/bin/python", threads=2)
    assert [entry.name for entry in entries] == ["ours", "generate", "continuous batching", "vllm"]
    for entry in entries:
        assert (harness.PROGRAMS / entry.program).is_file()
        assert entry.env["OMP_NUM_THREADS"] == "2"
    assert entries[2].options["prepare"] == {"continuous": True}
    with pytest.raises(ValueError, match="'ours', 'generate'"):
        harness.chosen(entries, ["mine"])
