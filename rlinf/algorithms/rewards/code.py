"""The reward of programs: how many tests does the program in the response pass?"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rlinf.algorithms.rewards import register_reward
from rlinf.algorithms.rewards.base import Isolation, Reward
from rlinf.utils.sandbox.confine import GUARANTEES
from rlinf.utils.sandbox.judge import Judge
from rlinf.utils.sandbox.sandbox import Limits, RunResult, Sandbox

_BLOCK = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Test:
    """One test of a program.

    Attributes:
        stdin: what the program reads.
        call: function to call; None for tests of what the program prints.
        arguments: of that call.
        expected: what it must print, or return.
        check: assertions about the program, instead.

    The program gets `stdin` and `arguments`; the rest never reaches its process.
    """

    stdin: str = ""
    call: str | None = None
    arguments: Sequence[Any] = ()
    expected: Any = None
    check: str | None = None

    def passed(self, result: RunResult) -> bool:
        """Return whether a run is as it must be."""
        if result.status != "ok":
            return False
        if self.check is not None:
            return result.value is True
        if self.call is not None:
            return same_value(result.value, self.expected)
        return same_text(result.stdout, str(self.expected))


class CodeReward(Reward):
    """1 if the program passes all tests, else 0; with `partial_credit` the share it passes.

    The program is the last fenced block of the response. It runs in a sandbox, see
    `rlinf.utils.sandbox`; right answers and assertions stay outside.
    """

    isolation: ClassVar[Isolation] = "process"

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._limits = Limits(seconds=cfg.test_timeout, memory_mb=cfg.memory_limit_mb)
        self._require = () if cfg.allow_weak_sandbox else GUARANTEES
        with Sandbox("", self._limits, require=self._require) as sandbox:
            self.about = f"programs run with {sandbox.enforced}"
        self._judge = Judge(self._limits, require=self._require)

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> tuple[float, Mapping[str, float]]:
        """Run the tests.

        Args:
            response: Text with a fenced block.
            answer: `{"inputs": [...], "outputs": [...]}` of standard input and output, with
                `"fn_name"` for arguments and value of a function; or assertions, as a text, a list
                of texts, or `{"tests": ...}`. All of them may be JSON.
            prompt: Not used.
            metadata: Not used.

        Raises:
            ValueError: The answer has another form, or an assertion cannot be judged.
        """
        tests = list(read_tests(answer))[: self.cfg.max_tests]
        code = extract_program(response)
        info = {"answered": float(code is not None), "timeout": 0.0, "memory": 0.0, "output": 0.0}
        if code is None:
            return 0.0, info
        # The pool ends what takes longer than the timeout; the tests leave it some room.
        deadline = time.monotonic() + 0.8 * self.cfg.timeout
        passed = 0
        with Sandbox(code, self._limits, require=self._require) as sandbox:
            for test in tests:
                left = deadline - time.monotonic()
                if left <= 0:
                    info["timeout"] = 1.0
                    break
                result = self._run(sandbox, test, left)
                if result.status in info:
                    info[result.status] = 1.0
                if test.passed(result):
                    passed += 1
                elif not self.cfg.partial_credit:
                    break
        info["passed"] = passed / len(tests)
        score = info["passed"] if self.cfg.partial_credit else float(passed == len(tests))
        return score, info

    def _run(self, sandbox: Sandbox, test: Test, seconds: float) -> RunResult:
        if test.check is not None:
            return self._judge.run(sandbox, test.check, seconds)
        return sandbox.run(test.stdin, call=test.call, arguments=test.arguments, seconds=seconds)


def extract_program(response: str) -> str | None:
    """Return the last fenced block of Python; None if there is none."""
    blocks = [code for language, code in _BLOCK.findall(response) if language in _PYTHON]
    return blocks[-1] if blocks else None


_PYTHON = ("", "python", "python3", "py", "Python")


def read_tests(answer: Any) -> Iterator[Test]:
    """Yield the tests of a record, in any of the forms that `CodeReward.score` names.

    Raises:
        ValueError: It has another form, or no test.
    """
    plain = _from_json(answer)
    if isinstance(plain, Mapping) and "inputs" in plain and "outputs" in plain:
        inputs, outputs = plain["inputs"], plain["outputs"]
        if not inputs or len(inputs) != len(outputs):
            raise ValueError(f"tests have {len(inputs)} inputs and {len(outputs)} outputs")
        name = plain.get("fn_name")
        for given, expected in zip(inputs, outputs, strict=True):
            if name is None:
                yield Test(stdin=_text(given), expected=_text(expected))
            else:
                yield Test(call=name, arguments=given, expected=expected)
        return
    checks = plain.get("tests") if isinstance(plain, Mapping) else plain
    checks = [checks] if isinstance(checks, str) else checks
    if not isinstance(checks, list) or not checks or not all(map(_is_code, checks)):
        raise ValueError(
            f"tests are {str(answer)[:200]!r}; they must be a mapping with inputs and outputs, or "
            "assertions as a text or a list of texts"
        )
    for check in checks:
        yield Test(check=check)


def same_text(found: str, expected: str) -> bool:
    """Return whether outputs are equal, line by line; numbers may be written in another way."""
    lines, wanted = found.strip().splitlines(), expected.strip().splitlines()
    if len(lines) != len(wanted):
        return False
    return all(_same_line(one, other) for one, other in zip(lines, wanted, strict=True))


def same_value(found: Any, expected: Any) -> bool:
    """Return whether values are equal as JSON: tuples are lists, and floats may differ a little."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return found == expected or math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same_value, found, expected))
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        given, wanted = _with_text_keys(found), _with_text_keys(expected)
        return (
            len(given) == len(found) == len(wanted)
            and given.keys() == wanted.keys()
            and all(same_value(given[key], wanted[key]) for key in given)
        )
    return type(found) is type(expected) and found == expected


def _with_text_keys(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a mapping with keys as JSON has them."""
    return {
        key if isinstance(key, str) else json.dumps(key, default=str): value
        for key, value in mapping.items()
    }


def _same_line(found: str, expected: str) -> bool:
    if found.rstrip() == expected.rstrip():
        return True
    words, wanted = found.split(), expected.split()
    return len(words) == len(wanted) and all(map(_same_word, words, wanted))


def _same_word(found: str, expected: str) -> bool:
    if found == expected:
        return True
    if "." not in expected and "e" not in expected.lower():
        # Whole numbers are exact: 007 is not 7.
        return False
    try:
        return math.isclose(float(found), float(expected), rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return False


def _from_json(answer: Any) -> Any:
    if isinstance(answer, str) and answer.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(answer)
        except ValueError:
            return answer
    return answer


def _is_code(check: Any) -> bool:
    return isinstance(check, str) and bool(check.strip())


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


register_reward("code", CodeReward)
