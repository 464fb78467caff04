"""Learners from a replay buffer and rollouts to feed them: what their tests share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlinf.algorithms.masks import until_done_in_chunk
from rlinf.data.embodied import EmbodiedBatch, FinalObservations
from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.registry import learner_of
from tests.unit_tests.workers.actor.learning import SPEC, make_cfg

CHOICES = EnvSpec(obs_dim=5, action_dim=2, action_choices=[3, 2], action_low=[1, 0])
SAC: dict[str, Any] = {
    "algorithm": {
        "adv_type": "embodied_sac",
        "loss_type": "embodied_sac",
        "gamma": 0.9,
        "update_epoch": 2,
        "tau": 0.1,
        "replay_buffer": {"cache_size": 500},
        "entropy_tuning": {"initial_alpha": 0.3},
    },
    "actor.global_batch_size": 16,
    "actor.model": {
        "model_type": "mlp_policy",
        "hidden_sizes": [16, 12],
        "activation": "relu",
        "add_q_head": True,
        "distribution": "squashed_gaussian",
        "state_dependent_std": True,
    },
}
OF_CHOICES: dict[str, Any] = {
    **SAC,
    "actor.model": {"model_type": "mlp_policy", "hidden_sizes": [16], "add_q_head": True},
}

TD3: dict[str, Any] = {
    **SAC,
    "algorithm": {
        "adv_type": "embodied_sac",
        "loss_type": "embodied_td3",
        "gamma": 0.9,
        "update_epoch": 2,
        "tau": 0.1,
        "replay_buffer": {"cache_size": 500},
    },
    "actor.model": {
        "model_type": "mlp_policy",
        "hidden_sizes": [16, 12],
        "activation": "relu",
        "add_q_head": True,
        "distribution": "deterministic",
    },
}
CROSSQ: dict[str, Any] = {
    **SAC,
    "algorithm": {k: v for k, v in SAC["algorithm"].items() if k != "tau"}
    | {"loss_type": "embodied_crossq"},
    "actor.model": {**SAC["actor.model"], "q_head_type": "crossq"},
}


def make_sac_cfg(changes: dict[str, Any] | None = None, base: dict[str, Any] = SAC) -> Any:
    """The config of SAC with some keys, given by path, set to something else."""
    return make_cfg({**base, **(changes or {})})


def make_off_policy(cfg: Any, spec: EnvSpec = SPEC, *, deferred: bool = False, **place: Any) -> Any:
    """A learner on the CPU, whose policy has statistics of observations."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = get_model(cfg.actor.model, spec, torch.float32, deferred=deferred)
    assert all(parameter.is_meta == deferred for parameter in policy.parameters())
    seen = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)) * 2 + 1
    policy.update_normalizer({"states": seen})
    said: list[str] = []
    where = LearnerPlace(torch.device("cpu"), seed=3, warn=said.append, **place)
    learner = learner_of(cfg)(cfg, policy, where)
    learner.said = said
    return learner


def replay_rollout(
    policy: nn.Module, steps: int = 12, envs: int = 8, seed: int = 0, choices: bool = False
) -> EmbodiedBatch:
    """Random transitions; episodes end anywhere in a chunk, by termination or truncation."""
    g = torch.Generator().manual_seed(seed)
    chunks, width = policy.num_action_chunks, policy.action_dim
    states = torch.randn(steps, envs, 5, generator=g)
    if choices:
        top = torch.tensor(policy.action_range.choices)
        actions = (torch.rand(steps, envs, chunks, width, generator=g) * top).long()
        actions = actions + policy.action_head.low
    else:
        actions = torch.rand(steps, envs, chunks, width, generator=g) * 1.8 - 0.9
    at = torch.randint(0, chunks, (steps, envs, 1), generator=g)
    ends = (torch.rand(steps, envs, 1, generator=g) < 0.3) & (torch.arange(chunks) == at)
    is_cut = torch.rand(steps, envs, 1, generator=g) < 0.5
    ended = ends.any(-1)
    where = ended.nonzero()
    begins = torch.cat([torch.ones(1, envs, dtype=torch.bool), ended[:-1]])
    return EmbodiedBatch(
        forward_inputs={"states": states, "action": actions.flatten(2)},
        prev_logprobs=torch.zeros(steps, envs, chunks * width),
        prev_values=torch.zeros(steps + 1, envs, 1),
        bootstrap_values=torch.zeros(steps, envs, 1),
        rewards=torch.randn(steps, envs, chunks, generator=g),
        terminations=ends & ~is_cut,
        truncations=ends & is_cut,
        valid=until_done_in_chunk(ends),
        begins=begins,
        actions=actions,
        intervened=torch.zeros_like(ends),
        versions=torch.zeros(steps, envs, dtype=torch.long),
        finite=torch.ones(steps, envs, dtype=torch.bool),
        final=FinalObservations(
            where[:, 0], where[:, 1], {"states": torch.randn(len(where), 5, generator=g)}
        ),
    )


def feed(learner: Any, batch: EmbodiedBatch) -> dict[str, float]:
    """Hand a rollout to a learner and let it learn; return both kinds of metrics."""
    metrics = learner.prepare(batch, range(batch.rewards.shape[1]))
    return metrics | learner.update()


def weights_of(learner: Any) -> dict[str, torch.Tensor]:
    """All weights and buffers, those of the targets included."""
    found = {name: tensor.clone() for name, tensor in learner.engine.full_tensors()}
    if learner.engine.reference is not None:
        for name, tensor in learner.engine.reference.state_dict().items():
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            found[f"target.{name}"] = whole.clone()
    if hasattr(learner, "temperature"):
        found["alpha"] = learner.temperature.alpha.clone()
    return found


class NoiseTable:
    """Noise whose rows are taken in order, whoever takes how many."""

    def __init__(self, width: int, rows: slice = slice(None), batch: int = 16, seed: int = 5):
        g = torch.Generator().manual_seed(seed)
        # Blocks of a whole batch, of which a rank takes its rows.
        table = torch.randn(400, batch, width, generator=g)[:, rows]
        self._rows, self._next = table.flatten(0, 1), 0

    def __call__(self, count: int) -> torch.Tensor:
        self._next += count
        return self._rows[self._next - count : self._next]
