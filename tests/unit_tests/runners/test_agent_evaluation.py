"""What an evaluation of agents says beside pass@1."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlinf.data.reasoning import Verdict
from rlinf.runners.agent_evaluation import asks_without_tools, sentences, without_tools


class Services:
    """Notes what is asked for; every fourth answer is right."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def validate(self, prompts, key, tools=True):
        self.asked.append((key, tools))
        return [
            Verdict(i, "facts", [float(i % 4 == 0)], [0.0], [5], 0, 0, "", "") for i in range(40)
        ]


def test_questions_are_asked_again_without_tools():
    services = Services()
    found = without_tools(services, prompts=None, key="validation 3 without tools")
    assert services.asked == [("validation 3 without tools", False)]
    assert set(found) == {f"eval/pass@1_no_tools{end}" for end in ("", "_low", "_high")}
    assert found["eval/pass@1_no_tools"] == 0.25
    assert found["eval/pass@1_no_tools_low"] < 0.25 < found["eval/pass@1_no_tools_high"]


def test_an_evaluation_is_told_with_its_tools():
    rates = {"eval/pass@1": 0.5, "eval/pass@1_low": 0.4, "eval/pass@1_high": 0.6}
    used = {"eval/turns": 2.25, "eval/tool_calls": 1.0, "eval/tool_errors": 0.125}
    found = rates | used | {"eval/prompts": 40.0}
    rate, tools = sentences(found)
    assert rate.startswith("evaluated pass@1 50.0% over 40 prompts")
    assert tools == ("in the mean, an episode had 2.25 turns, 1.00 tool calls and 0.12 tool errors")
    last = sentences(found | {"eval/pass@1_no_tools": 0.25})[-1]
    assert last == "the same with tools switched off: pass@1 25.0%"


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"eval_without_tools": True, "tools": ["calculator"]}, True),
        ({"eval_without_tools": False, "tools": ["calculator"]}, False),
        ({"eval_without_tools": True, "tools": []}, False),
        ({"eval_without_tools": True, "tools": [], "mcp_servers": {"shop": {}}}, True),
    ],
)
def test_only_those_who_have_tools_are_asked_without(section, expected):
    section = {"mcp_servers": {}} | section
    assert asks_without_tools({"agentloop": SimpleNamespace(**section)}) is expected
    assert asks_without_tools({"agentloop": None}) is False
    assert asks_without_tools({}) is False
