"""CrossQ (Bhatt et al., 2024): SAC without slow copies, its critics normalised over the batch.

What was done and what is done next pass the Q-functions together, so that both are normalised
alike:

    [Q(s, a), Q(s', a')] = Q([s, s'], [a, a']),    a' ~ pi(.|s')
    y = R + g (agg_k Q_k(s', a') - alpha log pi(a'|s')),    without gradient

Actor and temperature learn as in SAC, from Q-functions that use their running statistics.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from rlinf.algorithms.off_policy.targets import bellman_target, soft_value
from rlinf.data.replay import ReplayBatch
from rlinf.models.embodiment.base_policy import ForwardType
from rlinf.workers.actor.off_policy.sac import SACLearner
from rlinf.workers.actor.registry import register_learner


@register_learner("embodied_crossq")
class CrossQLearner(SACLearner):
    """Learns by CrossQ; on one rank, which the config is checked for: batches stay whole."""

    forward_types: ClassVar[tuple[ForwardType, ...]] = (
        ForwardType.SAC,
        ForwardType.SAC_Q,
        ForwardType.CROSSQ,
    )
    keeps_target: ClassVar[bool] = False

    def _check_policy(self, model: nn.Module) -> None:
        super()._check_policy(model)
        if self._choices or model.q_head_type != "crossq":
            raise ValueError(
                "algorithm.loss_type embodied_crossq needs actions that are real numbers and "
                "Q-functions that are normalised over the batch; set actor.model.q_head_type to "
                "crossq"
            )

    def _values_and_targets(self, batch: ReplayBatch) -> tuple[Tensor, Tensor]:
        drawn = self.engine.infer(
            forward_type=ForwardType.SAC,
            forward_inputs=batch.next_obs,
            noise=self._draw_noise(len(batch)),
        )
        values, after = self.engine.forward(
            forward_type=ForwardType.CROSSQ,
            forward_inputs=batch.obs,
            actions=batch.actions,
            next_inputs=batch.next_obs,
            next_actions=drawn["actions"],
        )
        with torch.no_grad():
            alpha = self._alpha if self._backup_entropy else None
            value = soft_value(self._aggregate(after), drawn["logprobs"], alpha)
            target = bellman_target(batch.rewards, self._bootstrap(batch), value)
        return values, target
