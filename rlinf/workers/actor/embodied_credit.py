"""From rewards to advantages: what of a rollout counts, and how much each step is credited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.advantages import normalize_advantages
from rlinf.algorithms.groups import Groups
from rlinf.algorithms.kl import kl_penalised_rewards
from rlinf.algorithms.masks import episode_lengths, episode_scores
from rlinf.algorithms.registry import advantage_registry, normalizes
from rlinf.algorithms.utils import (
    compute_embodied_advantages,
    flatten_chunks,
    unflatten_chunks,
)
from rlinf.data.embodied import EmbodiedBatch
from rlinf.utils.not_finite import first_not_finite, is_finite
from rlinf.utils.return_scale import ReturnScale


@dataclass
class Credit:
    """What the learner makes of a rollout; U is C with `reward_type` action_level, else 1.

    Attributes:
        advantages: `[T, B, U]`, zero where nothing counts.
        returns: `[T, B, U]`; None if the advantage has none.
        mask: bool `[T, B, C]`, actions that count in the loss.
        dones: bool `[T, B, C]`, where an episode ends after the action.
        seen: bool `[T, B, C]`, actions that were carried out, where all numbers are finite.
        metrics: over all ranks.
    """

    advantages: Tensor
    returns: Tensor | None
    mask: Tensor
    dones: Tensor
    seen: Tensor
    metrics: dict[str, float]

    def lengths(self, per_chunk: bool) -> Tensor:
        """Count the steps that count of the episode that each belongs to.

        Args:
            per_chunk: a step is a chunk, and not an action.

        Returns:
            int64 `[T, B, 1]` or `[T, B, C]`.
        """
        mask, dones = self.mask, self.dones
        if per_chunk:
            mask, dones = mask.any(-1, keepdim=True), dones.any(-1, keepdim=True)
        lengths = episode_lengths(flatten_chunks(mask), flatten_chunks(dones))
        return unflatten_chunks(lengths, mask.shape[-1])


class EmbodiedCredit:
    """Assigns credit to the steps of rollouts.

    Args:
        cfg: the configuration.
        all_reduce: sums a float64 tensor over ranks, in place.
        device: where `all_reduce` wants its tensors.
        warn: tells the user something.

    Attributes:
        scale: running scale of the returns.
        nan_skipped: rollouts of single envs left out so far, over all ranks, since an observation
            or a reward was not finite.
    """

    def __init__(
        self,
        cfg: Any,
        all_reduce: Callable[[Tensor], Tensor],
        device: torch.device,
        warn: Callable[[str], None],
    ) -> None:
        self._cfg = cfg
        self._all_reduce = all_reduce
        self._device = device
        self._warn = warn
        per_chunk = cfg.algorithm.discount_per == "chunk"
        self.scale = ReturnScale(cfg.algorithm.gamma, per_chunk=per_chunk)
        self.nan_skipped = 0

    def assign(
        self,
        batch: EmbodiedBatch,
        env_ids: Sequence[int],
        ref_logprobs: Tensor | None = None,
        fresh: Tensor | None = None,
    ) -> Credit:
        """Compute the credit of a rollout.

        Args:
            batch: this rank's share.
            env_ids: numbers of its envs in the whole run, for messages.
            ref_logprobs: log-probabilities of the reference policy, `[T, B, C*A]`; None without.
            fresh: chunks that are not too old to learn from, bool `[T, B]`; None is all.

        Raises:
            FloatingPointError: a reward is not finite, and `runner.on_nan` is `stop`.
        """
        algorithm = self._cfg.algorithm
        dones = batch.terminations | batch.truncations
        finite = self._finite_envs(batch, env_ids)
        rewards = batch.rewards if finite.all() else torch.where(finite[:, None], batch.rewards, 0)
        seen = batch.valid & finite[:, None]
        kept = self._kept_envs(rewards, dones)
        counts = seen if kept is None else seen & kept[:, None]
        # What somebody else chose is not for the policy to learn; its reward counts all the same.
        mask = counts & ~batch.intervened
        if fresh is not None:
            mask = mask & fresh[..., None]
        shown = rewards
        logprobs, ref = self._per_action(batch.prev_logprobs), self._per_action(ref_logprobs)
        if ref is not None and algorithm.kl_beta > 0 and algorithm.kl_in == "reward":
            rewards = kl_penalised_rewards(
                rewards,
                logprobs=logprobs.sum(-1),
                ref_logprobs=ref.sum(-1),
                kl_beta=algorithm.kl_beta,
                kl_penalty_type=algorithm.kl_penalty_type,
                loss_mask=counts,
            )
        if algorithm.normalize_returns:
            rewards = self.scale.apply(
                rewards,
                dones,
                valid=seen,
                begins=batch.begins[0],
                epochs=self._cfg.env.train.rollout_epoch,
                all_reduce=self._all_reduce,
            )
        advantages, returns, _ = self._advantages(batch, rewards, dones, counts, ref)
        steps = mask if advantages.shape == mask.shape else mask.any(-1, keepdim=True)
        if algorithm.normalize_advantages and normalizes(algorithm.adv_type):
            advantages = normalize_advantages(advantages, steps, self._all_reduce)
        credit = Credit(advantages, returns, mask, dones, seen, {})
        credit.metrics = self._metrics(batch, shown, credit, steps, finite, kept)
        return credit

    def _advantages(
        self, batch: EmbodiedBatch, rewards: Tensor, dones: Tensor, mask: Tensor, ref: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        algorithm = self._cfg.algorithm
        names = advantage_registry.arguments(algorithm.adv_type)
        settings = {k: algorithm[k] for k in names if k in algorithm}
        critic = "values" in names and self._cfg.actor.model.add_value_head
        return compute_embodied_advantages(
            adv_type=algorithm.adv_type,
            rewards=rewards,
            dones=dones,
            reward_type=algorithm.reward_type,
            discount_per=algorithm.discount_per,
            terminations=batch.terminations,
            values=batch.prev_values if critic else None,
            bootstrap_values=batch.bootstrap_values if critic else None,
            loss_mask=mask,
            logprobs=None if ref is None else self._per_action(batch.prev_logprobs),
            ref_logprobs=ref,
            **settings,
        )

    def _per_action(self, tensor: Tensor | None) -> Tensor | None:
        """View `[T, B, C*A]` as `[T, B, C, A]`."""
        if tensor is None:
            return None
        return tensor.unflatten(-1, (self._cfg.actor.model.num_action_chunks, -1))

    # -- what is left out -------------------------------------------------------------------------

    def _finite_envs(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> Tensor:
        """Mark the envs `[B]` all of whose observations and rewards are finite.

        What followed from a number that is not finite is not known, so the whole rollout of the
        env does not count; nor does that of its group, whose mean would lack a member.
        """
        finite = batch.finite.all(0)
        if not is_finite(batch.rewards):
            (step, env, action), value = first_not_finite(batch.rewards)
            message = (
                f"the reward of env {env_ids[env]} in step "
                f"{step * batch.rewards.shape[2] + action} of the rollout is {value}"
            )
            if self._cfg.runner.on_nan == "stop":
                raise FloatingPointError(
                    f"{message}; look at the env, or leave such rollouts out with "
                    "runner.on_nan: skip"
                )
            self._warn(f"{message}; what this env did in this rollout is left out")
            finite &= torch.isfinite(batch.rewards).all(-1).all(0)
        group = self._cfg.algorithm.group_size
        if group > 1 and not finite.all():
            groups = Groups.of_size(len(finite), group, finite.device)
            finite = groups.to_members(groups.all(finite))
        return finite

    def _kept_envs(self, rewards: Tensor, dones: Tensor) -> Tensor | None:
        """Mark the envs `[B]` of groups whose mean return is within the bounds; None is all."""
        algorithm = self._cfg.algorithm
        if not algorithm.filter_rewards:
            return None
        scores = episode_scores(flatten_chunks(rewards), flatten_chunks(dones))
        groups = Groups.of_size(len(scores), algorithm.group_size, scores.device)
        return groups.within(scores, algorithm.rewards_lower_bound, algorithm.rewards_upper_bound)

    # -- metrics ----------------------------------------------------------------------------------

    def _metrics(
        self,
        batch: EmbodiedBatch,
        rewards: Tensor,
        credit: Credit,
        steps: Tensor,
        finite: Tensor,
        kept: Tensor | None,
    ) -> dict[str, float]:
        values, seen = batch.prev_values[:-1], credit.seen
        valued = seen if values.shape == seen.shape else seen.any(-1, keepdim=True)
        sums = [
            *_sum_and_count(rewards, seen),
            *_sum_and_count(credit.advantages, steps),
            *_sum_and_count(values, valued),
            0.0 if credit.returns is None else _sum_and_count(credit.returns, steps)[0],
            float((~finite).sum()),
            float(finite.sum()) if kept is None else float((kept & finite).sum()),
            float(finite.numel()),
        ]
        totals = torch.tensor(sums, dtype=torch.float64).to(self._device)
        r, nr, a, na, v, nv, ret, lost, left, envs = self._all_reduce(totals).tolist()
        self.nan_skipped += int(lost)
        metrics = {
            "rewards": r / max(nr, 1.0),
            "advantages_mean": a / max(na, 1.0),
            "values": v / max(nv, 1.0),
        }
        if credit.returns is not None:
            metrics["returns"] = ret / max(na, 1.0)
        if kept is not None:
            metrics["groups_kept"] = left / envs
        return metrics


def _sum_and_count(tensor: Tensor, mask: Tensor) -> tuple[float, float]:
    mask = mask.expand_as(tensor)
    return float(torch.where(mask, tensor, 0).sum()), float(mask.sum())
