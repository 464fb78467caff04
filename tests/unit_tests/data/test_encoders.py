"""What the encoders of a run have of its agents: tools in the template, and a format of calls."""

import pytest

pytest.importorskip("transformers")

from omegaconf import OmegaConf  # noqa: E402

from rlinf.agents.tools.parsers import TagParser, parser_registry  # noqa: E402
from rlinf.data.encoders import encoders_of_run  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402
from tests.unit_tests.data.settings import data_section  # noqa: E402

TEMPLATE = (
    "{{ tools[0].function.name if tools else 'none' }}"
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
)
CALLS = [{"role": "assistant", "calls": [("calculator", {"expression": "1+1"})]}]


def config(parser=None, **data):
    """Returns a config; of agents with a calculator if there is a parser."""
    cfg = OmegaConf.create({"runner": {"seed": 3}, "data": data_section(**data)})
    if parser is not None:
        loop = {"type": "tools", "tools": ["calculator"], "mcp_servers": {}, "parser": parser}
        cfg.agentloop = loop
    return cfg


def test_templates_are_told_of_the_tools_of_an_agent():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE

    def seen(parser):
        prompts, _ = encoders_of_run(config(parser, apply_chat_template=True), tokenizer)
        return prompts.encode("a")[0]

    assert seen(None).startswith("none[user]")
    assert seen("qwen").startswith("calculator[user]")
    assert seen("searchr1").startswith("none[user]")


def test_worked_solutions_are_in_the_format_of_the_run():
    tokenizer = character_tokenizer()
    _, solutions = encoders_of_run(config("searchr1"), tokenizer)
    (message,) = solutions.written(CALLS)
    assert message == {"role": "assistant", "content": "<calculator>1+1</calculator>"}
    _, solutions = encoders_of_run(config(), tokenizer)
    with pytest.raises(ValueError, match="calls tools.*set runner.task_type to agent"):
        solutions.written(CALLS)


def test_a_parser_is_made_when_there_is_something_to_write(monkeypatch):
    class Costly(TagParser):
        def __init__(self, tools):
            made.append(tools)
            super().__init__(tools)

    made = []
    monkeypatch.setattr(parser_registry, "lookup", lambda name: {"costly": Costly}[name])
    prompts, solutions = encoders_of_run(config("costly"), character_tokenizer())
    prompts.encode("1+1")
    solutions.encode("2", "1+1")
    assert not made
    solutions.encode(CALLS, "1+1")
    assert len(made) == 1
