"""Environments of the package verifiers: with the package where it is, else with a small double."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("transformers")

from rlinf.agents.templates import TemplateRewrites  # noqa: E402
from rlinf.agents.tools.parsers import parser_registry  # noqa: E402
from rlinf.agents.verifiers_loop import _plain, load_verifiers  # noqa: E402
from tests.unit_tests.agents.verifiers_double import (  # noqa: E402
    QUESTION,
    REAL,
    TOKENIZER,
    Engine,
    ask,
    environment,
    run,
)


def test_the_environment_runs_the_episode_and_scores_it(package):
    engine = Engine("5", "8", "7")
    made = run(engine)
    assert made.score == 1.0 and made.ending == "done"
    (sequence,) = made.sequences()
    own = TOKENIZER.decode(
        [i for i, m in zip(sequence.response_ids, sequence.loss_mask, strict=True) if m]
    )
    assert own == "5<eos>8<eos>7<eos>"
    assert engine.prompts[1].endswith("5<eos>\n<user>higher<eos>\n<assistant>")
    assert engine.prompts[2].startswith(engine.prompts[1])
    assert [turn.text for turn in made.turns] == ["5", "higher", "8", "lower", "7"]


def test_its_own_limits_and_ours(package):
    assert run(Engine("1", "2", "3")).score == 0.0
    over = run(Engine("1", "2"), max_turns=1)
    assert over.ending == "max_turns" and over.score == 0.0


def test_arguments_are_those_of_the_environment(package):
    assert run(Engine("4"), secret=4).score == 1.0


def test_a_package_without_environments_of_this_kind_is_refused(monkeypatch):
    other = ModuleType("verifiers")
    other.__version__ = "0.4.0"
    monkeypatch.setitem(sys.modules, "verifiers", other)
    with pytest.raises(ValueError, match=r"verifiers 0\.4\.0 has no `load_environment`.*<0\.2"):
        load_verifiers("numbers", {})
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(ValueError, match=r"needs the package verifiers: pip install"):
        load_verifiers("numbers", {})


# -- errors of our own -----------------------------------------------------------------------------


@pytest.mark.parametrize("swallows", [False, True])
def test_an_error_of_our_own_ends_the_run(package, monkeypatch, swallows):
    """Whatever the environment makes of it: an episode that failed would hide it."""

    async def rollout(row, client, model, sampling_args):
        try:
            await client.get_response(list(row["prompt"]), model, {}, tools=[ADD], state={})
        except Exception as error:
            if not swallows:
                raise
            return {"error": error}

    environment(package, monkeypatch, rollout)

    def broken(self, text):
        raise ZeroDivisionError("a bug in the parser")

    monkeypatch.setattr(parser_registry.lookup("qwen"), "parse", broken)
    with pytest.raises(ZeroDivisionError, match="a bug in the parser"):
        run(Engine("7"))


def test_an_engine_that_dies_is_no_failure_of_the_environment(package, monkeypatch):
    class Dead(Engine):
        async def __call__(self, *arguments):
            raise ConnectionError("the engine is gone")

    with pytest.raises(ConnectionError, match="the engine is gone"):
        run(Dead())


def test_an_environment_that_asks_in_no_known_form_costs_its_episode(package, monkeypatch):
    async def rollout(row, client, model, sampling_args):
        await client.get_response([{"content": "who speaks?"}], model, {}, state={})

    environment(package, monkeypatch, rollout)
    made = run(Engine("7"))
    assert made.ending == "failed" and "no known form: KeyError: 'role'" in made.failure


STRICT = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('no role ' + m.role) }}{% endif %}<{{ m.role }}>{{ m.content }}<eos>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
REWRITES = "{{ messages | length }}" + STRICT
NEW = {"role": "developer", "content": "be brief"}


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "ValueError: "),
        ([NEW, *QUESTION], "TemplateError: no role developer"),
        (None, "TemplateError: no role developer"),
    ],
)
def test_messages_that_the_template_refuses_cost_their_episode(package, monkeypatch, messages, why):
    """At the beginning of a conversation, and where it goes on."""

    async def rollout(row, client, model, sampling_args):
        if messages is not None:
            await client.get_response(messages, model, {}, state={})
        said = await ask(client)
        await ask(client, said, NEW)

    environment(package, monkeypatch, rollout)
    monkeypatch.setattr(TOKENIZER, "chat_template", STRICT)
    made = run(Engine("7", "7"))
    assert made.ending == "failed" and made.score == 0.0
    assert "asked with messages that the chat template refuses" in made.failure
    assert why in made.failure


def test_a_template_that_rewrites_is_an_error_of_our_own(package, monkeypatch):
    async def rollout(row, client, model, sampling_args):
        said = await ask(client)
        await ask(client, said, *QUESTION)

    environment(package, monkeypatch, rollout)
    monkeypatch.setattr(TOKENIZER, "chat_template", REWRITES)
    with pytest.raises(TemplateRewrites, match="changes what came before"):
        run(Engine("7", "7"))


# -- tools -----------------------------------------------------------------------------------------

ADD = SimpleNamespace(
    name="add",
    description="adds",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}}},
)
BAD, GOOD = (
    "<tool_call>{no</tool_call>",
    '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>',
)


def test_the_model_reads_what_is_wrong_with_a_call(package, monkeypatch):
    """Alone it is answered at once; beside a call that can be read, together with its answer."""
    seen = []

    async def rollout(row, client, model, sampling_args):
        messages = list(row["prompt"])
        while True:
            found = await client.get_response(messages, model, {}, tools=[ADD], state={})
            said = found.message
            seen.append((said.content, [call.name for call in said.tool_calls or ()]))
            if not said.tool_calls:
                return {"error": None}
            told = [{"role": "tool", "tool_call_id": c.id, "content": "2"} for c in said.tool_calls]
            own = {"role": "assistant", "content": said.content, "tool_calls": said.tool_calls}
            messages = [*messages, own, *told]

    environment(package, monkeypatch, rollout)
    engine = Engine(BAD, GOOD + BAD, "2")
    made = run(engine)
    assert seen == [(GOOD + BAD, ["add"]), ("2", [])], "the environment sees what can be read"
    error = "<tool>error: the tool call is no JSON"
    assert engine.prompts[1].startswith(engine.prompts[0] + BAD + f"<eos>\n{error}")
    further = engine.prompts[2].removeprefix(engine.prompts[1] + GOOD + BAD + "<eos>\n")
    assert further.startswith(error) and further.endswith("<tool>2<eos>\n<assistant>")
    (sequence,) = made.sequences()
    own = [i for i, m in zip(sequence.response_ids, sequence.loss_mask, strict=True) if m]
    assert TOKENIZER.decode(own) == f"{BAD}<eos>{GOOD}{BAD}<eos>2<eos>"
    assert [(t.role, t.error) for t in made.turns] == [
        ("assistant", False),
        ("tool", True),
        ("assistant", False),
        ("tool", True),
        ("tool", False),
        ("assistant", False),
    ]
    assert made.numbers["tool_errors"] == 2 and made.numbers["tool_calls"] == 3


def test_a_model_that_only_makes_mistakes_ends_at_its_turns(package, monkeypatch):
    async def rollout(row, client, model, sampling_args):
        await client.get_response(list(row["prompt"]), model, {}, tools=[ADD], state={})
        return {"error": None}

    environment(package, monkeypatch, rollout)
    over = run(Engine(*[BAD] * 9), max_turns=3)
    assert over.ending == "max_turns" and len(over.calls) == 3


def test_messages_keep_their_calls():
    """In the form that templates read; but not twice, where the policy's text has them already."""
    flat = {"id": "c1", "name": "add", "arguments": '{"a": 1}'}
    nested = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    for call in (flat, nested):
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert _plain(message) == {"role": "assistant", "content": "", "tool_calls": [nested]}
    told = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]}
    assert _plain(told) == {"role": "tool", "tool_call_id": "c1", "content": "2"}
    own = {"role": "assistant", "content": GOOD, "tool_calls": [flat]}
    assert _plain(own, {GOOD}) == {"role": "assistant", "content": GOOD}


@pytest.mark.skipif(not REAL, reason="needs the package verifiers")
def test_tools_of_the_package(package, monkeypatch):
    import verifiers as vf
    from datasets import Dataset

    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: one.
            b: the other.
        """
        return a + b

    async def right(completion, **kwargs):
        return float(completion[-1].content == "5")

    rows = Dataset.from_list([{"prompt": QUESTION, "answer": "5"}])
    made = vf.ToolEnv(tools=[add], dataset=rows, rubric=vf.Rubric(funcs=[right]), max_turns=5)
    monkeypatch.setattr(package, "load_environment", lambda name: made)
    call = '<tool_call>{"name":"add","arguments":{"a":2,"b":3}}</tool_call>'
    engine = Engine(BAD, call, "5")
    found = run(engine)
    assert found.score == 1.0 and found.ending == "done"
    assert "error: the tool call is no JSON" in engine.prompts[1]
    assert engine.prompts[2].endswith("<tool>5<eos>\n<assistant>")
