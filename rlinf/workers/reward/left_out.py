"""Why the first episode of a group is not trained on, by the rules of the actor."""

from __future__ import annotations

from typing import Any

from rlinf.algorithms.groups import Groups
from rlinf.data.reasoning import SampleGroup
from rlinf.data.token_batch import TokenBatch
from rlinf.data.trajectories import Trajectories
from rlinf.utils.numbers import number

_NOWHERE = "counts neither in the loss nor in the baseline of its group"
_FAILED = f"what failed is not the policy's fault; {_NOWHERE}"
_OVERLONG = f"agentloop.overlong is drop; {_NOWHERE}"
_NOT_FINITE = "a reward of its group is not finite, and runner.on_nan is skip"
_CUT = (
    "cut at a limit, and algorithm.mask_truncated is true; counts in the baseline of its group, "
    "and not in the loss"
)


def why_left_out(group: SampleGroup, cfg: Any) -> list[str]:
    """Return the reason for each sequence of the first episode; empty where it is trained on.

    What has a reason is what `rlinf.workers.actor.reasoning_credit` masks.

    Args:
        group: its samples have rewards.
        cfg: checked configuration, with an algorithm.
    """
    first = group.by_trajectory()[0]
    if first[0].left_out:
        failed = bool(group.episodes) and group.episodes[0].ending == "failed"
        return [_FAILED if failed else _OVERLONG] * len(first)
    if why := _of_group(group, cfg.algorithm):
        return [why] * len(first)
    masks = cfg.algorithm.mask_truncated
    return [_CUT if masks and sample.finish_reason == "length" else "" for sample in first]


def _of_group(group: SampleGroup, algorithm: Any) -> str:
    """Return why a whole group is left out; empty if it is not."""
    episodes = Trajectories.of(TokenBatch.of([group]))
    rewards = episodes.rewards[~episodes.left_out]
    if not rewards.isfinite().all():
        return _NOT_FINITE
    if not algorithm.filter_rewards:
        return ""
    totals = rewards + episodes.turn_rewards[~episodes.left_out]
    low, high = algorithm.rewards_lower_bound, algorithm.rewards_upper_bound
    together = Groups.of_size(len(totals), len(totals))
    if together.within(totals, low, high).all():
        return ""
    mean = float(together.mean(totals))
    side, bound = ("lower", low) if low is not None and mean < low else ("upper", high)
    return (
        f"algorithm.filter_rewards is true, and the mean reward of its group is {number(mean, 3)}; "
        f"algorithm.rewards_{side}_bound is {number(bound, 3)}"
    )
