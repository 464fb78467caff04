"""Episodes of several turns are judged once, by their last response, with all turns at hand."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

from rlinf.agents.trajectory import Turn  # noqa: E402
from rlinf.data.reasoning import EpisodeRecord, Prompt, Sample, SampleGroup  # noqa: E402
from rlinf.data.token_batch import TokenBatch  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402
from rlinf.runners.reasoning_metrics import of_validation, of_verdicts  # noqa: E402
from rlinf.utils.processes.pool import Outcome  # noqa: E402
from rlinf.workers.reward.reward_worker import RewardWorker  # noqa: E402
from rlinf.workers.reward.tally import RewardTally  # noqa: E402


class Judge:
    """A scorer that says whether an answer is right, and notes what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int]] = []
        self.seen: list[tuple[str, float]] = []

    async def score(self, response: str, prompt: Prompt) -> Outcome:
        self.shown.append((response, len(prompt.metadata["turns"])))
        seen = prompt.metadata["ending"], prompt.metadata["numbers"]["tool_calls"]
        self.seen.append(seen)
        score = float(response == prompt.answer)
        return Outcome("ok", {"score": score, "info": {"answered": 1.0}})


class Box:
    """A channel that keeps what is put."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def put(self, item: Any, key: Any, async_op: bool) -> None:
        self.items.append(item)


class Worker(RewardWorker):
    """Lives in this process."""

    def __new__(cls) -> Worker:
        return object.__new__(cls)

    def __init__(self) -> None:
        self._scorer, self._tokenizer = Judge(), character_tokenizer()
        reward = {"reward_scale": 2.0, "reward_min_val": None, "reward_max_val": None}
        algorithm = SimpleNamespace(
            overlong_buffer_length=0,
            dynamic_sampling=False,
            mask_truncated=False,
            filter_rewards=False,
        )
        self.cfg = SimpleNamespace(reward=SimpleNamespace(**reward), algorithm=algorithm)


def sample(index: int, trajectory: int, **changes: Any) -> Sample:
    mask = [True, False, True]
    made = Sample(7, index, [1], [2, 3, 4], [0.0] * 3, [0] * 3, "stop", loss_mask=mask)
    made.trajectory = trajectory
    return Sample(**vars(made) | changes)


def group(validation: bool = False) -> SampleGroup:
    turns = [asdict(Turn("assistant", "ask ", turn=0)), asdict(Turn("tool", "answer"))]
    numbers = {"tool_calls": 1.0, "overlong": 0.0}
    episodes = [
        EpisodeRecord("3", turns, numbers),
        EpisodeRecord("4", turns, {**numbers, "tool_calls": 3.0}, ending="max_turns"),
        EpisodeRecord("", turns, {**numbers, "overlong": 1.0}, score=0.0),
        EpisodeRecord("", [], numbers, score=0.0, failure="gone"),
    ]
    samples = [
        sample(0, 0),
        sample(1, 0),
        sample(2, 1),
        sample(3, 2, finish_reason="length"),
        sample(4, 3, left_out=not validation),
    ]
    prompt = Prompt(7, [1], "1+2", "3", "sums", {})
    return SampleGroup(prompt, samples, 0, validation, episodes, shown=True)


async def judged(validation: bool) -> tuple[Worker, SampleGroup, Any]:
    worker, out, verdicts = Worker(), Box(), Box()
    scored = group(validation)
    await worker._score_group(scored, out, verdicts, RewardTally())
    assert out.items == ([] if validation else [scored])
    return worker, scored, verdicts.items[0]


async def test_an_episode_is_judged_once_for_all_its_sequences():
    worker, scored, verdict = await judged(validation=False)
    assert worker._scorer.shown == [("3", 2), ("4", 2)]
    assert worker._scorer.seen == [("done", 1.0), ("max_turns", 3.0)]
    assert [each.reward for each in scored.samples] == [2.0, 2.0, 0.0, 0.0, 0.0]
    assert verdict.scores == [1.0, 0.0, 0.0] and verdict.rewards == [2.0, 0.0, 0.0]
    assert verdict.lengths == [4, 2, 2] and verdict.truncated == 1 and verdict.left_out == 1
    assert verdict.response == "ask answer" and verdict.answer == "3"
    told = verdict.transcript
    assert len(told.turns) == 2 and len(told.sequences) == 2 and verdict.learnt
    # The score is that of the reward, the reward what is trained on.
    assert (told.score, told.reward) == (1.0, 2.0)
    assert TokenBatch.of([scored]).trajectories.tolist() == [0, 0, 1, 2, 3]
    metrics = of_verdicts([verdict], 1.0)
    assert metrics["rollout/score"] == pytest.approx(1 / 3)
    assert metrics["rollout/tool_calls"] == pytest.approx(6 / 4)
    assert metrics["rollout/samples"] == 3.0


async def test_dynamic_sampling_sees_the_rewards_of_turns():
    worker, out = Worker(), Box()
    worker.cfg.algorithm.dynamic_sampling = True
    for given, kept in ((None, False), ([0.0, 0.0, 0.5], True)):
        samples = [sample(0, 0), sample(1, 1)]
        samples[0].turns, samples[0].turn_rewards = [0, 1, 1], given
        episodes = [EpisodeRecord("3", numbers={"tool_calls": 1.0}) for _ in samples]
        both = SampleGroup(Prompt(7, [1], "", "3", "sums", {}), samples, 0, False, episodes)
        await worker._score_group(both, out, None, RewardTally())
        assert (both in out.items) is kept


@pytest.mark.parametrize("validation", [False, True])
async def test_what_nobody_sees_is_not_made(validation):
    worker, verdicts = Worker(), Box()
    worker._tokenizer = None  # Decodes nothing.
    unseen = group(validation)
    unseen.shown = False
    await worker._score_group(unseen, Box(), verdicts, RewardTally())
    (verdict,) = verdicts.items
    assert verdict.transcript is None and not verdict.shown


async def test_a_group_without_a_signal_is_not_shown():
    worker, verdicts = Worker(), Box()
    worker.cfg.algorithm.dynamic_sampling = True
    alike = group()
    for episode in alike.episodes:
        episode.score = 0.0
    await worker._score_group(alike, Box(), verdicts, RewardTally())
    assert verdicts.items[0].transcript is None


async def test_what_the_actor_leaves_out_is_told_with_its_reason():
    for changes, why in (
        ({"mask_truncated": True}, "mask_truncated"),
        (
            {"filter_rewards": True, "rewards_lower_bound": 1.0, "rewards_upper_bound": None},
            "algorithm.rewards_lower_bound is 1",
        ),
    ):
        worker, verdicts = Worker(), Box()
        vars(worker.cfg.algorithm).update(changes)
        scored = group()
        for each in scored.samples[:2]:
            each.finish_reason = "length"
        await worker._score_group(scored, Box(), verdicts, RewardTally())
        (verdict,) = verdicts.items
        assert not verdict.learnt and why in verdict.why_left_out
        parts = [part for parts in verdict.transcript.sequences for part in parts]
        assert not any(part["learnt"] for part in parts if part["written"])


async def test_a_validation_counts_every_episode():
    _, _, verdict = await judged(validation=True)
    assert verdict.scores == [1.0, 0.0, 0.0, 0.0] and not verdict.learnt
    metrics = of_validation([verdict])
    assert metrics["eval/pass@1"] == 0.25 and metrics["eval/tool_calls"] == 1.5
    assert metrics["eval/overlong"] == 0.25


async def test_a_step_of_which_nothing_counts_has_no_score():
    _, _, verdict = await judged(validation=False)
    verdict.scores, verdict.lengths = [], []
    metrics = of_verdicts([verdict], 1.0)
    assert "rollout/score" not in metrics and metrics["rollout/samples"] == 0.0
