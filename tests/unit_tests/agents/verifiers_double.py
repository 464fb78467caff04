"""An environment of the package verifiers, or of a small double of it, and who plays it."""

from __future__ import annotations

import asyncio
import importlib.util
from types import ModuleType, SimpleNamespace

from rlinf.agents.calls import EngineCall
from rlinf.agents.episode import Episode, Question, play
from rlinf.agents.tools.toolbox import Toolbox
from rlinf.agents.verifiers_loop import VerifiersLoop
from rlinf.data.tokenizer import character_tokenizer

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
