"""Worked solutions: their tokens are those of an agent that goes that way, and some are learnt."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from rlinf.agents.calls import EngineCall  # noqa: E402
from rlinf.agents.episode import Episode, Question  # noqa: E402
from rlinf.agents.loops import ToolLoop  # noqa: E402
from rlinf.agents.tools.solution_writer import SolutionWriter  # noqa: E402
from rlinf.agents.tools.toolbox import Toolbox  # noqa: E402
from rlinf.data.prompt_encoder import PromptEncoder  # noqa: E402
from rlinf.data.solution_encoder import SolutionEncoder  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402
from tests.unit_tests.data.settings import data_section  # noqa: E402

CALLS = [
    {"role": "assistant", "calls": [("calculator", {"expression": "1+1"})]},
    {"role": "tool", "answers": [("calculator", "2")]},
    {"role": "assistant", "content": "it is 2"},
]
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def encoders(template=None, parser=None):
    """Returns encoders of prompts and of solutions; with a chat template if one is given."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    prompts = PromptEncoder(tokenizer, data_section(apply_chat_template=template is not None))
    writer = None if parser is None else SolutionWriter(parser)
    return prompts, SolutionEncoder(tokenizer, prompts, writer)


def test_solutions_of_several_turns_learn_what_the_model_writes():
    turns = [("assistant", "<a>"), ("tool", "12"), ("assistant", "3")]
    messages = [{"role": role, "content": text} for role, text in turns]
    _, solutions = encoders()
    ids, learnt = solutions.encode(messages, "1+1")
    assert character_tokenizer().decode(ids) == "<a>123<eos>"
    assert learnt == [True] * 3 + [False] * 2 + [True] * 2
    assert solutions.encode("12", "1+1")[1] == [True] * 3
    assert solutions.written("12") == [{"role": "assistant", "content": "12"}]


@pytest.mark.parametrize(
    ("parser", "call", "told"),
    [
        (
            "qwen",
            '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>',
            "<eos>|\n<tool>2<eos>\n<assistant>",
        ),
        (
            "llama_json",
            '{"name": "calculator", "parameters": {"expression": "1+1"}}',
            "<eos>|\n<tool>2<eos>\n<assistant>",
        ),
        ("searchr1", "<calculator>1+1</calculator>", "|<information>2</information>"),
    ],
)
def test_solutions_of_a_chat_are_what_an_agent_reads_and_writes(parser, call, told):
    """The tokens of an episode that goes that way, and the mask of what the model wrote in it."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TURNS
    chat, solutions = encoders(TURNS, parser)
    prompt = chat.encode("1+1?")[1]
    ids, learnt = solutions.encode(CALLS, "1+1?")
    own = tokenizer.decode([i for i, m in zip(ids, learnt, strict=True) if m])
    end, read = told.split("|")
    assert own == f"{call}{end}it is 2<eos>"
    assert tokenizer.decode([i for i, m in zip(ids, learnt, strict=True) if not m]) == read

    class Engine:
        texts = [call + end, "it is 2<eos>"]

        async def __call__(self, prompt_ids, limit, turn, agent):
            # A call that is answered in the text ends a response without the end token.
            said = tokenizer.encode(self.texts[turn])
            return EngineCall(prompt_ids, said, [0.0] * len(said), [0] * len(said), "stop", turn)

    loop = ToolLoop(SimpleNamespace(parser=parser), tokenizer, Toolbox(["calculator"]))
    question = Question(tuple(prompt), "", chat.messages("1+1?"))
    episode = Episode(question, tokenizer, Engine(), loop.tools, max_turns=3, max_total_tokens=999)
    (sequence,) = asyncio.run(loop.run(episode)).sequences()
    assert (sequence.prompt_ids, sequence.response_ids) == (prompt, ids)
    assert sequence.loss_mask == learnt


def test_solutions_that_answer_in_the_text_and_those_without_tools():
    _, inline = encoders(parser="searchr1")
    ids, learnt = inline.encode(CALLS, "1+1?")
    assert character_tokenizer().decode(ids) == (
        "<calculator>1+1</calculator><information>2</information>it is 2<eos>"
    )
    assert learnt.count(False) == len("<information>2</information>")
    with pytest.raises(ValueError, match="calls tools.*set runner.task_type to agent"):
        encoders()[1].encode(CALLS, "1+1?")
    with pytest.raises(ValueError, match="of the roles tool, assistant: with a chat template"):
        encoders(TURNS)[1].encode([{"role": "tool", "content": "2"}, CALLS[2]], "1+1?")


def test_where_tools_answer_in_the_text_nobody_else_speaks_in_a_solution_of_a_chat():
    _, solutions = encoders(TURNS, "searchr1")
    asked = [*CALLS, {"role": "user", "content": "and 2+2?"}, CALLS[2]]
    for wrong in (asked, CALLS[1:], CALLS[:2]):
        with pytest.raises(ValueError, match="roles .*tool.*: where tools answer in the text"):
            solutions.encode(wrong, "1+1?")
    # Turns without tools are those of the template.
    ids, _ = solutions.encode([CALLS[2], *asked[3:]], "1+1?")
    said = "it is 2<eos>\n<user>and 2+2?<eos>\n<assistant>it is 2<eos>"
    assert character_tokenizer().decode(ids) == said


def test_a_message_may_end_a_text_without_a_template():
    _, solutions = encoders()
    first = {"role": "assistant", "content": "1", "ends": True}
    messages = [first, {"role": "user", "content": "2"}, {"role": "assistant", "content": "3"}]
    ids, learnt = solutions.encode(messages, "1+1")
    assert character_tokenizer().decode(ids) == "1<eos>23<eos>"
    assert learnt == [True, True, False, True, True]
    with pytest.raises(ValueError, match="cannot encode 'für'.*it knows"):
        solutions.encode("für", "1+1")
