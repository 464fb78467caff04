"""TD3 (Fujimoto et al., 2018): a deterministic actor, with slow copies of actor and critics.

    a' = clip(mu'(s') + clip(noise, -c, c)),    noise ~ N(0, target_noise)
    y = R + g agg_k Q'_k(s', a')
    L_Q = sum_k 1/2 E[(Q_k(s, a) - y)^2]
    L_mu = -E[Q_1(s, mu(s))]

Noise is a part of half the range of actions. The actor learns every `critic_actor_ratio` steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.off_policy.heads import aggregate
from rlinf.algorithms.off_policy.targets import bellman_target, smooth_actions
from rlinf.data.replay import ReplayBatch
from rlinf.models.embodiment.base_policy import ForwardType
from rlinf.workers.actor.descent import Loss
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.off_policy.critic_learner import CriticLearner
from rlinf.workers.actor.registry import register_learner


@register_learner("embodied_td3")
class TD3Learner(CriticLearner):
    """Learns by TD3."""

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, model, place)
        algorithm, bounds = cfg.algorithm, model.action_range
        self._noise_scale, self._most_noise = algorithm.target_noise, algorithm.target_noise_clip
        self._low, self._high = (
            torch.tensor(bound, dtype=torch.float32, device=place.device)
            for bound in (bounds.low, bounds.high)
        )

    def _check_policy(self, model: nn.Module) -> None:
        super()._check_policy(model)
        if not model.action_range.deterministic:
            raise ValueError(
                "algorithm.loss_type embodied_td3 trains a policy without chance, to whose actions "
                "noise is added; set actor.model.distribution to deterministic"
            )

    def _in_target(self, name: str) -> bool:
        """Return whether targets are computed with a parameter: those of the actor are, too."""
        return not self.engine.model.is_value_parameter(name)

    def _targets(self, batch: ReplayBatch) -> Tensor:
        infer, inputs = self.engine.infer, batch.next_obs
        own = infer(reference=True, forward_type=ForwardType.SAC, forward_inputs=inputs)["actions"]
        noise = (self._draw_noise(len(batch)) * self._noise_scale).view_as(own)
        actions = smooth_actions(own, noise, self._most_noise, self._low, self._high)
        values = infer(
            reference=True, forward_type=ForwardType.SAC_Q, forward_inputs=inputs, actions=actions
        )
        return bellman_target(batch.rewards, self._bootstrap(batch), self._aggregate(values))

    def _actor_loss(self, batch: ReplayBatch) -> Loss:
        forward, inputs = self.engine.forward, batch.obs
        actions = forward(forward_type=ForwardType.SAC, forward_inputs=inputs)["actions"]
        values = forward(
            forward_type=ForwardType.SAC_Q, forward_inputs=inputs, actions=actions, frozen=True
        )
        value = aggregate(values, self.settings.actor_agg_q)
        loss = -value.sum() / self.settings.total
        return loss, {"actor_loss": loss}
