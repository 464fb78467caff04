"""Calls of worked solutions in the format of a parser, and parsers that cannot write."""

import pytest

from rlinf.agents.tools.parsers import ToolParser, parser_registry
from rlinf.agents.tools.solution_writer import SolutionWriter

CALLS = [("calculator", {"expression": "1+1"})]
ANSWERS = [("calculator", "2"), ("calculator", "3")]


def test_answers_are_a_message_each_unless_they_are_part_of_the_text():
    apart, inline = SolutionWriter("qwen"), SolutionWriter("searchr1")
    assert not apart.inline and inline.inline
    messages = [{"role": "tool", "name": "calculator", "content": text} for text in ("2", "3")]
    assert apart.answers(ANSWERS) == messages
    said = "<information>2</information><information>3</information>"
    assert inline.answers(ANSWERS) == [{"role": "tool", "content": said}]
    assert inline.calls(CALLS) == "<calculator>1+1</calculator>"


@pytest.mark.parametrize(("inline", "missing"), [(False, "messages"), (True, "answer")])
@pytest.mark.parametrize("base", [object, ToolParser])
def test_a_parser_that_cannot_write_is_named(monkeypatch, base, inline, missing):
    """When there is something to write, and not before."""

    class Reads(base):
        def __init__(self, tools):
            made.append(tools)

        def parse(self, text):
            return []

    made, Reads.inline = [], inline
    monkeypatch.setattr(parser_registry, "lookup", lambda name: {"reads": Reads}[name])
    writer = SolutionWriter("reads")
    assert writer.inline == inline and not made
    with pytest.raises(ValueError, match="agentloop.parser 'reads' has no method `write`"):
        writer.calls(CALLS)
    if base is ToolParser and not inline:
        return
    with pytest.raises(ValueError, match=f"agentloop.parser 'reads' has no method `{missing}`"):
        writer.answers(ANSWERS)
    assert len(made) == 1
