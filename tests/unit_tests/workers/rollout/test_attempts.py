"""Tasks of reasoning-gym with further attempts: the task judges each answer of an episode."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("reasoning_gym")

from rlinf.agents.loops import make_loop  # noqa: E402
from rlinf.config import build_config, validate_cfg  # noqa: E402
from rlinf.data.prompts import training_prompts  # noqa: E402
from rlinf.data.reasoning import GroupRequest  # noqa: E402
from rlinf.data.tokenizer import tokenizer_of_run  # noqa: E402
from rlinf.hybrid_engines.generation import SamplingParams  # noqa: E402
from rlinf.workers.reward.scorer import Scorer  # noqa: E402
from tests.unit_tests.workers.rollout.test_agent_loop_worker import (  # noqa: E402
    Agents,
    Writer,
    check_exact,
    serve,
)

CONFIGS = Path(__file__).resolve().parents[4] / "examples" / "agents" / "config"
FEEDBACK = "Not so."


def make_cfg(cache: Path, *overrides: str):
    """The configuration of an agent that has three attempts at sums of reasoning-gym."""
    return validate_cfg(
        build_config(
            "calculator_agent",
            [
                "data.type=reasoning_gym",
                "~data.digits",
                "~data.terms",
                "+data.tasks=[{name: chain_sum, config: {max_terms: 2, max_digits: 2}}]",
                "+data.num_workers=0",
                f"+data.cache_dir={cache}",
                "data.max_prompt_length=200",
                "runner.seq_length=320",
                "agentloop.max_total_tokens=320",
                "+agentloop.type=attempts",
                "agentloop.tools=[]",
                "agentloop.eval_without_tools=false",
                "+agentloop.discount=0.5",
                f"+agentloop.feedback={FEEDBACK}",
                "actor.tokenizer.tokenizer_model=characters",
                "actor.model.hf_config.vocab_size=98",
                "actor.model.hf_config.max_position_embeddings=320",
                "actor.supervised.steps=0",
                "reward.reward_type=reasoning_gym",
                *overrides,
            ],
            CONFIGS,
        )
    )


@pytest.mark.timeout(120)
async def test_the_task_judges_each_attempt(tmp_path):
    """Right at once, at the second attempt, never, and without an answer."""
    cfg = make_cfg(tmp_path)
    tokenizer = tokenizer_of_run(cfg)
    prompts = training_prompts(cfg, tokenizer).take(4)
    right_at = {prompts[0].text: 0, prompts[1].text: 1, prompts[2].text: 9}
    answers = {prompt.text: prompt.answer for prompt in prompts}

    def says(ids, params):
        text = tokenizer.decode(ids)
        question = next(each for each in answers if text.startswith(each))
        if question not in right_at:
            said = "no idea"
        elif text.count(FEEDBACK) >= right_at[question]:
            said = f"<answer>{answers[question]}</answer>"
        else:
            said = f"<answer>{int(answers[question]) + 1}</answer>"
        return [*tokenizer.encode(said), tokenizer.eos_token_id]

    worker = Agents(Writer(says))
    worker.cfg, worker._tokenizer = cfg, tokenizer
    worker._params = lambda request: SamplingParams(max_new_tokens=40, seed=5)
    worker._loop, worker._tools = make_loop(cfg.agentloop, tokenizer)
    assert worker._loop.judges
    worker._scorer = Scorer(cfg.reward)
    try:
        groups = await serve(worker, *(GroupRequest(prompt, 1, 0) for prompt in prompts))
    finally:
        worker._scorer.close()
    (once, twice, never, silent) = (group.episodes[0] for group in groups)
    assert [each.score for each in (once, twice, silent)] == [1.0, 0.5, 0.0]
    # A wrong answer may be worth something to a task; it is not right.
    assert never.score < 0.5
    assert [len([t for t in e.turns if t["role"] == "assistant"]) for e in (once, twice)] == [1, 2]
    assert never.ending == silent.ending == "max_turns"
    assert [turn["text"] for turn in twice.turns if turn["role"] == "user"] == [FEEDBACK]
    check_exact(groups, worker.engine)
