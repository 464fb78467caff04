"""From rewards of responses to advantages of tokens: what counts, and how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.advantages import normalize_advantages
from rlinf.algorithms.kl import kl_penalised_rewards
from rlinf.algorithms.masks import groups_unequal, groups_within, in_groups, last_valid
from rlinf.algorithms.metrics import Metric, MetricMax, MetricSum
from rlinf.algorithms.registry import advantage_registry, normalizes
from rlinf.algorithms.utils import compute_token_advantages
from rlinf.data.token_batch import TokenBatch, pad_ragged, valid_entries


@dataclass(frozen=True)
class TokenCredit:
    """What the learner makes of a batch of R response tokens.

    Attributes:
        advantages: `[R]`, zero where the mask is false.
        returns: `[R]`; None if the advantage has none.
        mask: bool `[R]`, what counts in the loss.
        metrics: of this rank, to be merged.
    """

    advantages: Tensor
    returns: Tensor | None
    mask: Tensor
    metrics: dict[str, Metric]


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
        self._normalizes = algorithm.normalize_advantages and normalizes(algorithm.adv_type)
        self._in_reward = algorithm.kl_in == "reward" and algorithm.kl_beta > 0
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
        """Computes the credit of this rank's share of a batch.

        Args:
            batch: groups side by side.
            logprobs: of the policy that acted, `[R]`; where divergence is part of the reward.
            ref_logprobs: of the reference policy, `[R]`; likewise.
            values: of the state before each token, `[R]`; for advantages that take them.

        Raises:
            FloatingPointError: a reward is not finite, and `runner.on_nan` is `stop`.
        """
        finite = self._finite(batch)
        rewards = torch.where(finite, batch.rewards, 0.0)
        kept = self._kept(rewards)
        counts = finite & kept
        if self._algorithm.mask_truncated:
            counts = counts & ~batch.truncated
        rows = valid_entries(batch.responses)
        mask = rows & counts.unsqueeze(1)
        padded = {
            name: None if flat is None else pad_ragged(flat, batch.responses)
            for name, flat in (
                ("logprobs", logprobs),
                ("ref_logprobs", ref_logprobs),
                ("values", values if self._takes_values else None),
            )
        }
        advantages, returns = compute_token_advantages(
            adv_type=self._algorithm.adv_type,
            rewards=self._rewards(rewards, rows, padded),
            response_mask=mask,
            **padded,
            **self._settings,
        )
        advantages = advantages[rows]
        returns = None if returns is None else returns[rows]
        mask = mask[rows]
        if self._normalizes:
            advantages = normalize_advantages(advantages, mask, self._all_reduce)
        metrics = self._metrics(batch, rewards, finite, kept, advantages, returns, mask)
        return TokenCredit(advantages, returns, mask, metrics)

    def _rewards(self, rewards: Tensor, rows: Tensor, padded: dict[str, Tensor | None]) -> Tensor:
        """Rewards of responses `[n]`, or of tokens `[n, L]` if divergence is a part of them."""
        if not self._in_reward:
            return rewards
        place = last_valid(rows.T).T
        # A response without a token has its reward all the same, in the mean of its group.
        place[:, -1] |= ~rows.any(1)
        return kl_penalised_rewards(
            torch.where(place, rewards.unsqueeze(1), 0.0),
            logprobs=padded["logprobs"],
            ref_logprobs=padded["ref_logprobs"],
            kl_beta=self._algorithm.kl_beta,
            kl_penalty_type=self._algorithm.kl_penalty_type,
            loss_mask=rows,
        )

    # -- what is left out -------------------------------------------------------------------------

    def _finite(self, batch: TokenBatch) -> Tensor:
        """Marks the responses `[n]` of groups all of whose rewards are finite."""
        finite = torch.isfinite(batch.rewards)
        if finite.all():
            return finite
        row = int((~finite).nonzero()[0])
        size = self._algorithm.group_size
        message = (
            f"the reward of sample {row % size} of prompt {int(batch.indices[row])} is "
            f"{float(batch.rewards[row])}"
        )
        if self._on_nan == "stop":
            raise FloatingPointError(
                f"{message}; look at the reward, or leave such groups out with runner.on_nan: skip"
            )
        self._warn(f"{message}; its group is left out")
        self.nan_skipped += int((~finite).sum())
        return in_groups(finite, size).all(1).repeat_interleave(size)

    def _kept(self, rewards: Tensor) -> Tensor:
        """Marks the responses `[n]` of groups whose mean reward is within the bounds."""
        algorithm = self._algorithm
        if not algorithm.filter_rewards:
            return torch.ones_like(rewards, dtype=torch.bool)
        return groups_within(
            rewards,
            group_size=algorithm.group_size,
            lower=algorithm.rewards_lower_bound,
            upper=algorithm.rewards_upper_bound,
        )

    # -- metrics ----------------------------------------------------------------------------------

    def _metrics(
        self,
        batch: TokenBatch,
        rewards: Tensor,
        finite: Tensor,
        kept: Tensor,
        advantages: Tensor,
        returns: Tensor | None,
        mask: Tensor,
    ) -> dict[str, Metric]:
        def mean(values: Tensor, where: Tensor | None = None) -> Metric:
            values = values.double()
            if where is not None:
                values = values[where]
            return MetricSum.of(values.sum().to(self._device), float(values.numel()))

        metrics: dict[str, Metric] = {
            "rewards": mean(rewards, finite),
            "response_length": mean(batch.responses),
            "response_length_max": MetricMax.of(batch.responses.to(self._device)),
            "prompt_length": mean(batch.prompts),
            "truncated": mean(batch.truncated),
            "advantages_mean": mean(advantages, mask),
        }
        size = self._algorithm.group_size
        if size > 1:
            metrics["groups_with_signal"] = mean(groups_unequal(rewards, size))
        if self._algorithm.filter_rewards:
            metrics["groups_kept"] = mean(kept & finite)
        if returns is not None:
            metrics["returns"] = mean(returns, mask)
        return metrics
