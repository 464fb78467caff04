"""Soft actor-critic (Haarnoja et al., 2018), of real numbers and of choices.

    y = R + g (agg_k Q'_k(s', a') - alpha log pi(a'|s')),    a' ~ pi(.|s')
    L_Q = sum_k 1/2 E[(Q_k(s, a) - y)^2]
    L_pi = E[alpha log pi(a|s) - agg_k Q_k(s, a)],    a ~ pi(.|s)
    L_alpha = alpha (H(pi) - H_target)

With choices the expectations over actions are exact (Christodoulou, 2019).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.off_policy.heads import aggregate
from rlinf.algorithms.off_policy.losses import actor_loss, actor_loss_of_choices
from rlinf.algorithms.off_policy.targets import (
    bellman_target,
    soft_value,
    soft_value_of_choices,
)
from rlinf.data.replay import ReplayBatch
from rlinf.models.embodiment.base_policy import ForwardType
from rlinf.workers.actor.descent import Loss
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.off_policy.critic_learner import CriticLearner
from rlinf.workers.actor.off_policy.temperature import Temperature
from rlinf.workers.actor.registry import register_learner
from rlinf.workers.actor.tally import Tally

_OF_CHOICES = 0.5
"""Part of the greatest entropy of choices that alpha is tuned for, unless the config says."""


@register_learner("embodied_sac")
class SACLearner(CriticLearner):
    """Learns by soft actor-critic.

    Attributes:
        temperature: weight of entropy.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        choices, chunks = model.action_range.choices, model.num_action_chunks
        self._choices = choices is not None
        super().__init__(cfg, model, place)
        if self._choices:
            target = _OF_CHOICES * chunks * sum(math.log(count) for count in choices)
        else:
            target = -float(model.sac_width)
        tuning = cfg.algorithm.entropy_tuning
        self.temperature = Temperature(tuning, target, place.device, place.total_steps)
        self._backup_entropy = cfg.algorithm.backup_entropy
        self._entropy: list[Tensor] = []

    def _check_policy(self, model: nn.Module) -> None:
        super()._check_policy(model)
        if not (self._choices or model.draws_within_bounds):
            raise ValueError(
                "algorithm.loss_type embodied_sac needs actions whose log-probability is that of "
                "what is carried out, and this policy clips them; set actor.model.distribution to "
                "squashed_gaussian"
            )

    # -- critics --------------------------------------------------------------------------------

    def _gradient_step(self, batch: ReplayBatch, *args: Any) -> None:
        self._alpha = self.temperature.alpha
        super()._gradient_step(batch, *args)

    def _values(self, batch: ReplayBatch) -> Tensor:
        if not self._choices:
            return super()._values(batch)
        values = self.engine.forward(forward_type=ForwardType.SAC_Q, forward_inputs=batch.obs)
        return self._of_actions(values, batch.actions)

    def _targets(self, batch: ReplayBatch) -> Tensor:
        alpha = self._alpha if self._backup_entropy else None
        infer = self.engine.infer
        if self._choices:
            seen = infer(forward_type=ForwardType.SAC, forward_inputs=batch.next_obs)
            values = infer(
                reference=True, forward_type=ForwardType.SAC_Q, forward_inputs=batch.next_obs
            )
            value = soft_value_of_choices(self._aggregate(values), seen["log_probs"], alpha)
        else:
            seen = infer(
                forward_type=ForwardType.SAC,
                forward_inputs=batch.next_obs,
                noise=self._draw_noise(len(batch)),
            )
            values = infer(
                reference=True,
                forward_type=ForwardType.SAC_Q,
                forward_inputs=batch.next_obs,
                actions=seen["actions"],
            )
            value = soft_value(self._aggregate(values), seen["logprobs"], alpha)
        return bellman_target(batch.rewards, self._bootstrap(batch), value)

    def _of_actions(self, values: Tensor, actions: Tensor) -> Tensor:
        """Return the Q-values `[Q, n]` of the choices that were made."""
        index = self.engine.model.action_head.scaled(actions)
        return values.gather(-1, index[None, :, :, None].expand(len(values), -1, -1, 1)).sum((2, 3))

    # -- actor ----------------------------------------------------------------------------------

    def _actor_loss(self, batch: ReplayBatch) -> Loss:
        forward, how, total = self.engine.forward, self.settings.actor_agg_q, self.settings.total
        if self._choices:
            log_probs = forward(forward_type=ForwardType.SAC, forward_inputs=batch.obs)["log_probs"]
            values = self.engine.infer(forward_type=ForwardType.SAC_Q, forward_inputs=batch.obs)
            value = aggregate(values, how)
            loss = actor_loss_of_choices(value, log_probs, self._alpha, total)
            entropy = -(log_probs.exp() * log_probs).detach().sum()
        else:
            noise = self._draw_noise(len(batch))
            drawn = forward(forward_type=ForwardType.SAC, forward_inputs=batch.obs, noise=noise)
            values = forward(
                forward_type=ForwardType.SAC_Q,
                forward_inputs=batch.obs,
                actions=drawn["actions"],
                frozen=True,
            )
            loss = actor_loss(aggregate(values, how), drawn["logprobs"], self._alpha, total)
            entropy = -drawn["logprobs"].detach().sum()
        entropy = entropy / total
        self._entropy.append(entropy)
        return loss, {"actor_loss": loss, "entropy": entropy}

    def _after_actor(self, tally: Tally) -> None:
        """Tune the temperature to the entropy that the actor had."""
        entropy, self._entropy = torch.stack(self._entropy).sum(), []
        if self.place.world_size > 1 and self.temperature.target_entropy is not None:
            entropy = self.engine.all_reduce(entropy)
        tally.add({"alpha": self._alpha / self.place.world_size})
        self.temperature.tune(entropy, self.gradient_steps - 1)

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return super().own_state() | {"temperature": self.temperature.state()}

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        super().load_own_state(state, same_ranks)
        self.temperature.load_state(state["temperature"])
