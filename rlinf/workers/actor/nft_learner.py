"""DiffusionNFT: a flow policy learns from good and bad plans, without log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.metrics import Metric
from rlinf.algorithms.nft import acting_share, nft_loss, optimality_of
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.models.embodiment.base_policy import ForwardType
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.embodied_credit import Credit
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.off_policy.target_network import TargetNetwork
from rlinf.workers.actor.registry import register_learner


@register_learner("embodied_nft")
class NFTLearner(EmbodiedLearner):
    """Learns from rollouts of a flow policy, by the errors of its velocities.

    The policy that acts is the old one, whose velocities are computed once for all draws of an
    update. It is the trained one before that update; or, with `algorithm.nft.tau` below 1, a copy
    that goes part of the way to the trained one after each update.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Raises:
        ValueError: the policy has no velocities.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        if ForwardType.NFT not in getattr(model, "forward_types", ()):
            raise ValueError(
                "algorithm.loss_type embodied_nft trains the velocities of a flow, and "
                f"{type(model).__name__} has no forward type 'nft'; use flow_policy, smolvla, "
                "openpi or gr00t"
            )
        super().__init__(cfg, model, place)
        draws = named_seed(place.seed, "actor", "nft", place.rank)
        self._draws = torch.Generator().manual_seed(draws)

    @property
    def acts_by_reference(self) -> bool:
        """See `Learner.acts_by_reference`."""
        return self.cfg.algorithm.nft.tau != 1.0 and not self.cfg.runner.only_eval

    def _make_engine(self, model: nn.Module) -> TrainEngine:
        """See `EmbodiedLearner`: the copy that acts, if there is one, follows the policy."""
        return self.policy_engine(model, keep_reference=self.acts_by_reference)

    def update(self) -> dict[str, float]:
        """See `EmbodiedLearner.update`."""
        metrics = super().update()
        if self.acts_by_reference:
            share = acting_share(self.cfg.algorithm.nft.tau, self.version)
            with self.acting_policy():
                copy = TargetNetwork(self.engine, lambda _: True, lambda _: True, share)
                copy.begin()
                copy.follow()
            metrics["actor/acting_share"] = share
        return metrics

    def _read_loss(self) -> None:
        """See `EmbodiedLearner`: there is no policy loss."""

    def _task(self, batch: EmbodiedBatch, credit: Credit, reference: Tensor | None) -> NFTTask:
        with self.acting_policy():
            return NFTTask(
                self.cfg, self.engine, batch, credit, self._draws, self.acts_by_reference
            )

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return super().own_state() | {"draws": self._draws.get_state()}

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        super().load_own_state(state, same_ranks)
        if same_ranks:
            self._draws.set_state(state["draws"])


class NFTTask:
    """The loss on samples of a rollout, for the update loop.

    Args:
        cfg: the configuration.
        engine: the policy, as it was when it acted, or with the copy that acted.
        batch: the rollout.
        credit: its advantages.
        draws: where noise and times come from.
        by_reference: the frozen copy of the engine has acted.
    """

    def __init__(
        self,
        cfg: Any,
        engine: TrainEngine,
        batch: EmbodiedBatch,
        credit: Credit,
        draws: torch.Generator,
        by_reference: bool = False,
    ) -> None:
        device, own = engine.device, cfg.algorithm.nft
        self._engine, self._micro_batch = engine, cfg.actor.micro_batch_size
        self._model = engine.model
        self._loss = {key: own[key] for key in ("beta", "form", "dpo_beta", "weight")}
        self._loss |= {key: cfg.algorithm[key] for key in ("loss_agg_func", "loss_length")}
        self._inputs = {
            name: value.flatten(0, 1).to(device) for name, value in batch.forward_inputs.items()
        }
        self._plans = self._model.within_range(self._inputs["chain"][:, -1])
        self._mask = credit.mask.flatten(0, 1).to(device)
        self._lengths = None
        if cfg.algorithm.loss_agg_func != "token-mean":
            self._lengths = credit.lengths(per_chunk=False).flatten(0, 1).to(device)
        found = optimality_of(credit.advantages.flatten(0, 1), own.adv_clip_max)
        self._optimality = found.to(device)
        self.num_samples = len(self._plans)
        shape = self.num_samples, own.draws
        self._time = torch.rand(shape, generator=draws).to(device)
        drawn = torch.randn(*shape, self._plans.shape[1], generator=draws)
        self._noise = drawn.to(device)
        self._old = self._old_velocities(by_reference)

    def norm(self, rows: Tensor, all_reduce: Callable[[Tensor], Tensor] | None) -> LossNorm:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        lengths = self._of(self._lengths, rows)
        return LossNorm.count(self._mask[rows], loss_mask_sum=lengths, all_reduce=all_reduce)

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return rows.split(self._micro_batch or len(rows))

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return nft_loss(
            velocity=self._model.executed(self._engine.forward(**self._at(rows))),
            old_velocity=self._model.executed(self._old[rows]),
            noise=self._model.executed(self._noise[rows]),
            actions=self._model.executed(self._plans[rows]),
            time=self._time[rows],
            optimality=self._optimality[rows],
            loss_mask=self._mask[rows],
            loss_mask_sum=self._of(self._lengths, rows),
            norm=norm,
            **self._loss,
        )

    @staticmethod
    def _of(lengths: Tensor | None, rows: Tensor) -> Tensor | None:
        return None if lengths is None else lengths[rows]

    def _old_velocities(self, by_reference: bool) -> Tensor:
        """Return the velocities of the policy that acted, `[n, K, W]`."""
        parts = self.split(torch.arange(self.num_samples))
        found = [self._engine.infer(**self._at(rows), reference=by_reference) for rows in parts]
        return torch.cat(found)

    def _at(self, rows: Tensor) -> dict[str, Any]:
        """Return the arguments of the forward pass that says the velocities of some samples."""
        time = self._time[rows]
        t = time[..., None]
        return {
            "forward_type": ForwardType.NFT,
            "forward_inputs": {name: value[rows] for name, value in self._inputs.items()},
            "x": t * self._noise[rows] + (1.0 - t) * self._plans[rows, None],
            "time": time,
        }
