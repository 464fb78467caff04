"""Agent recipes with SmolLM2 as they are measured, here with a random model of byte-pair tokens."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_parts import agent_recipe, code_agent, searchr1
from benchmarks.gpu_parts.request_loop import Played, RequestLoop
from benchmarks.gpu_parts.settings import Settings
from rlinf.agents.calls import EngineCall
from rlinf.agents.episode import Episode, Question, play
from rlinf.agents.loops import make_loop
from rlinf.config import build_config, validate_cfg
from rlinf.data.prompts import documents_of_run, training_prompts
from rlinf.data.tokenizer import tokenizer_of_run
from rlinf.hybrid_engines.generation import GenerationResult
from tests.long_tests import long_test

PARTS = {"searchr1": searchr1, "code_agent_smollm2": code_agent}
ROOM = ("runner.seq_length=800", "agentloop.max_total_tokens=800", "data.max_prompt_length=600")
"""For a tokenizer that makes more tokens of a text than that of SmolLM2."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Llama whose tokenizer makes several tokens of a tag, as SmolLM2's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet
    )
    tokens.train_from_iterator(["who is the father of the search answer python"] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<|end|>", pad_token="<|end|>"
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("model") / "model"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(recipe: str, model: Path, *overrides: str) -> Any:
    """Return the config of a recipe with the random model."""
    path = f"actor.model.model_path={model}"
    return validate_cfg(build_config(recipe, [*agent_recipe.TINY, *ROOM, path, *overrides]))


@pytest.mark.parametrize("recipe", PARTS)
def test_a_plain_loop_plays_episodes(model: Path, recipe: str) -> None:
    found = {}
    for reuse in (True, False):
        loop = RequestLoop(config(recipe, model, f"rollout.hf.reuse_prefixes={reuse}"))
        played = loop.play(episodes=3, seconds=100.0)
        loop.close()
        assert len(played.trajectories) == 3 and played.seconds > 0
        found[reuse] = agent_recipe.of_loop(played)
        # Two episodes of the first question, one of the second.
        prompts = [each.calls[0].prompt_ids for each in played.trajectories]
        assert prompts[0] == prompts[1] != prompts[2]
    # The instructions are whole blocks that were read before.
    assert found[True]["prefix reuse"] > 0.5 and found[False]["prefix reuse"] == 0
    assert found[True]["tokens read per episode"] == found[False]["tokens read per episode"]
    assert found[True]["tokens/s"] > 0 and found[True]["failed"] == 0


def test_a_plain_loop_ends_at_its_time(model: Path) -> None:
    loop = RequestLoop(config("searchr1", model))
    assert len(loop.play(episodes=4, seconds=0.0).trajectories) == 1
    loop.close()


def test_a_tag_of_several_tokens_ends_a_turn(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = RequestLoop(config("searchr1", model))
    assert loop._params.stop == ("</search>",)
    said = "<search>father ada adler</search>"
    # The warm-up plays the episode first.
    texts = iter([said, "<answer>nobody</answer>"] * 2)
    engine, wrote = loop._engine, []

    class Writes:
        """Says what it is told, token by token, until the engine's stop texts end it."""

        def submit(self, requests: list[Any]) -> None:
            (self.request,) = requests
            tokens = loop._tokenizer.encode(f"{next(texts)} and more", add_special_tokens=False)
            stop = self.request.params.stop
            ends = [n for n in range(1, len(tokens)) if engine._texts.ends(stop, tokens[:n])]
            self.tokens = tokens[: ends[0]] if ends else tokens
            wrote.append(self.tokens)

        def step(self) -> list[Any]:
            zeros = [0.0] * len(self.tokens)
            return [
                GenerationResult(
                    self.request.request_id, 0, self.tokens, zeros, [0] * len(zeros), "stop", 0
                )
            ]

    with monkeypatch.context() as patched:
        patched.setattr(loop, "_engine", Writes())
        (played,) = loop.play(episodes=1, seconds=1.0).trajectories
    loop.close()
    assert loop._tokenizer.decode(wrote[0]) == said and len(wrote[0]) > 3
    assistant, tool, answer = played.turns
    assert tool.role == "tool" and tool.text.startswith("<information>") and "is" in tool.text
    assert answer.text.startswith("<answer>")


@pytest.mark.parametrize(
    ("recipe", "careful"),
    [("searchr1", "data.careless=0"), ("code_agent_smollm2", "data.repairs=1")],
)
def test_worked_episodes_are_what_tools_answer(model: Path, recipe: str, careful: str) -> None:
    cfg = config(recipe, model, careful)
    tokenizer = tokenizer_of_run(cfg)
    loop, tools = make_loop(cfg.agentloop, tokenizer, documents=documents_of_run(cfg))
    prompts = training_prompts(cfg, tokenizer).prompts

    async def replay(number: int) -> None:
        prompt, example = prompts.prompt(number), prompts.supervised(number)
        # What the model is to write: each run of learnt tokens is a turn.
        turns = [
            [token for token, _ in run]
            for learnt, run in itertools.groupby(
                zip(example.response_ids, example.learnt, strict=True), key=lambda pair: pair[1]
            )
            if learnt
        ]
        told = iter(turns)

        async def write(ids: Any, limit: int, turn: int, agent: int) -> EngineCall:
            said = next(told)
            zeros = (0.0,) * len(said)
            return EngineCall(tuple(ids), tuple(said), zeros, (0,) * len(said), "stop", turn, agent)

        question = Question(tuple(prompt.token_ids), prompt.text, None, prompt.metadata)
        episode = Episode(question, tokenizer, write, tools, max_turns=4, max_total_tokens=800)
        played = await play(loop.run, episode)
        assert played.ending == "done" and len(played.calls) == len(turns) > 1
        # Token by token what was learnt from.
        assert list(played.calls[-1].token_ids) == example.prompt_ids + example.response_ids
        assert f"<answer>{prompt.answer}</answer>" in played.answer

    async def replay_all() -> None:
        for number in range(12):
            await replay(number)

    asyncio.run(replay_all())
    tools.close()


def test_rows_of_a_run() -> None:
    lines = [
        {"step": 0, "eval/pass@1": 0.5, "eval/pass@1_low": 0.45, "eval/pass@1_high": 0.55}
        | {"eval/one_hop/pass@1": 1.0, "eval/two_hop/pass@1": 0.0, "eval/pass@1_no_tools": 0.01}
        | {"eval/tool_calls": 1.0, "eval/tool_errors": 0.0, "eval/tools/search/calls": 1.0},
        *(
            {"time/step": step, "time/generate": 0.01, "time/training": 1.0}
            | {"rollout/samples": 512.0, "rollout/tokens": 9000.0, "rollout/failed": 0.0}
            | {"rollout/prompt_tokens": 300.0, "rollout/computed_tokens": 75.0}
            | {"time/sync_weights": 0.1}
            for step in (1.0, 2.0, 5.0)
        ),
    ]
    assert agent_recipe.scores(lines[0]) == {
        "held-out pass@1": 0.5,
        "95 %": "0.450 to 0.550",
        "one_hop": 1.0,
        "two_hop": 0.0,
        "no tools": 0.01,
        "tool calls": 1.0,
        "tool errors": 0.0,
    }
    found = agent_recipe.speed(lines)
    assert found["in flight"] == 512 and found["s/step"] == 2
    # Whatever the driver waited for: engines work ahead.
    assert found["episodes/s"] == 192 and found["tokens/s"] == 3375
    assert found["prefix reuse"] == 0.75


def test_what_a_plain_loop_counts() -> None:
    calls = [
        EngineCall((1, 2, 3), (4, 5), (0.0, 0.0), (0, 0), "stop", 0, computed_tokens=3),
        EngineCall((1, 2, 3, 4, 5, 6), (7,), (0.0,), (0,), "stop", 1, computed_tokens=2),
    ]

    class Ended:
        ending = "done"

    Ended.calls = calls
    played = Played([Ended(), Ended()], 2.0)
    assert (played.written, played.read, played.computed) == (6, 18, 10)
    assert agent_recipe.of_loop(played) == {
        "episodes/s": 1.0,
        "tokens/s": 3,
        "tokens read per episode": 9,
        "of these computed": 5,
        "prefix reuse": 0.444,
        "failed": 0.0,
    }


@pytest.mark.parametrize("recipe", PARTS)
def test_the_parts_need_weights(tmp_path: Path, recipe: str) -> None:
    with pytest.raises(ValueError, match="rlinf fetch smollm2"):
        next(PARTS[recipe].measure(Settings(out=tmp_path)))


@long_test
@pytest.mark.timeout(600)
@pytest.mark.parametrize("recipe", PARTS)
def test_a_recipe_is_measured_without_a_gpu(tmp_path: Path, model: Path, recipe: str) -> None:
    settings = Settings(out=tmp_path, tiny=True, smollm2=model, overrides=ROOM)
    rows = list(PARTS[recipe].measure(settings))
    assert [row["what"] for row in rows] == [
        "before",
        "after",
        "episodes in flight",
        "one after the other",
        "the same, without reuse",
    ]
    assert rows[2]["in flight"] == 4 and rows[2]["prefix reuse"] > 0
    assert rows[3]["prefix reuse"] > 0 and rows[4]["prefix reuse"] == 0
    assert json.dumps(rows)
