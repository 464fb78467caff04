"""Which prompts a step asks for, before and after a run was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

from rlinf.data.prompts import PromptStream
from rlinf.data.reasoning import Prompt, Verdict
from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.utils.runs.folders import SAMPLES


class Numbers:
    """Prompts that are their numbers."""

    dataset = SimpleNamespace(close=lambda: None)

    def prompt(self, number: int) -> Prompt:
        return Prompt(number, [1], "", None, "", {})

    def prefetch(self, first: int, count: int) -> None:
        pass

    def fingerprint(self) -> dict[str, Any]:
        return {}


class Requests:
    """Keeps the numbers of prompts that were asked for, by step."""

    def __init__(self) -> None:
        self.asked: dict[int, list[int]] = {}
        self.shown: dict[int, list[int]] = {}

    def request(self, requests: list[Any]) -> None:
        for request in requests:
            self.asked.setdefault(request.key, []).append(request.prompt.index)
            if request.shown:
                self.shown.setdefault(request.key, []).append(request.prompt.index)


def make_runner(step: int = 0) -> ReasoningRunner:
    """A runner of which nothing is there but what asks for responses."""
    runner = object.__new__(ReasoningRunner)
    runner.cfg = OmegaConf.create({"algorithm": {"group_size": 2}})
    runner.prompts, runner.services = PromptStream(Numbers()), Requests()
    runner._batch, runner._requested, runner.max_steps, runner.global_step = 4, 0, 9, step
    runner._began_at, runner._asked, runner._samples_seen = {}, {}, 0
    runner._sampler = None
    return runner


def test_a_resumed_run_asks_for_the_same_prompts():
    """Also where steps were asked for ahead, and further prompts were drawn behind them."""
    whole = make_runner()
    whole._request_steps(2)
    whole._request(whole.prompts.take(3), 0)
    assert whole.services.asked == {0: [0, 1, 2, 3, 8, 9, 10], 1: [4, 5, 6, 7]}
    whole._began_at.pop(0)
    whole.global_step = 1
    resumed = make_runner(step=1)
    resumed.load_state(whole.state())
    for runner in (whole, resumed):
        runner._request_steps(3)
    assert resumed.services.asked == {1: [4, 5, 6, 7], 2: [11, 12, 13, 14]}
    assert whole.services.asked[2] == [11, 12, 13, 14]


def test_responses_of_steps_ahead_are_under_way_when_a_checkpoint_is_made():
    runner = make_runner()
    runner._request_steps(1)
    runner.global_step = 1
    assert runner.in_flight() == [], "on policy a checkpoint has everything"
    runner._request_steps(3)
    (said,) = runner.in_flight()
    assert said.startswith("the responses of 2 step(s) after step 1 ")


def verdict(index: int, shown: bool = True) -> Verdict:
    return Verdict(index, "", [0.0], [0.0], [1], 0, 0, f"p{index}", "r", shown=shown)


def written(folder: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in (folder / SAMPLES).read_text().splitlines()]


def test_of_what_is_trained_on_the_first_groups_are_shown(tmp_path: Path):
    runner = make_runner()
    runner._batch, runner.folder = 6, tmp_path
    runner._request_steps(2)
    assert runner.services.shown == {0: [0, 1, 2, 3], 1: [6, 7, 8, 9]}
    shown = runner.services.shown[0]
    runner._write_samples([verdict(index, index in shown) for index in (5, 2, 0, 4, 1, 3)])
    assert written(tmp_path) == ["p0", "p1", "p2", "p3"]


def test_any_group_may_be_shown_while_it_is_not_known_which_are_trained_on(tmp_path: Path):
    runner = make_runner()
    runner._batch, runner.folder = 6, tmp_path
    runner._sampler = SimpleNamespace(take=lambda: [verdict(index) for index in (1, 3, 5, 8, 9)])
    runner._request_steps(1)
    assert runner.services.shown == {0: [0, 1, 2, 3, 4, 5]}
    runner._write_samples([])
    assert written(tmp_path) == ["p1", "p3", "p5", "p8"]
