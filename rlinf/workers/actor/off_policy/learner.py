"""Learning from a replay buffer: rollouts go in, batches come out, targets follow the critics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlinf.data.embodied import EmbodiedBatch, RolloutNeeds
from rlinf.data.replay import MixedReplay, ReplayBatch, TrajectoryReplayBuffer
from rlinf.data.replay.build import ReplayPlace, build_replay
from rlinf.hybrid_engines.fsdp.optimizer import OptimizerSpec
from rlinf.hybrid_engines.initial_weights import initial_weights
from rlinf.models.embodiment.base_policy import BasePolicy, ForwardType
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.descent import Descent, Loss
from rlinf.workers.actor.learner import ACTOR, LearnerPlace
from rlinf.workers.actor.off_policy.demo_buffer import build_with_demos
from rlinf.workers.actor.off_policy.rollout_rows import RolloutRows
from rlinf.workers.actor.off_policy.settings import OffPolicySettings
from rlinf.workers.actor.off_policy.target_network import TargetNetwork
from rlinf.workers.actor.policy_ages import PolicyAges
from rlinf.workers.actor.rollout_learner import RolloutLearner
from rlinf.workers.actor.tally import Tally
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape

CRITIC = "critic"
"""Name of the optimiser of the Q-functions."""
_REPLAY = "replay"
_MOST_SHIFT = 4
"""Pixels that DrQ (Kostrikov et al., 2021) shifts pictures by, at most."""


class OffPolicyLearner(RolloutLearner):
    """Learns from a replay buffer that its rollouts fill.

    A subclass says what the losses of critics and actor are, and what to do after a step of the
    actor.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32; or built
            without weights.
        place: where it runs.

    Attributes:
        forward_types: forward passes that the policy must have.
        keeps_target: whether there is a slow copy of the critics.
        replay: the transitions of this rank; None in a run that only evaluates.
        gradient_steps: made so far.
        settings: how batches become gradient steps.
    """

    defers_weights = True
    forward_types: ClassVar[tuple[ForwardType, ...]] = (ForwardType.SAC, ForwardType.SAC_Q)
    keeps_target: ClassVar[bool] = True
    replay: TrajectoryReplayBuffer | MixedReplay | None

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, place)
        self._check_policy(model)
        self.settings = OffPolicySettings.of(cfg, place.world_size)
        of_critic = model.is_critic_parameter
        optimizers = {
            ACTOR: OptimizerSpec(cfg.actor.optim, lambda name: not of_critic(name)),
            CRITIC: OptimizerSpec(cfg.actor.critic_optim or cfg.actor.optim, of_critic),
        }
        engine = self.policy_engine(model, keep_reference=self.keeps_target, optimizers=optimizers)
        shuffle = named_seed(place.seed, "actor", "shuffle", place.rank)
        shape = UpdateShape(global_batch=cfg.actor.global_batch_size)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, shuffle, shape))
        self._target = self._make_target() if self.keeps_target else None
        noise = named_seed(place.seed, "actor", "noise", place.rank)
        self._noise = torch.Generator(place.device).manual_seed(noise)
        # The same on all ranks.
        self._heads = torch.Generator().manual_seed(named_seed(place.seed, "actor", "heads"))
        self._rows = RolloutRows(cfg, engine, place.warn)
        self.gradient_steps = 0
        self._demonstrated: dict[str, float] = {}
        self.replay = None if cfg.runner.only_eval else self._make_replay()
        self._added: EmbodiedBatch | None = None
        self._errors: list[Tensor] = []

    @classmethod
    def rollout_needs(cls, cfg: Any) -> RolloutNeeds:
        """See `Learner.rollout_needs`: ends of episodes are bootstrapped from."""
        given = cfg.algorithm.random_steps
        if given is None:
            size = cfg.algorithm.replay_buffer.min_buffer_size
            given = size * cfg.actor.model.num_action_chunks
        return RolloutNeeds(final_observations=True, random_steps=given)

    def _check_policy(self, model: nn.Module) -> None:
        """Refuse a policy that has not what this learner trains.

        Raises:
            ValueError: a forward pass or the Q-functions are missing.
        """
        name, known = type(model).__name__, getattr(model, "forward_types", ())
        lacking = [kind.value for kind in self.forward_types if kind not in known]
        if lacking:
            raise ValueError(
                f"algorithm.loss_type {self.cfg.algorithm.loss_type} needs a policy with the "
                f"forward types {', '.join(lacking)}, which {name} does not have; use mlp_policy "
                "or cnn_policy, or give it these methods (see rlinf.models.embodiment.base_policy)"
            )
        if self.cfg.actor.enable_drq and type(model).shift_pictures is BasePolicy.shift_pictures:
            raise ValueError(
                f"actor.enable_drq shifts pictures, and {name} looks at none; leave it out, or use "
                "cnn_policy"
            )
        if not model.num_q_heads:
            raise ValueError(
                f"algorithm.loss_type {self.cfg.algorithm.loss_type} trains Q-functions, and the "
                "policy has none; set actor.model.add_q_head to true"
            )

    def _make_target(self) -> TargetNetwork:
        model, algorithm = self.engine.model, self.cfg.algorithm
        copies_encoder = algorithm.target_update_type == "q_head_only"

        def slowly(name: str) -> bool:
            of_encoder = model.is_critic_parameter(name) and not model.is_q_parameter(name)
            return not (copies_encoder and of_encoder)

        return TargetNetwork(self.engine, self._in_target, slowly, algorithm.tau)

    def _in_target(self, name: str) -> bool:
        """Return whether targets are computed with the parameter of this name."""
        return self.engine.model.is_critic_parameter(name)

    def _make_replay(self) -> TrajectoryReplayBuffer | MixedReplay:
        algorithm = self.cfg.algorithm
        if algorithm.demo_buffer is None:
            return build_replay(algorithm.replay_buffer, self._replay_place())
        place = self._replay_place()
        mixed, self._demonstrated = build_with_demos(self.cfg, self.engine.model, place, self.tell)
        if initial_weights(self.cfg) is None:
            # What is demonstrated is far from what the first actions lead to.
            seen = mixed.demos.float_observations()
            self.engine.model.update_normalizer(seen, all_reduce=self._all_reduce)
        return mixed

    def _replay_place(self) -> ReplayPlace:
        algorithm, place = self.cfg.algorithm, self.place
        return ReplayPlace(
            place.folder,
            seed=named_seed(place.seed, "actor", "replay"),
            gamma=algorithm.gamma,
            discount_per=algorithm.discount_per,
            rank=place.rank,
            world_size=place.world_size,
        )

    # -- rollouts -------------------------------------------------------------------------------

    def prepare(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> dict[str, float]:
        """Add a rollout to the replay buffer; return metrics over all ranks.

        Args:
            batch: this rank's share.
            env_ids: numbers of its envs in the whole run.
        """
        trajectories, metrics = self._rows.of(batch, env_ids)
        self.replay.add_trajectories(trajectories)
        self._added = batch
        # A replay buffer is there to keep what older weights did: nothing is too old.
        ages = PolicyAges(batch.versions, self.version, oldest=0)
        return metrics | ages.metrics(batch.valid, self.engine)

    def _take_statistics(self) -> None:
        """Let the statistics of observations know the newest rollout."""
        batch, self._added = self._added, None
        if batch is None:
            raise RuntimeError("there is no rollout: call compute_advantages_and_returns first")
        self.engine.model.update_normalizer(
            batch.forward_inputs,
            mask=batch.valid.any(-1) & batch.finite,
            all_reduce=self._all_reduce,
        )

    @property
    def _all_reduce(self) -> Callable[[Tensor], Tensor] | None:
        """Sums a tensor over ranks; None if there is one rank."""
        return self.engine.all_reduce if self.place.world_size > 1 else None

    # -- updates --------------------------------------------------------------------------------

    def update(self) -> dict[str, float]:
        """Make the gradient steps of one rollout; return metrics over all ranks."""
        engine, env_steps = self.engine, self._rows.env_steps
        engine.onload()
        self._take_statistics()
        descent = Descent(self, (ACTOR, CRITIC))
        planned = self.settings.steps if self._is_ready() else 0
        if planned:
            if self._target is not None:
                self._target.begin()
            if self.fingerprints is not None:
                self.fingerprints.batch({})
            trains_actor = self._trains_actor()
            for batch in self._draw(planned):
                self._gradient_step(batch, trains_actor, descent)
        self.version += 1
        metrics = {f"{self._name}/{key}": value for key, value in descent.means().items()}
        metrics |= descent.outcomes()
        metrics[f"{self._name}/updates"] = float(planned)
        metrics["gradient_updates"] = float(self.gradient_steps)
        metrics[f"{self._name}/update_ratio"] = planned / max(env_steps, 1.0)
        metrics |= self._replay_metrics()
        metrics["nan_skipped"] = float(self._rows.nan_skipped + engine.skipped)
        return metrics

    @property
    def _name(self) -> str:
        """What metrics of the losses are called."""
        return self.cfg.algorithm.loss_type.removeprefix("embodied_")

    def _is_ready(self) -> bool:
        return self.engine.agree(int(not self.replay.is_ready())) == 0

    def _trains_actor(self) -> bool:
        wanted = -(-self.settings.train_actor_steps // self.place.world_size)
        return self.engine.agree(int(not self.replay.is_ready(max(wanted, 1)))) == 0

    def _draw(self, count: int) -> Iterator[ReplayBatch]:
        """Draw this rank's share of batches, on the device."""
        for batch in self.replay.sample_batches(count, self.settings.share):
            here = batch.to(self.engine.device)
            yield self._shift_pictures(here) if self.cfg.actor.enable_drq else here

    def _shift_pictures(self, batch: ReplayBatch) -> ReplayBatch:
        """Return a batch whose pictures are shifted at random, those of each time by themselves."""
        shift = self.engine.model.shift_pictures
        obs, after = (shift(x, _MOST_SHIFT, self._noise) for x in (batch.obs, batch.next_obs))
        return replace(batch, obs=obs, next_obs=after)

    def _gradient_step(self, batch: ReplayBatch, trains_actor: bool, descent: Descent) -> None:
        pieces = [batch]
        if self.settings.micro_batch < len(batch):
            pieces = batch.split(self.settings.micro_batch)
        self.gradient_steps += 1
        for optimizer in self.engine.optimizers.values():
            optimizer.set_progress(self.gradient_steps - 1)
        descent.step(CRITIC, pieces, self._critic_loss, batch.indices)
        if self.replay.prioritized:
            errors, self._errors = torch.cat(self._errors), []
            self.replay.update_priorities(batch.indices, errors)
        if trains_actor and self.gradient_steps % self.settings.critic_actor_ratio == 0:
            descent.step(ACTOR, pieces, self._actor_loss, batch.indices)
            self._after_actor(descent.tally)
        if self._target is not None and self.gradient_steps % self.settings.target_update_freq == 0:
            self._target.follow()

    @abstractmethod
    def _critic_loss(self, batch: ReplayBatch) -> Loss:
        """Return the share of some transitions in the loss of the critics, and metrics."""

    @abstractmethod
    def _actor_loss(self, batch: ReplayBatch) -> Loss:
        """Return the share of some transitions in the loss of the actor, and metrics."""

    def _after_actor(self, tally: Tally) -> None:  # noqa: B027 - most have nothing to do
        """Do what follows a step of the actor."""

    def _note_errors(self, values: Tensor, target: Tensor) -> None:
        """Remember by how much the worst Q-function was wrong, if draws go by that.

        Args:
            values: `[Q, n]`.
            target: `[n]`.
        """
        if self.replay.prioritized:
            self._errors.append((values.detach() - target).abs().amax(0))

    def _bootstrap(self, batch: ReplayBatch) -> Tensor:
        """Return the discounts of what follows, `[n]`."""
        return batch.discounts if self.settings.always_bootstrap else batch.bootstrap

    def _draw_noise(self, count: int) -> Tensor:
        """Return standard normal noise for so many chunks of actions, `[n, sac_width]`."""
        shape = count, self.engine.model.sac_width
        return torch.randn(shape, generator=self._noise, device=self.engine.device)

    # -- metrics --------------------------------------------------------------------------------

    def _replay_metrics(self) -> dict[str, float]:
        """Return counts of the replay buffer, over all ranks."""
        stats = self.replay.get_stats()
        counts = torch.tensor(list(stats.values()), dtype=torch.float64)
        totals = self.engine.all_reduce(counts).tolist()
        counted = {
            f"{'demo_buffer' if name.startswith('demo_') else 'replay_buffer'}/"
            f"{name.removeprefix('demo_')}": total
            for name, total in zip(stats, totals, strict=True)
        }
        return counted | {f"demo_buffer/{key}": v for key, v in self._demonstrated.items()}

    def close(self) -> None:
        """See `Learner.close`: the working folder of the replay buffer."""
        if self.replay is not None:
            self.replay.close()
            self._replay_place().remove_folders()

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return {
            "gradient_steps": self.gradient_steps,
            "noise": self._noise.get_state(),
            "heads": self._heads.get_state(),
            "nan_skipped": self._rows.nan_skipped,
        }

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        self.gradient_steps = state["gradient_steps"]
        self._rows.nan_skipped = state["nan_skipped"]
        self._heads.set_state(state["heads"])
        if same_ranks:
            self._noise.set_state(state["noise"])

    def snapshot_files(self, folder: Path) -> Callable[[], None]:
        """See `Learner.snapshot_files`: the replay buffer."""
        return self.replay.snapshot(folder / _REPLAY)

    def load_files(self, folder: Path) -> list[str]:
        """See `Learner.load_files`."""
        # Whoever has chosen the checkpoint has compared the hashes of its files.
        return self.replay.load_checkpoint(folder / _REPLAY)
