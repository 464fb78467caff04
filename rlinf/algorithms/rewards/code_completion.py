"""The reward of completions in an editor: does the code pass its tests with this line in it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlinf.algorithms.rewards import register_reward
from rlinf.algorithms.rewards.base import Isolation, Reward
from rlinf.algorithms.rewards.code import read_tests, same_value
from rlinf.utils.sandbox.confine import GUARANTEES
from rlinf.utils.sandbox.sandbox import Limits, Sandbox

_PROGRAM = """
def call_all(source, name, cases):
    space = {}
    exec(source, space)
    return [space[name](*case) for case in cases]
"""
"""Runs in the sandbox, once per completion, each time in a fresh process."""


class CodeCompletionReward(Reward):
    """1 if the completed code passes all tests, else 0; with `partial_credit` the share it passes.

    The code is `metadata["prefix"]` and the response behind it. It runs in a sandbox that is kept
    warm, in a process of its own for each response; expected values stay outside.
    """

    isolation: ClassVar[Isolation] = "process"

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        limits = Limits(seconds=cfg.test_timeout, memory_mb=cfg.memory_limit_mb)
        require = () if cfg.allow_weak_sandbox else GUARANTEES
        self._sandbox = Sandbox(_PROGRAM, limits, require=require)
        self.about = f"programs run with {self._sandbox.enforced}"

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> tuple[float, Mapping[str, float]]:
        """Run the tests.

        Args:
            response: What completes the code.
            answer: `{"inputs": [...], "outputs": [...], "fn_name": ...}`, arguments and values of
                a function of the code.
            prompt: Not used.
            metadata: Has the code before the response as `prefix`.

        Raises:
            ValueError: The answer has another form.
        """
        tests = list(read_tests(answer))[: self.cfg.max_tests]
        if any(test.call is None for test in tests):
            raise ValueError(
                f"tests are {str(answer)[:200]!r}; completions are judged by the values of a "
                "function: give inputs, outputs and fn_name, or use the reward code"
            )
        source = f"{metadata.get('prefix', '')}{response}"
        cases = [list(test.arguments) for test in tests]
        result = self._sandbox.run(
            call="call_all", arguments=[source, tests[0].call, cases], seconds=self.cfg.test_timeout
        )
        values = result.value if result.status == "ok" else None
        if not isinstance(values, list) or len(values) != len(tests):
            # What a program does with the process that runs it is its own affair.
            values = []
        pairs = zip(tests, values, strict=False)
        passed = sum(same_value(value, test.expected) for test, value in pairs)
        share = passed / len(tests)
        info = {"passed": share, "timeout": float(result.status == "timeout")}
        return (share if self.cfg.partial_credit else float(passed == len(tests))), info


register_reward("code_completion", CodeCompletionReward)
