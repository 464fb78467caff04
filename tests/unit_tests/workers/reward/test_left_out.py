"""What a reader is told to be trained on is what the actor counts in its loss."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from rlinf.data.reasoning import SampleGroup  # noqa: E402
from rlinf.data.token_batch import TokenBatch  # noqa: E402
from rlinf.workers.actor.reasoning_credit import ReasoningCredit  # noqa: E402
from rlinf.workers.reward.left_out import why_left_out  # noqa: E402
from tests.unit_tests.workers.actor.episodes import AGENTS, make_episodes  # noqa: E402
from tests.unit_tests.workers.actor.reasoning import make_cfg  # noqa: E402

BOUNDS = {"rewards_lower_bound": 0.8, "rewards_upper_bound": 1.5}
WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "truncated": {"mask_truncated": True},
    "filtered": {"filter_rewards": True, **BOUNDS},
    "both": {"mask_truncated": True, "filter_rewards": True, **BOUNDS},
}


def configured(way: str) -> Any:
    changes = {f"algorithm.{key}": value for key, value in WAYS[way].items()}
    return make_cfg(AGENTS | changes | {"runner.on_nan": "skip"})


def episodes() -> list[SampleGroup]:
    """Episodes of which some sequences were cut, some are left out, and a reward is unknown."""
    draw = random.Random(0)
    groups = make_episodes(count=40)
    for group in groups:
        out = [draw.random() < 0.2 for _ in group.episodes]
        for sample in group.samples:
            sample.finish_reason = draw.choice(["stop", "length"])
            sample.left_out = out[sample.trajectory]
    for sample in groups[7].by_trajectory()[-1]:
        sample.reward, sample.left_out = float("nan"), False
    return groups


@pytest.mark.parametrize("way", WAYS)
def test_what_has_no_reason_is_what_the_actor_counts(way: str) -> None:
    cfg, groups = configured(way), episodes()
    credit = ReasoningCredit(cfg, lambda t: t, torch.device("cpu"), lambda text: None)
    batch = TokenBatch.of(groups)
    counted = credit.assign(batch).mask.split(batch.responses.tolist())
    place, seen = 0, set()
    for group in groups:
        for number, reason in enumerate(why_left_out(group, cfg)):
            sample, mask = group.samples[number], counted[place + number]
            expected = torch.tensor(sample.loss_mask) & (reason == "")
            assert torch.equal(mask, expected), (reason, sample)
            seen.add(reason.partition(";")[0].partition(",")[0])
        place += len(group.samples)
    named = {"", "agentloop.overlong is drop", "a reward of its group is not finite"}
    named |= {"cut at a limit"} if "mask_truncated" in WAYS[way] else set()
    named |= {"algorithm.filter_rewards is true"} if "filter_rewards" in WAYS[way] else set()
    assert seen == named, "all reasons were there"


def test_a_filtered_group_is_told_its_bound() -> None:
    (group,) = make_episodes(count=1, given=False)
    for reward, bound in ((0.25, "lower_bound is 0.8"), (2.0, "upper_bound is 1.5")):
        for sample in group.samples:
            sample.reward = reward
        assert (
            f"mean reward of its group is {reward:g}; "
            in why_left_out(group, configured("filtered"))[0]
        )
        assert why_left_out(group, configured("filtered"))[0].endswith(bound)


def test_what_failed_is_told_apart_from_what_was_too_long() -> None:
    (group,) = make_episodes(count=1)
    for sample in group.samples:
        sample.left_out = True
    assert "agentloop.overlong is drop" in why_left_out(group, configured("all"))[0]
    group.episodes[0].ending = "failed"
    assert "not the policy's fault" in why_left_out(group, configured("all"))[0]
