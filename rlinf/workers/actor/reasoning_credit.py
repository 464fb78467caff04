"""From rewards of responses to advantages of tokens: what counts, and how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.advantages import normalize_advantages
from rlinf.algorithms.groups import Groups
from rlinf.algorithms.kl import kl_penalised_rewards
from rlinf.algorithms.loss_scales import LossScales, loss_scales
from rlinf.algorithms.masks import last_valid
from rlinf.algorithms.metrics import Metric, MetricMax, MetricSum
from rlinf.algorithms.registry import advantage_registry, normalizes
from rlinf.algorithms.utils import compute_token_advantages
from rlinf.data.credit_units import CreditUnits
from rlinf.data.token_batch import TokenBatch, pad_ragged
from rlinf.data.trajectories import Trajectories


@dataclass(frozen=True)
class TokenCredit:
    """What the learner makes of a batch of R response tokens.

    Attributes:
        advantages: `[R]`, zero where the mask is false.
        returns: `[R]`; None if the advantage has none.
        mask: bool `[R]`, what counts in the loss.
        metrics: of this rank, to be merged.
        scales: what each token weighs in the loss; None is by `algorithm.loss_agg_func` alone.
    """

    advantages: Tensor
    returns: Tensor | None
    mask: Tensor
    metrics: dict[str, Metric]
    scales: LossScales | None = None


class ReasoningCredit:
    """Assigns credit to the tokens of responses.

    Args:
        cfg: the configuration.
        all_reduce: sums a float64 tensor over ranks, in place.
        device: where metrics are summed over ranks.
        warn: tells the user something.

    Attributes:
        nan_skipped: responses left out so far on this rank, since a reward of their group was not
            finite.
    """

    def __init__(
        self,
        cfg: Any,
        all_reduce: Callable[[Tensor], Tensor],
        device: torch.device,
        warn: Callable[[str], None],
    ) -> None:
        algorithm = cfg.algorithm
        self._algorithm = algorithm
        self._on_nan = cfg.runner.on_nan
        self._all_reduce, self._device, self._warn = all_reduce, device, warn
        names = advantage_registry.arguments(algorithm.adv_type)
        self._settings = {name: algorithm[name] for name in names if name in algorithm}
        self._takes_values = "values" in names
        self._takes_size, self._takes_groups = "group_size" in names, "group_ids" in names
        self._normalizes = algorithm.normalize_advantages and normalizes(algorithm.adv_type)
        self._of_agents = cfg.runner.task_type in ("agent", "coding_online_rl")
        self._in_reward = algorithm.kl_in == "reward" and algorithm.kl_beta > 0
        self._mode, self._levels = algorithm.advantage_mode, list(algorithm.loss_scales)
        if self._mode != "trajectory" and self._takes_values:
            raise ValueError(
                f"algorithm.advantage_mode is {self._mode}, but advantage {algorithm.adv_type} "
                "takes values, which say themselves what each token was worth: set it to "
                "trajectory; rewards of turns count there, too"
            )
        if self._mode != "trajectory" and self._takes_size and not self._takes_groups:
            raise ValueError(
                f"algorithm.advantage_mode is {self._mode}, and advantage {algorithm.adv_type} "
                "takes groups of group_size, but questions have any number of turns and agents: "
                "let it take group_ids, or set advantage_mode to trajectory"
            )
        self.nan_skipped = 0

    @property
    def looks_at_whole_batch(self) -> bool:
        """Whether advantages of one group depend on other groups."""
        return self._normalizes

    def assign(
        self,
        batch: TokenBatch,
        *,
        logprobs: Tensor | None = None,
        ref_logprobs: Tensor | None = None,
        values: Tensor | None = None,
    ) -> TokenCredit:
        """Compute the credit of this rank's share of a batch.

        Args:
            batch: whole groups, of any size.
            logprobs: of the policy that acted, `[R]`; where divergence is part of the reward.
            ref_logprobs: of the reference policy, `[R]`; likewise.
            values: of the state before each token, `[R]`; for advantages that take them.

        Raises:
            FloatingPointError: a reward is not finite, and `runner.on_nan` is `stop`.
        """
        episodes = Trajectories.of(batch)
        # One that is left out is in no other's baseline: a group of its own.
        alone = -1 - torch.arange(len(episodes.sizes))
        groups = Groups(torch.where(episodes.left_out, alone, episodes.indices))
        self._check_sizes(groups)
        finite = self._finite(episodes, groups) & ~episodes.left_out
        rewards = torch.where(finite, episodes.rewards, 0.0)
        # What a group is judged by: turns have rewards beside that of their episode.
        totals = rewards + torch.where(finite, episodes.turn_rewards, 0.0)
        kept = self._kept(totals, groups)
        counts = finite & kept
        learnt = batch.loss_mask
        if self._algorithm.mask_truncated:
            # The sequence that was cut, and not those of other agents of its episode.
            learnt = learnt & ~batch.truncated[batch.sequence_ids()]
        # A unit is a row; one that is an episode has the tokens of all its sequences.
        units = CreditUnits.of(batch, episodes, self._mode)
        rows_in_group = groups.ids[units.episodes]
        written = units.rows(batch.loss_mask)
        left = counts[units.episodes] & units.rows(learnt).any(1)
        # What is cut of a unit counts in what the unit is worth.
        mask = written & left.unsqueeze(1)
        padded = {
            name: None if flat is None else units.rows(flat)
            for name, flat in (
                ("logprobs", logprobs),
                ("ref_logprobs", ref_logprobs),
                ("values", values if self._takes_values else None),
            )
        }
        advantages, returns = compute_token_advantages(
            adv_type=self._algorithm.adv_type,
            rewards=self._rewards(batch, units, rewards, written, padded),
            response_mask=mask,
            group_ids=rows_in_group,
            **padded,
            **self._settings,
        )
        mask = units.flat(mask) & learnt
        advantages = torch.where(mask, units.flat(advantages), 0.0)
        returns = None if returns is None else units.flat(returns)
        if self._normalizes:
            advantages = normalize_advantages(advantages, mask, self._all_reduce)
        metrics = self._metrics(batch, episodes, groups, rewards, finite, kept)
        if self._algorithm.group_size > 1:
            unequal = groups.unequal(rewards) | groups.unequal(totals)
            metrics["groups_with_signal"] = self._mean(unequal, groups.labels >= 0)
        metrics["advantages_mean"] = self._mean(advantages, mask)
        if returns is not None:
            metrics["returns"] = self._mean(returns, mask)
        return TokenCredit(advantages, returns, mask, metrics, self._scales(batch, episodes, mask))

    def _scales(self, batch: TokenBatch, episodes: Trajectories, mask: Tensor) -> LossScales | None:
        if not self._levels:
            return None
        numbers = torch.repeat_interleave(torch.arange(len(episodes.sizes)), episodes.tokens)
        return loss_scales(
            self._levels, episodes=numbers, agents=batch.agents, turns=batch.turns, mask=mask
        )

    def _rewards(
        self,
        batch: TokenBatch,
        units: CreditUnits,
        rewards: Tensor,
        written: Tensor,
        padded: dict[str, Tensor | None],
    ) -> Tensor:
        """Rewards of units `[u]`; of tokens `[u, L]` if some have more than that of their end."""
        rewards = rewards[units.episodes] + units.later
        given = bool(batch.turn_rewards.any())
        if not self._in_reward and not given:
            return rewards
        place = last_valid(written.T).T
        # A response without a token has its reward all the same, in the mean of its group.
        place[:, -1] |= ~written.any(1)
        of_tokens = torch.where(place, rewards.unsqueeze(1), 0.0)
        if given:
            of_tokens = of_tokens + units.rows(batch.turn_rewards)
        if not self._in_reward:
            return of_tokens
        return kl_penalised_rewards(
            of_tokens,
            logprobs=padded["logprobs"],
            ref_logprobs=padded["ref_logprobs"],
            kl_beta=self._algorithm.kl_beta,
            kl_penalty_type=self._algorithm.kl_penalty_type,
            loss_mask=written,
        )

    # -- what is left out -------------------------------------------------------------------------

    def _check_sizes(self, groups: Groups) -> None:
        """Groups of different sizes need an advantage that can tell them apart."""
        size, sizes = self._algorithm.group_size, groups.sizes
        if self._takes_groups or not self._takes_size or bool((sizes == size).all()):
            return
        raise ValueError(
            f"advantage {self._algorithm.adv_type} takes groups of group_size {size}, but those of "
            f"this batch have {int(sizes.min())} to {int(sizes.max())} responses; let it take "
            "group_ids, the number of each response's group"
        )

    def _finite(self, episodes: Trajectories, groups: Groups) -> Tensor:
        """Mark the episodes `[m]` of groups all of whose rewards are finite."""
        finite = torch.isfinite(episodes.rewards)
        if finite.all():
            return finite
        row = int((~finite).nonzero()[0])
        message = (
            f"the reward of sample {int(episodes.numbers[row])} of prompt "
            f"{int(episodes.indices[row])} is {float(episodes.rewards[row])}"
        )
        if self._on_nan == "stop":
            raise FloatingPointError(
                f"{message}; look at the reward, or leave such groups out with runner.on_nan: skip"
            )
        self._warn(f"{message}; its group is left out")
        self.nan_skipped += int((~finite).sum())
        return groups.to_members(groups.all(finite))

    def _kept(self, rewards: Tensor, groups: Groups) -> Tensor:
        """Mark the episodes `[m]` of groups whose mean reward is within the bounds."""
        algorithm = self._algorithm
        if not algorithm.filter_rewards:
            return torch.ones_like(rewards, dtype=torch.bool)
        return groups.within(rewards, algorithm.rewards_lower_bound, algorithm.rewards_upper_bound)

    # -- metrics ----------------------------------------------------------------------------------

    def _metrics(
        self,
        batch: TokenBatch,
        episodes: Trajectories,
        groups: Groups,
        rewards: Tensor,
        finite: Tensor,
        kept: Tensor,
    ) -> dict[str, Metric]:
        written = pad_ragged(batch.loss_mask, episodes.tokens).sum(1)
        metrics: dict[str, Metric] = {
            "rewards": self._mean(rewards, finite),
            "response_length": self._mean(written),
            "response_length_max": MetricMax.of(written.to(self._device)),
            "prompt_length": self._mean(batch.prompts),
            "truncated": self._mean(episodes.truncated),
        }
        if self._of_agents:
            metrics["sequences_per_episode"] = self._mean(episodes.sizes)
            metrics["episodes_left_out"] = self._mean(episodes.left_out)
        if self._algorithm.filter_rewards:
            metrics["groups_kept"] = self._mean(kept & finite)
        return metrics

    def _mean(self, values: Tensor, where: Tensor | None = None) -> Metric:
        values = values.double()
        if where is not None:
            values = values[where]
        return MetricSum.of(values.sum().to(self._device), float(values.numel()))
