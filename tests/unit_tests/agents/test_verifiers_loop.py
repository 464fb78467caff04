"""Environments of the package verifiers: with the package where it is, else with a small double."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("transformers")

from rlinf.agents.calls import EngineCall  # noqa: E402
from rlinf.agents.episode import Episode, Question, play  # noqa: E402
from rlinf.agents.tools.toolbox import Toolbox  # noqa: E402
from rlinf.agents.verifiers_loop import VerifiersLoop, load_verifiers  # noqa: E402
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


def run(engine, max_turns=5, **arguments):
    cfg = SimpleNamespace(environment="numbers", environment_args=arguments, parser="qwen")
    loop = VerifiersLoop(cfg, TOKENIZER, Toolbox([]))
    text = TOKENIZER.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    question = Question(
        tuple(TOKENIZER.encode(text)), text, QUESTION, {"verifiers": {"answer": "7"}}
    )
    episode = Episode(question, TOKENIZER, engine, max_turns=max_turns, max_total_tokens=500)
    return asyncio.run(play(loop.run, episode))


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
