"""Implicit Q-learning on datasets; formulas are in `rlinf.algorithms.iql`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rlinf.algorithms.iql import advantage_weights, expectile_loss, weighted_regression_loss
from rlinf.algorithms.off_policy.heads import aggregate
from rlinf.algorithms.off_policy.losses import critic_loss
from rlinf.algorithms.off_policy.targets import bellman_target
from rlinf.data.demonstrations.transitions import ChunkTransitions, Transitions
from rlinf.hybrid_engines.fsdp.optimizer import OptimizerSpec
from rlinf.models.embodiment.base_policy import ForwardType
from rlinf.workers.actor.descent import Descent, Loss
from rlinf.workers.actor.learner import ACTOR, LearnerPlace
from rlinf.workers.actor.off_policy.target_network import TargetNetwork
from rlinf.workers.actor.offline.config import IQLKeys
from rlinf.workers.actor.offline.demonstration_learner import DemonstrationLearner
from rlinf.workers.actor.registry import register_learner
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape

CRITIC, VALUE = "critic", "value"
"""Names of the optimisers of the Q-functions and of the value function."""
_FORWARD_TYPES = (ForwardType.IQL_ACTOR, ForwardType.IQL_CRITIC, ForwardType.IQL_VALUE)


@dataclass
class _Piece:
    """A micro-batch.

    Attributes:
        data: its transitions; observations as the policy takes them, rewards scaled.
        target: Q of the targets for the data's actions, `[n]`.
    """

    data: Transitions
    target: Tensor


@register_learner("offline_iql", schema=IQLKeys)
class IQLLearner(DemonstrationLearner):
    """Learns Q-functions, a value function and a policy from the same batches.

    A gradient step is one of the value function, of the policy, of the Q-functions, and a move of
    the targets, in this order; each sees the weights that those before it made.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Raises:
        ValueError: the policy has not what is trained, or the data do not fit it.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        _require_heads(model)
        super().__init__(cfg, model, place)
        algorithm, own = cfg.algorithm, cfg.actor
        of_critic, of_value = model.is_critic_parameter, model.is_value_parameter
        critic_optim = own.critic_optim or own.optim
        engine = self.policy_engine(
            model,
            keep_reference=True,
            optimizers={
                ACTOR: OptimizerSpec(own.optim, lambda n: not (of_critic(n) or of_value(n))),
                CRITIC: OptimizerSpec(critic_optim, of_critic),
                VALUE: OptimizerSpec(critic_optim, of_value),
            },
        )
        shape = UpdateShape(global_batch=self.batch_size, shuffles=False)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, place.seed, shape))
        self._target = TargetNetwork(engine, of_critic, lambda _: True, algorithm.tau)
        self._data = ChunkTransitions(
            self.demos.to(engine.device), own.model.num_action_chunks, algorithm.gamma
        )
        self._reward_scale = 1.0
        if algorithm.normalize_rewards:
            self._reward_scale = 1.0 / self._data.return_deviation
        self._expectile, self._temperature = algorithm.expectile, algorithm.temperature
        self._max_weight, self._agg_q = algorithm.max_weight, algorithm.agg_q
        self._target_freq = algorithm.target_update_freq
        self._micro_batch = own.micro_batch_size
        self._gradient_steps = 0

    def update(self) -> dict[str, float]:
        """Make `runner.local_update_steps` gradient steps; return metrics over all ranks."""
        engine = self.engine
        engine.onload()
        self._target.begin()
        batches = self.next_rows()
        if self.fingerprints is not None:
            self.fingerprints.batch({"rows": batches})
        descent = Descent(self, (VALUE, ACTOR, CRITIC))
        for rows in batches:
            self._gradient_step(rows, descent)
        self.version += 1
        metrics = descent.means() | descent.outcomes() | self.data_metrics()
        metrics["data/reward_scale"] = self._reward_scale
        metrics["nan_skipped"] = float(engine.skipped)
        return metrics

    def _gradient_step(self, rows: Tensor, descent: Descent) -> None:
        for optimizer in self.engine.optimizers.values():
            optimizer.set_progress(self._gradient_steps)
        self._gradient_steps += 1
        pieces = [self._piece(part) for part in rows.split(self._micro_batch or len(rows))]
        descent.step(VALUE, pieces, self._value_loss, rows)
        descent.step(ACTOR, pieces, self._actor_loss, rows)
        descent.step(CRITIC, pieces, self._critic_loss, rows)
        if self._gradient_steps % self._target_freq == 0:
            self._target.follow()

    def _piece(self, rows: Tensor) -> _Piece:
        data, keep = self._data.take(rows), self.engine.model.replay_inputs
        data = Transitions(
            keep(data.obs),
            data.actions,
            data.valid,
            data.rewards * self._reward_scale,
            data.bootstrap,
            keep(data.next_obs),
        )
        values = self.engine.infer(
            reference=True,
            forward_type=ForwardType.IQL_CRITIC,
            forward_inputs=data.obs,
            actions=data.actions,
        )
        return _Piece(data, aggregate(values, self._agg_q))

    def _value_loss(self, piece: _Piece) -> Loss:
        values = self.engine.forward(
            forward_type=ForwardType.IQL_VALUE, forward_inputs=piece.data.obs
        )
        loss = expectile_loss(values, piece.target, self._expectile, self.batch_size)
        return loss, {"value/loss": loss, "value/values": values.sum() / self.batch_size}

    def _actor_loss(self, piece: _Piece) -> Loss:
        data, total = piece.data, self.batch_size
        advantages = piece.target - self._values(data.obs)
        weights = advantage_weights(advantages, self._temperature, self._max_weight)
        out = self.engine.forward(
            forward_type=ForwardType.IQL_ACTOR, forward_inputs=data.obs, actions=data.actions
        )
        loss = weighted_regression_loss(out["logprobs"], data.valid, weights, total)
        return loss, {
            "actor/loss": loss,
            "actor/action_error": out["errors"].abs().mean(1).sum() / total,
            "actor/advantages": advantages.sum() / total,
            "actor/weights": weights.sum() / total,
            "actor/weights_clipped": (weights >= self._max_weight).sum() / total,
        }

    def _critic_loss(self, piece: _Piece) -> Loss:
        data, total = piece.data, self.batch_size
        target = bellman_target(data.rewards, data.bootstrap, self._values(data.next_obs))
        values = self.engine.forward(
            forward_type=ForwardType.IQL_CRITIC, forward_inputs=data.obs, actions=data.actions
        )
        loss = critic_loss(values, target, total)
        return loss, {
            "critic/loss": loss,
            "critic/q_values": values.sum() / (total * len(values)),
            "critic/q_targets": target.sum() / total,
        }

    def _values(self, obs: dict[str, Tensor]) -> Tensor:
        """Return values of states, `[n]`, without gradients."""
        return self.engine.infer(forward_type=ForwardType.IQL_VALUE, forward_inputs=obs)

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return super().own_state() | {
            "gradient_steps": self._gradient_steps,
            "reward_scale": self._reward_scale,
        }

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        super().load_own_state(state, same_ranks)
        self._gradient_steps = state["gradient_steps"]
        # Q-functions have learned in these units.
        self._reward_scale = state["reward_scale"]


def _require_heads(model: nn.Module) -> None:
    """Refuse a policy without what implicit Q-learning trains."""
    known = getattr(model, "forward_types", ())
    lacking = [kind.value for kind in _FORWARD_TYPES if kind not in known]
    if lacking:
        raise ValueError(
            "algorithm.loss_type offline_iql needs a policy with the forward types "
            f"{', '.join(lacking)}, which {type(model).__name__} does not have; use mlp_policy or "
            "cnn_policy, or give it these methods (see rlinf.models.embodiment.base_policy)"
        )
    names = [name for name, _ in model.named_parameters()]
    for key, belongs in (
        ("add_q_head", model.is_q_parameter),
        ("add_value_head", model.is_value_parameter),
    ):
        if not any(map(belongs, names)):
            raise ValueError(
                "algorithm.loss_type offline_iql trains Q-functions and a value function; set "
                f"actor.model.{key} to true"
            )
