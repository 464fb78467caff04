"""Many episodes of a lead and its workers over one engine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from rlinf.agents.loops import SingleTurnLoop
from rlinf.agents.team import TeamLoop
from rlinf.agents.tools.lookup import WORDS, maker, products, town
from rlinf.agents.tools.toolbox import Toolbox
from rlinf.data.datasets.wide_questions import WideQuestionDataset
from rlinf.data.reasoning import GroupRequest, Prompt
from rlinf.data.tokenizer import word_tokenizer
from rlinf.workers.rollout.agent_loop_worker import AgentLoopWorker
from rlinf.workers.rollout.multi_agent_loop_worker import MultiAgentLoopWorker
from tests.unit_tests.workers.rollout.test_agent_loop_worker import (
    Agents,
    Writer,
    check_exact,
    serve,
)

TAGS = [f"<{end}{tag}>" for tag in ("task", "lookup", "information", "answer") for end in ("", "/")]
TOKENIZER = word_tokenizer(["<unk>", "where", "=", "error:", *TAGS, *WORDS])
END = TOKENIZER.eos_token_id


def ids(text):
    return TOKENIZER.encode(text)


def data(**changes):
    keys = {
        "max_items": 5,
        "min_items": 2,
        "team": True,
        "careless": 0.0,
        "size": 50,
        "val_size": 50,
    }
    return SimpleNamespace(**keys | changes)


def tagged(text, tag):
    return [part.split(f"</{tag}>")[0] for part in text.split(f"<{tag}>")[1:]]


def expert(prompt, params):
    """Write what the worked solutions do."""
    text = TOKENIZER.decode(prompt)
    found = tagged(text, "information")
    if text.startswith("where"):
        if found:
            return [*ids(f"<answer>{' '.join(found)}</answer>"), END]
        words = [TOKENIZER.decode([token]) for token in prompt[1:-1]]
        pairs = zip(words[::2], words[1::2], strict=True)
        return [*ids("".join(f"<task>{one} {other}</task>" for one, other in pairs)), END]
    if len(found) == 2:
        return [*ids(f"<answer>{found[1]}</answer>"), END]
    return ids(f"<lookup>{found[0] if found else tagged(text, 'task')[0]}</lookup>")


class Team(Agents):
    """Lives in this process."""

    def __init__(self, engine):
        super().__init__(engine)
        vars(self.cfg.agentloop).update(
            max_workers=5,
            worker_prompt="<task>{task}</task>",
            worker_max_turns=None,
            worker_max_tokens=None,
        )
        self._tokenizer, self._tools = TOKENIZER, Toolbox(["lookup"])
        self._loop = TeamLoop(self.cfg.agentloop, TOKENIZER, self._tools)
        self.cfg.algorithm = SimpleNamespace(sampling_params=SimpleNamespace(stop=[]))
        self.cfg.rollout = SimpleNamespace(rollout_backend="hf")

    def _params(self, request):
        import dataclasses

        return dataclasses.replace(super()._params(request), max_new_tokens=24)


def questions(count, size=2):
    dataset = WideQuestionDataset(data(), "val", 0)
    for index in range(count):
        record = dataset[index]
        prompt = Prompt(index, ids(record.prompt), record.prompt, record.answer, record.task, {})
        yield GroupRequest(prompt, size, 0)


async def test_teams_answer_with_contexts_of_64_tokens_each_across_weight_updates():
    engine = Writer(expert)
    worker = Team(engine)

    async def update():
        for _ in range(5):
            for _ in range(10):
                await asyncio.sleep(0)
            await worker.sync_model_from_actor()

    groups = await serve(worker, *questions(8), between=update)
    check_exact(groups, engine)
    assert len({v for g in groups for s in g.samples for v in s.versions}) > 1
    for group in groups:
        for episode in group.episodes:
            assert tagged(episode.answer, "answer") == [group.prompt.answer[1]]
            assert episode.numbers["context_tokens"] <= 64
        items = (len(group.prompt.token_ids) - 2) // 2
        assert len(group.samples) == 2 * (1 + items)
        assert {agent for sample in group.samples for agent in sample.agents} == set(
            range(items + 1)
        )
    assert max(e.numbers["total_tokens"] for g in groups for e in g.episodes) > 64


async def test_agents_share_batches_and_a_run_can_be_repeated():
    runs = []
    for _ in range(2):
        engine = Writer(expert)
        await serve(Team(engine), *questions(6))
        runs.append(engine.batches)
    assert runs[0] == runs[1]
    # Of the longest question: tasks, two look-ups and the answer of workers, the lead's answer.
    longest = max((len(each.prompt.token_ids) - 2) // 2 for each in questions(6))
    assert len(runs[0]) <= (4 * longest + 1) + (4 + 4 + 4) + (longest + 3) + 2


async def test_a_loop_of_one_agent_is_refused(monkeypatch):
    async def nothing(self):
        self._loop = SingleTurnLoop(None, TOKENIZER, Toolbox([]))

    monkeypatch.setattr(AgentLoopWorker, "init_worker", nothing)
    worker = object.__new__(MultiAgentLoopWorker)
    worker.cfg = SimpleNamespace(agentloop=SimpleNamespace(type="single_turn"))
    with pytest.raises(ValueError, match="agentloop.type is single_turn, a loop of one agent"):
        await worker.init_worker()


def test_one_agent_has_no_room_for_what_a_team_finds_out():
    one, team = (WideQuestionDataset(data(team=team), "val", 0) for team in (False, True))
    for index in range(50):
        parts = [one[index].prompt, *(m["content"] for m in one[index].solution)]
        alone = sum(len(ids(part)) for part in parts) + 1
        lead = [team[index].prompt, *(m["content"] for m in team[index].solution)]
        together = sum(len(ids(part)) for part in lead) + 2
        assert one[index].prompt == team[index].prompt and one[index].answer == team[index].answer
        assert together <= 64
        items = one[index].metadata["items"]
        assert alone <= 64 and (alone + 15 > 64) == (items >= 3)
        assert (
            f"<answer>{one[index].answer[0]}</answer>" == one[index].solution[-1]["content"]
        ) == (items <= 3)


def test_training_and_validation_ask_for_other_products():
    for split, held_out in (("train", False), ("val", True)):
        dataset = WideQuestionDataset(data(), split, 3)
        for index in range(30):
            words = dataset[index].prompt.split()[1:-1]
            items = [" ".join(pair) for pair in zip(words[::2], words[1::2], strict=True)]
            assert set(items) <= set(products(held_out))
            assert dataset[index].answer[0] == " ".join(town(maker(item)) for item in items)
    assert dataset.fingerprint() != WideQuestionDataset(data(), "val", 4).fingerprint()


def test_fewest_and_most_items_have_to_fit():
    with pytest.raises(ValueError, match="data.min_items is 6, more than data.max_items: 5"):
        WideQuestionDataset(data(min_items=6), "train", 0)
