"""A lead and its workers: tasks, answers, limits and contexts of their own."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from rlinf.agents.calls import EngineCall  # noqa: E402
from rlinf.agents.episode import Episode, Question, play  # noqa: E402
from rlinf.agents.loops import make_loop, schemas_for_template  # noqa: E402
from rlinf.agents.team import TeamLoop  # noqa: E402
from rlinf.agents.tools.lookup import maker, products, town  # noqa: E402
from rlinf.agents.tools.tool import Tool  # noqa: E402
from rlinf.agents.tools.toolbox import Toolbox, ToolFailed  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402
from tests.unit_tests.agents.test_loops import CHAT  # noqa: E402

TOKENIZER = character_tokenizer()
ONE, TWO = "red lamp", "blue chair"


def settings(**changes):
    values = {
        "type": "team",
        "tools": ["lookup"],
        "parser": "searchr1",
        "tool_timeout": 5.0,
        "tool_concurrency": 4,
        "max_tool_characters": 100,
        "max_workers": 3,
        "worker_prompt": "<task>{task}</task>",
        "worker_max_turns": None,
        "worker_max_tokens": None,
    }
    values |= {"tool_settings": {}, "mcp_servers": {}}
    return SimpleNamespace(**values | changes)


class Model:
    """Writes what a function says of the text that an agent reads; answers come in any order."""

    def __init__(self, says, tokenizer=TOKENIZER):
        self.says, self.tokenizer = says, tokenizer
        self.log, self.running, self.most = [], 0, 0

    async def __call__(self, prompt_ids, limit, turn, agent, stop=None):
        self.running += 1
        self.most = max(self.most, self.running)
        text = self.says(self.tokenizer.decode(list(prompt_ids)), agent)
        for _ in range(1 + 5 * (3 - agent)):
            await asyncio.sleep(0)
        self.running -= 1
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        ids += [self.tokenizer.eos_token_id]
        cut = len(ids) > limit
        ids = ids[:limit]
        reason = "length" if cut else "stop"
        self.log.append((agent, turn, stop))
        call = EngineCall(prompt_ids, ids, [0.0] * len(ids), [0] * len(ids), reason, turn, agent)
        return call


def run(says, cfg=None, tokenizer=TOKENIZER, prompt="where?", messages=None, box=None, **limits):
    loop, tools = make_loop(cfg or settings(), tokenizer)
    if box is not None:
        loop, tools = TeamLoop(cfg or settings(), tokenizer, box), box
    question = Question(tuple(tokenizer.encode(prompt, add_special_tokens=False)), prompt, messages)
    model = Model(says, tokenizer)
    limits = {"max_turns": 4, "max_total_tokens": 300} | limits
    episode = Episode(question, tokenizer, model, tools, **limits)
    return asyncio.run(play(loop.run, episode)), model


def team(text, agent):
    """A lead that asks about two products, and workers that look them up."""
    if agent == 0:
        if "<information>" not in text:
            return f"<task>{ONE}</task><task>{TWO}</task>"
        found = [part.split("<")[0] for part in text.split("<information>")[1:]]
        return f"<answer>{' '.join(found)}</answer>"
    found = [part.split("<")[0] for part in text.split("<information>")[1:]]
    if len(found) == 2:
        return f"<answer>{found[1]}</answer>"
    item = text.split("<task>")[1].split("<")[0]
    return f"<lookup>{found[0] if found else item}</lookup>"


def test_workers_find_out_side_by_side_what_the_lead_puts_together():
    made, model = run(team)
    assert made.ending == "done"
    assert made.answer == f"<answer>{town(maker(ONE))} {town(maker(TWO))}</answer>"
    assert model.most == 2
    assert made.numbers["workers"] == 2.0 and made.numbers["tool_calls"] == 4.0
    assert made.numbers["turns"] == 2 + 3 + 3 and made.numbers["worker_errors"] == 0.0


def test_each_agent_is_a_sequence_and_total_tokens_are_those_of_all():
    made, _ = run(team)
    sequences = made.sequences()
    assert [set(sequence.agents) for sequence in sequences] == [{0}, {2}, {1}]
    lead = TOKENIZER.decode(sequences[0].token_ids)
    # The lead reads what was found, and not how.
    assert "<lookup>" not in lead and maker(ONE) not in lead
    assert TOKENIZER.decode(sequences[2].token_ids).startswith(f"<task>{ONE}</task><lookup>")
    total = sum(len(sequence.token_ids) for sequence in sequences)
    assert made.numbers["total_tokens"] == total
    assert made.numbers["context_tokens"] == max(len(s.token_ids) for s in sequences) < total


def test_readers_see_who_said_what_to_whom():
    made, _ = run(team)
    tasks = [(turn.agent, turn.text) for turn in made.turns if turn.role == "user"]
    assert tasks == [(1, f"<task>{ONE}</task>"), (2, f"<task>{TWO}</task>")]
    answers = [turn.text for turn in made.turns if turn.role == "tool" and turn.agent == 0]
    both = "".join(f"<information>{town(maker(item))}</information>" for item in (ONE, TWO))
    assert answers == [both]


def test_the_lead_writes_all_tasks_before_it_waits():
    _, model = run(team)
    stops = {agent: stop for agent, _, stop in model.log}
    assert stops[0] == () and stops[1] is None
    loop, _ = make_loop(settings(), TOKENIZER)
    assert loop.stops == ("</lookup>",)


def test_a_worker_at_its_limit_costs_its_answer_and_not_the_episode():
    def endless(text, agent):
        if agent == 0:
            return "<answer>nothing</answer>" if "error" in text else f"<task>{ONE}</task>"
        return f"<lookup>{ONE}</lookup>"

    made, model = run(endless, settings(worker_max_turns=2))
    assert made.ending == "done" and made.numbers["worker_errors"] == 1.0
    assert made.numbers["tool_errors"] == 0.0, "what a worker does not find is not the lead's"
    assert sum(agent == 1 for agent, _, _ in model.log) == 2
    said = [turn for turn in made.turns if turn.role == "tool" and turn.agent == 0]
    assert "no answer: the worker ended at max_turns" in said[0].text and said[0].error
    # Room for the prompt and half of a call.
    made, _ = run(endless, settings(worker_max_tokens=30))
    assert "ended at max_total_tokens" in made.turns[-2].text
    worker = next(s for s in made.sequences() if set(s.agents) == {1})
    assert len(worker.token_ids) == 30


def test_tasks_that_cannot_be_done_are_answered():
    def says(text, agent):
        if agent == 0 and "<information>" not in text:
            return f"<task> </task><task>{ONE}</task><task>{TWO}</task>"
        return team(text, agent)

    made, _ = run(says, settings(max_workers=1))
    (answers,) = [turn.text for turn in made.turns if turn.role == "tool" and turn.agent == 0]
    assert "error: the task is empty" in answers
    assert "error: there are no more than 1 workers" in answers
    assert made.numbers["tool_errors"] == 2.0
    # Two of its own, and those of the worker.
    assert made.numbers["tool_calls"] == 2.0 + 2.0
    assert f"<information>{town(maker(ONE))}</information>" in answers


def test_a_tool_that_fails_fails_the_episode():
    async def lookup(name: str) -> str:
        """Fail."""
        raise ToolFailed("the tool 'lookup' did not answer")

    made, _ = run(team, box=Toolbox([Tool(lookup)]))
    assert made.ending == "failed" and "did not answer" in made.failure


def test_chat_templates_tell_the_lead_of_tasks_and_workers_of_tools():
    words = character_tokenizer()
    words.chat_template = (
        "{% if tools %}[{% for t in tools %}{{ t.function.name }}{% endfor %}]{% endif %}" + CHAT
    )
    cfg = settings(parser="qwen", worker_prompt="find {task}")
    (schema,) = schemas_for_template(cfg)
    assert schema["function"]["name"] == "task"
    messages = [{"role": "user", "content": "where?"}]
    prompt = words.apply_chat_template(
        messages, tools=[schema], tokenize=False, add_generation_prompt=True
    )
    seen = []

    def says(text, agent):
        seen.append((agent, text))
        if agent == 0 and "<|tool|>" not in text:
            return '<tool_call>{"name": "task", "arguments": {"question": "red lamp"}}</tool_call>'
        if agent == 1 and "<|tool|>" not in text:
            return '<tool_call>{"name": "lookup", "arguments": {"name": "red lamp"}}</tool_call>'
        return f"it is {text.rpartition('<|tool|>')[2].partition('<eos>')[0]}"

    made, _ = run(says, cfg, words, prompt, messages)
    assert made.answer == f"it is it is {maker(ONE)}"
    first = next(text for agent, text in seen if agent == 1)
    assert first == "[lookup]<|user|>find red lamp<eos>\n<|assistant|>"
    assert len(made.sequences()) == 2


def test_facts_of_validation_are_not_those_of_training():
    known, secret = ({(i, maker(i), town(maker(i))) for i in products(out)} for out in (0, 1))
    assert len(known) > 150 and len(secret) > 40
    assert not {maker for _, maker, _ in known} & {maker for _, maker, _ in secret}
