"""Environments of the package verifiers: with the package where it is, else with a small double."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("transformers")

from rlinf.agents.calls import EngineCall  # noqa: E402
from rlinf.agents.episode import Episode, Question, play  # noqa: E402
from rlinf.agents.tools.toolbox import Toolbox  # noqa: E402
from rlinf.agents.verifiers_loop import VerifiersLoop, _plain, load_verifiers  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402

TOKENIZER = character_tokenizer()
TOKENIZER.chat_template = (
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}<eos>\n{% endfor -%}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
QUESTION = [{"role": "user", "content": "which number?"}]
REAL = importlib.util.find_spec("verifiers") is not None


class Double(ModuleType):
    """As much of verifiers 0.1 as the adapter uses, and an environment: higher or lower."""

    def __init__(self):
        super().__init__("verifiers")
        self.types, self.clients = ModuleType("verifiers.types"), ModuleType("verifiers.clients")

        class Client:
            def __init__(self, client):
                self.client = client

        self.clients.Client = Client
        for name in ("ToolCall", "ResponseMessage", "Response"):
            setattr(self.types, name, SimpleNamespace)

    def load_environment(self, name, secret=7):
        async def rollout(row, client, model, sampling_args):
            state = {"messages": list(row["prompt"]), "error": None, "turns": 0}
            while True:
                found = await client.get_response(state["messages"], model, {}, state=state)
                said = found.message.content
                state["turns"] += 1
                state["messages"] = [*state["messages"], {"role": "assistant", "content": said}]
                state["right"] = said == str(secret)
                if state["right"] or state["turns"] == 3:
                    return state
                word = "higher" if int(said) < secret else "lower"
                state["messages"] = [*state["messages"], {"role": "user", "content": word}]

        async def score_rollout(state):
            state["reward"] = float(state["right"])

        return SimpleNamespace(rollout=rollout, rubric=SimpleNamespace(score_rollout=score_rollout))


@pytest.fixture
def package(monkeypatch):
    """The package, or its double."""
    if REAL:
        import verifiers

        monkeypatch.setattr(verifiers, "load_environment", real_environment)
        return verifiers
    double = Double()
    for module in (double, double.types, double.clients):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return double


def real_environment(name, secret=7):
    """The same environment, made of the package's own parts."""
    import verifiers as vf
    from datasets import Dataset

    class HigherOrLower(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            word = "higher" if int(messages[-1].content) < secret else "lower"
            return [{"role": "user", "content": word}]

        @vf.stop
        async def found(self, state, **kwargs):
            steps = state["trajectory"]
            return bool(steps) and steps[-1]["completion"][-1].content == str(secret)

    async def right(completion, **kwargs):
        return float(completion[-1].content == str(secret))

    rows = Dataset.from_list([{"prompt": QUESTION, "answer": str(secret)}])
    return HigherOrLower(dataset=rows, rubric=vf.Rubric(funcs=[right]), max_turns=3)


class Engine:
    def __init__(self, *texts):
        self.texts, self.prompts = list(texts), []

    async def __call__(self, prompt_ids, limit, turn, agent):
        self.prompts.append(TOKENIZER.decode(list(prompt_ids)))
        ids = [*TOKENIZER.encode(self.texts.pop(0)), TOKENIZER.eos_token_id]
        return EngineCall(prompt_ids, ids, [-0.1] * len(ids), [0] * len(ids), "stop", turn, agent)


def make_loop(seconds=60.0, **arguments):
    cfg = SimpleNamespace(
        environment="numbers", environment_args=arguments, parser="qwen", tool_timeout=seconds
    )
    return VerifiersLoop(cfg, TOKENIZER, Toolbox([]))


def make_episode(engine, max_turns=5):
    text = TOKENIZER.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    question = Question(
        tuple(TOKENIZER.encode(text)), text, QUESTION, {"verifiers": {"answer": "7"}}
    )
    return Episode(question, TOKENIZER, engine, max_turns=max_turns, max_total_tokens=2000)


async def played(loop, engine, **further):
    return await play(loop.run, make_episode(engine, **further))


def run(engine, max_turns=5, **arguments):
    return asyncio.run(played(make_loop(**arguments), engine, max_turns=max_turns))


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


# -- environments that hang ------------------------------------------------------------------------


def environment(package, monkeypatch, rollout, score=None):
    """Let the package load an environment of two functions."""

    async def right(state):
        state["reward"] = 1.0

    made = SimpleNamespace(
        rollout=rollout, rubric=SimpleNamespace(score_rollout=right if score is None else score)
    )
    monkeypatch.setattr(package, "load_environment", lambda name, **arguments: made, raising=False)


async def ask(client, *further):
    found = await client.get_response([*QUESTION, *further], "policy", {}, state={})
    return {"role": "assistant", "content": found.message.content}


async def never(*arguments):
    await asyncio.Event().wait()


def test_an_environment_that_hangs_costs_its_episode(package, monkeypatch):
    """Also in the middle of an episode, and in the rubric; others are played to their end."""
    states = []

    async def rollout(row, client, model, sampling_args):
        said = await ask(client)
        if said["content"] == "hang":
            await never()
        states.append(said["content"])
        return {"error": None, "said": said["content"]}

    async def score(state):
        if state["said"] == "no score":
            await never()
        state["reward"] = 0.5

    environment(package, monkeypatch, rollout, score)

    async def all_of_them():
        loop = make_loop(seconds=1.0)
        engines = [Engine(text) for text in ("hang", "no score", "fine")]
        return await asyncio.gather(*(played(loop, engine) for engine in engines))

    hung, unscored, fine = asyncio.run(all_of_them())
    for made in (hung, unscored):
        assert made.ending == "failed" and "did not answer within 1 s" in made.failure
    assert fine.ending == "done" and fine.score == 0.5
    assert sorted(states) == ["fine", "no score"], "what hung was cancelled"


def test_the_time_of_the_model_is_not_that_of_the_environment(package, monkeypatch):
    async def rollout(row, client, model, sampling_args):
        await ask(client)
        return {"error": None}

    environment(package, monkeypatch, rollout)

    class Slow(Engine):
        async def __call__(self, *arguments):
            # Longer than an environment may take.
            await asyncio.sleep(1.5)
            return await super().__call__(*arguments)

    assert asyncio.run(played(make_loop(seconds=1.0), Slow("7"))).score == 1.0


def test_an_environment_that_asks_in_time_is_not_late_for_a_busy_engine(package, monkeypatch):
    begun = threading.Event()

    async def rollout(row, client, model, sampling_args):
        begun.set()
        await ask(client)
        return {"error": None}

    environment(package, monkeypatch, rollout)

    async def busy():
        playing = asyncio.ensure_future(played(make_loop(seconds=1.0), Engine("7")))
        while not begun.is_set():
            await asyncio.sleep(0)
        # The loop of the engine does not come round for longer than an environment may take.
        time.sleep(1.5)
        return await playing

    assert asyncio.run(busy()).score == 1.0


def test_an_environment_that_blocks_its_thread_holds_up_no_engine(package, monkeypatch):
    """The run goes on meanwhile, and later episodes get another thread."""
    let_go, blocks = threading.Event(), threading.Event()

    async def rollout(row, client, model, sampling_args):
        said = await ask(client)
        if said["content"] == "block":
            blocks.set()
            let_go.wait(60)
        return {"error": None}

    environment(package, monkeypatch, rollout)

    async def both():
        loop = make_loop(seconds=1.0)
        blocked = asyncio.ensure_future(played(loop, Engine("block")))
        rounds = 0
        while not blocks.is_set() or rounds < 100:
            rounds += 1
            await asyncio.sleep(0)
        assert not blocked.done()
        first = await blocked
        return first, await played(loop, Engine("fine"))

    try:
        first, second = asyncio.run(both())
    finally:
        let_go.set()
    assert first.ending == "failed" and "blocks the thread of all" in first.failure
    assert second.ending == "done" and second.score == 1.0


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
