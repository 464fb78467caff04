"""Environments of text and further attempts: what is read, what is learnt, and what it is worth."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from rlinf.agents.calls import EngineCall  # noqa: E402
from rlinf.agents.env_loops import AttemptsLoop, EnvLoop  # noqa: E402
from rlinf.agents.envs.text_env import TextEnv, make_text_env, register_text_env  # noqa: E402
from rlinf.agents.episode import Episode, Question, play  # noqa: E402
from rlinf.agents.tools.toolbox import Toolbox  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402

TOKENIZER = character_tokenizer()
CHAT = (
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}<eos>\n{% endfor -%}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Engine:
    def __init__(self, *texts):
        self.texts, self.prompts = list(texts), []

    async def __call__(self, prompt_ids, limit, turn, agent):
        self.prompts.append(TOKENIZER.decode(list(prompt_ids)))
        text = self.texts.pop(0)
        cut = text.endswith("...")
        ids = TOKENIZER.encode(text.removesuffix("..."))
        ids += [] if cut else [TOKENIZER.eos_token_id]
        reason = "length" if cut else "stop"
        return EngineCall(prompt_ids, ids, [-0.1] * len(ids), [0] * len(ids), reason, turn, agent)


def settings(**changes):
    values = {
        "env": "guess_number",
        "env_options": {},
        "tool_timeout": 5.0,
        "tool_concurrency": 4,
        "max_tool_characters": 100,
    }
    return SimpleNamespace(**values | changes)


def run(engine, loop=EnvLoop, prompt="find it: ", metadata=None, messages=None, **kwargs):
    judge, turns = kwargs.pop("judge", None), kwargs.pop("max_turns", 9)
    made = loop(settings(**kwargs), TOKENIZER, Toolbox([]))
    question = Question(tuple(TOKENIZER.encode(prompt)), prompt, messages, metadata or {})
    episode = Episode(
        question, TOKENIZER, engine, max_turns=turns, max_total_tokens=900, judge=judge
    )
    return asyncio.run(play(made.run, episode))


def learnt(made):
    (sequence,) = made.sequences()
    ids = zip(sequence.response_ids, sequence.loss_mask, strict=True)
    return TOKENIZER.decode([token for token, own in ids if own])


def test_a_game_is_played_to_its_end_and_scores():
    engine = Engine("50", "no idea", "75", "66")
    made = run(engine, metadata={"number": 66}, env_options={"attempts": 5})
    assert made.ending == "done" and made.score == pytest.approx(1 - 3 / 5)
    assert engine.prompts[0] == "find it: a number from 1 to 100"
    assert engine.prompts[3].endswith("75<eos>lower")
    assert learnt(made) == "50<eos>no idea<eos>75<eos>66<eos>"
    said = [turn.text for turn in made.turns if turn.role == "user"]
    assert said == ["a number from 1 to 100", "higher", "write a number", "lower", "right"]


def test_with_a_chat_template_the_game_speaks_by_messages():
    TOKENIZER.chat_template = CHAT
    messages = [{"role": "user", "content": "find it"}]
    prompt = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    engine = Engine("1", "2")
    made = run(engine, prompt=prompt, messages=messages, metadata={"number": 2})
    TOKENIZER.chat_template = None
    assert engine.prompts[1].endswith("<assistant>1<eos>\n<user>higher<eos>\n<assistant>")
    assert made.score == pytest.approx(1 - 1 / 7) and learnt(made) == "1<eos>2<eos>"


def test_limits_end_a_game_with_what_it_has():
    assert run(Engine(*"1" * 9), metadata={"number": 9}, max_turns=3).ending == "max_turns"
    lost = run(Engine("1", "2"), metadata={"number": 9}, env_options={"attempts": 2})
    assert lost.ending == "done" and lost.score == 0.0
    assert run(Engine("1..."), metadata={"number": 1}).ending == "max_total_tokens"


def test_rooms_are_the_same_for_the_same_question_and_can_be_left():
    def walk(seed):
        env = make_text_env("rooms", {"size": 2, "steps": 40})
        seen = env.reset(Question((1,), metadata={"seed": seed}))
        log, has_key = [seen], False
        visits = {}
        while True:
            if "a key" in seen and not has_key:
                word, has_key = "take", True
            elif "a door" in seen and has_key:
                word = "open"
            else:
                ways = seen.split("ways: ")[1].split(".")[0].split(", ")
                visits[seen] = visits.get(seen, -1) + 1
                word = ways[visits[seen] % len(ways)]
            seen, reward, done = env.step(word)
            log.append(seen)
            if done:
                return log, reward

    assert walk(1) == walk(1) and walk(1)[1] == 1.0
    assert len({walk(seed)[0][0] for seed in range(9)}) > 1
    env = make_text_env("rooms", {"size": 2, "steps": 2})
    env.reset(Question((1,), metadata={"seed": 0}))
    assert env.step("dance")[0].startswith("that does nothing") and env.step("")[2]


freed = threading.Event()


@register_text_env("faulty", replaces=True)
class Faulty(TextEnv):
    closed = 0

    def __init__(self, how: str) -> None:
        self.how = how

    def reset(self, question):
        return ""

    def step(self, text):
        if self.how == "raise":
            raise KeyError("lost")
        if self.how == "hang":
            freed.wait(60)
        return text, 0.0

    def close(self):
        Faulty.closed += 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "the environment 'faulty' failed: KeyError: 'lost'"),
        ("hang", "'faulty' did not answer within 0.05 s"),
        ("lie", "`step` of the environment 'faulty' returned"),
    ],
)
def test_an_environment_that_fails_costs_its_episode(how, said):
    before = Faulty.closed
    made = run(Engine("x"), env="faulty", env_options={"how": how}, tool_timeout=0.05)
    freed.set()
    freed.clear()
    assert made.ending == "failed" and said in made.failure
    # The first is the one that was made to see whether it can be.
    assert Faulty.closed == before + 2


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("guess_numbr", {}, "did you mean 'guess_number'"),
        ("guess_number", {"high": 3}, "unexpected keyword argument 'high'"),
        ("guess_number", {"attempts": 0}, "there must be a number and an attempt"),
        ("rooms", {"size": 1}, "two rooms in each direction"),
    ],
)
def test_what_cannot_be_made_is_said_at_the_beginning(env, options, said):
    with pytest.raises(ValueError, match=said):
        EnvLoop(settings(env=env, env_options=options), TOKENIZER, Toolbox([]))


def test_wrong_answers_may_be_tried_again():
    asked = []

    async def judge(text):
        asked.append(text)
        return float(text == "4")

    keys = {"feedback": " no. ", "right": 0.99, "discount": 0.5}
    engine = Engine("3", "5", "4")
    made = run(engine, AttemptsLoop, "2+2=", judge=judge, **keys)
    assert asked == ["3", "5", "4"] and made.score == 0.25
    assert (
        engine.prompts[2] == "2+2=3<eos> no. 5<eos> no. " and learnt(made) == "3<eos>5<eos>4<eos>"
    )
    over = run(Engine("3", "5"), AttemptsLoop, "2+2=", judge=judge, max_turns=2, **keys)
    assert over.ending == "max_turns" and over.score == 0.0


def test_a_reward_that_cannot_be_asked_costs_the_episode():
    keys = {"feedback": "no", "right": 0.99, "discount": 1.0}
    assert run(Engine("3"), AttemptsLoop, **keys).ending == "failed"
