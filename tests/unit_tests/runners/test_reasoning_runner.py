"""Which prompts a step asks for, before and after a run was interrupted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

from rlinf.data.prompts import PromptStream
from rlinf.data.reasoning import Prompt
from rlinf.runners.reasoning_runner import ReasoningRunner


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

    def request(self, requests: list[Any]) -> None:
        for request in requests:
            self.asked.setdefault(request.key, []).append(request.prompt.index)


def make_runner(step: int = 0) -> ReasoningRunner:
    """A runner of which nothing is there but what asks for responses."""
    runner = object.__new__(ReasoningRunner)
    runner.cfg = OmegaConf.create({"algorithm": {"group_size": 2}})
    runner.prompts, runner.services = PromptStream(Numbers()), Requests()
    runner._batch, runner._requested, runner.max_steps, runner.global_step = 4, 0, 9, step
    runner._began_at, runner._asked, runner._samples_seen = {}, {}, 0
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
