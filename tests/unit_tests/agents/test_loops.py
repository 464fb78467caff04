"""Episodes of loops over an engine that says what it is told to."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from rlinf.agents.calls import EngineCall  # noqa: E402
from rlinf.agents.episode import Episode, Question, play  # noqa: E402
from rlinf.agents.loops import AgentLoop, ToolLoop, make_loop, register_agent_loop  # noqa: E402
from rlinf.agents.tools.tool import Tool  # noqa: E402
from rlinf.agents.tools.toolbox import Toolbox, ToolFailed  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402

TOKENIZER = character_tokenizer()
CHAT = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor -%}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def settings(**changes):
    values = {
        "type": "tools",
        "tools": ["calculator"],
        "parser": "searchr1",
        "tool_timeout": 5.0,
        "tool_concurrency": 4,
        "max_tool_characters": 100,
        "tool_settings": {},
        "mcp_servers": {},
    }
    return SimpleNamespace(**values | changes)


class Engine:
    """Answers with texts, one after the other; with a `...` at its end, one is cut there."""

    def __init__(self, *texts):
        self.texts, self.prompts, self.limits = list(texts), [], []

    async def __call__(self, prompt_ids, limit, turn, agent):
        await asyncio.sleep(0)
        self.prompts.append(list(prompt_ids))
        self.limits.append(limit)
        text = self.texts.pop(0)
        cut = text.endswith("...")
        ids = TOKENIZER.encode(text.removesuffix("..."))
        if not cut and not text.endswith("</calculator>"):
            ids.append(TOKENIZER.eos_token_id)
        logprobs = [-0.1 * i for i in range(len(ids))]
        reason = "length" if cut else "stop"
        return EngineCall(prompt_ids, ids, logprobs, [turn] * len(ids), reason, turn, agent)


def start(engine, prompt="47*85=", loop=None, tokenizer=TOKENIZER, messages=None, **limits):
    made, tools = make_loop(loop or settings(), tokenizer)
    ids = tokenizer.encode(prompt)
    question = Question(tuple(ids), prompt, messages)
    limits = {"max_turns": 4, "max_total_tokens": 500} | limits
    return made, Episode(question, tokenizer, engine, tools, **limits)


def run(engine, **kwargs):
    loop, episode = start(engine, **kwargs)
    return asyncio.run(play(loop.run, episode))


def texts(ids, mask):
    """What the policy wrote, and what it only read, as text."""
    own = TOKENIZER.decode([i for i, m in zip(ids, mask, strict=True) if m])
    return own, TOKENIZER.decode([i for i, m in zip(ids, mask, strict=True) if not m])


def test_a_tool_answers_in_the_text_and_is_not_learnt():
    engine = Engine("<calculator>47*85</calculator>", "<answer>3995</answer>")
    made = run(engine)
    (sequence,) = made.sequences()
    own, read = texts(sequence.response_ids, sequence.loss_mask)
    assert own == "<calculator>47*85</calculator><answer>3995</answer><eos>"
    assert read == "<information>3995</information>"
    assert engine.prompts[1] == sequence.token_ids[: len(engine.prompts[1])]
    assert made.answer == "<answer>3995</answer>" and made.ending == "done"
    whole = float(len(sequence.token_ids))
    assert made.numbers.pop("tools/calculator/seconds") > 0.0
    assert made.numbers == {
        **{"turns": 2.0, "tool_calls": 1.0, "tool_errors": 0.0},
        **{"total_tokens": whole, "context_tokens": whole},
        "prompt_tokens": float(sum(map(len, engine.prompts))),
        **{"overlong": 0.0, "failed": 0.0, "turn_rewards": 0.0},
        **{"tools/calculator/calls": 1.0, "tools/calculator/errors": 0.0},
        **{"tools/calculator/failures": 0.0, "tools/calculator/retries": 0.0},
    }
    assert [turn.role for turn in made.turns] == ["assistant", "tool", "assistant"]


def test_mistakes_of_the_model_are_read_by_it():
    made = run(Engine("<calculator>47*</calculator>", "<calculator>1", "<answer>1</answer>"))
    errors = [turn.text for turn in made.turns if turn.error]
    assert errors == [
        "<information>error: cannot read '47*'</information>",
        "<information>error: a <calculator> has no </calculator></information>",
    ]
    assert made.numbers["tool_calls"] == made.numbers["tool_errors"] == 2.0
    assert len(made.sequences()) == 1


def test_chat_formats_answer_by_messages():
    words = character_tokenizer()
    words.chat_template = CHAT
    messages = [{"role": "user", "content": "47*85?"}]
    prompt = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    wanted = '<tool_call>{"name": "calculator", "arguments": {"expression": "47*85"}}</tool_call>'
    engine = Engine(wanted, "3995")
    made = run(
        engine,
        prompt=prompt,
        loop=settings(parser="qwen"),
        tokenizer=words,
        messages=messages,
    )
    (sequence,) = made.sequences()
    own, read = texts(sequence.response_ids, sequence.loss_mask)
    assert own == f"{wanted}<eos>3995<eos>"
    assert read == "\n<|tool|>3995<eos>\n<|assistant|>"


def test_limits_end_an_episode_with_what_there_is():
    again = ["<calculator>1+1</calculator>"] * 9
    turns = run(Engine(*again), max_turns=3)
    assert turns.ending == "max_turns" and len(turns.calls) == 3
    engine = Engine(*again)
    tokens = run(engine, max_turns=9, max_total_tokens=120, max_new_tokens=40)
    assert tokens.ending == "max_total_tokens" and tokens.overlong
    assert engine.limits == [40, 40, 120 - len(engine.prompts[2])] and engine.limits[2] < 40
    cut = run(Engine("<calc..."))
    assert cut.ending == "max_total_tokens" and cut.answer == "<calc"


def test_one_response_is_the_smallest_agent():
    made = run(Engine("132"), loop=settings(type="single_turn", tools=[]))
    (sequence,) = made.sequences()
    assert all(sequence.loss_mask) and made.answer == "132"
    assert run(Engine("13..."), loop=settings(type="single_turn")).ending == "max_total_tokens"


def test_a_tool_that_does_not_answer_fails_the_episode():
    async def gone(x: str) -> str:
        """Do not answer."""
        raise ToolFailed("the tool 'gone' did not answer")

    box, question = Toolbox([Tool(gone)]), Question((5,))
    episode = Episode(question, TOKENIZER, Engine("<gone>1</gone>"), box, max_total_tokens=99)
    made = asyncio.run(play(ToolLoop(settings(), TOKENIZER, box).run, episode))
    assert made.ending == "failed" and "did not answer" in made.failure
    assert made.numbers["failed"] == 1.0 and len(made.calls) == 1


def test_agents_of_one_episode_branch():
    @register_agent_loop("two agents", replaces=True)
    class Two(AgentLoop):
        async def run(self, episode):
            first = await episode.generate(episode.question.prompt_ids)
            more = [[*first.token_ids, *self.tokenizer.encode(text)] for text in "ab"]
            await asyncio.gather(*(episode.generate(ids, agent=i) for i, ids in enumerate(more, 1)))
            return episode.finish()

    made = run(Engine("x", "y", "z"), loop=settings(type="two agents"))
    trunk, branch = made.sequences()
    assert set(trunk.agents) == {0, 1} and set(branch.agents) == {2}
    assert sum(trunk.loss_mask) + sum(branch.loss_mask) == 6
    assert len(branch.prompt_ids) == len(trunk.prompt_ids) + 2 + 1


def test_a_loop_without_run_is_refused():
    class Nothing:
        def __init__(self, cfg, tokenizer, tools):
            pass

    with pytest.raises(ValueError, match="must have a method run"):
        register_agent_loop("nothing")(Nothing)


def test_what_tools_have_opened_is_closed_when_the_episode_ends_or_fails():
    closed = []

    class Tape:
        """Write down."""

        def __init__(self) -> None:
            self.said: list[str] = []

        def __call__(self, x: str) -> str:
            self.said.append(x)
            if x == "tear":
                raise ToolFailed("the tape is torn")
            return "".join(self.said)

        async def close(self) -> None:
            closed.append(self.said)

    for texts in (["<tape>a</tape>", "<tape>b</tape>", "done"], ["<tape>tear</tape>"]):
        box = Toolbox([Tool(Tape)])
        question = Question((5,))
        episode = Episode(
            question, TOKENIZER, Engine(*texts), box, max_turns=4, max_total_tokens=999
        )
        made = asyncio.run(play(ToolLoop(settings(), TOKENIZER, box).run, episode))
    assert closed == [["a", "b"], ["tear"]]
    assert made.ending == "failed" and made.numbers["tools/tape/failures"] == 1.0
