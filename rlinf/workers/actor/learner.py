"""The shell of all learners: what they have in common, whatever they learn from.

A learner is one rank of several that train together. A subclass says what it makes of a batch
(`prepare`) and how it trains on that (`update`); engines, order of samples, versions, fingerprints
and their checkpoints are here. `rlinf.workers.actor.registry` finds it by `algorithm.loss_type`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from rlinf.data.embodied import RolloutNeeds
from rlinf.hybrid_engines.fsdp.checkpoint import counters, set_counters
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.workers.actor.fingerprints import StepFingerprints
from rlinf.workers.actor.update_loop import UpdateLoop

ACTOR = "actor"
"""Name of the engine that has the policy."""


@dataclass(frozen=True)
class LearnerPlace:
    """Where a learner runs.

    Attributes:
        device: where to train.
        seed: equal on all ranks.
        rank: this one.
        world_size: number of ranks.
        total_steps: optimiser steps of the whole run, for schedules.
        folder: of the run, for files that a learner works with; None if there is none.
        warn: tells the user something.
    """

    device: torch.device
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    total_steps: int = 0
    folder: Path | None = None
    warn: Callable[[str], None] = field(default=print)


class Learner(ABC):
    """Learns from batches, on one rank of several.

    A subclass puts what it trains into `engines` and `loops`; then it is offloaded, saved and
    restored with the rest.

    Args:
        cfg: the configuration.
        place: where it runs.

    Attributes:
        offline: learns from datasets, without rollouts.
        defers_weights: takes a policy that was built without weights, for its engine to fill.
        version: of the weights: updates made so far.
        engines: models and their optimisers, by name; `actor` is the policy.
        loops: what makes their optimiser steps, by name.
        fingerprints: hashes of what each update did; None unless `runner.deterministic`.
    """

    offline: ClassVar[bool] = False
    defers_weights: ClassVar[bool] = False

    def __init__(self, cfg: Any, place: LearnerPlace) -> None:
        self.cfg, self.place = cfg, place
        self.version = 0
        self.engines: dict[str, TrainEngine] = {}
        self.loops: dict[str, UpdateLoop] = {}
        self.fingerprints: StepFingerprints | None = None

    @property
    def acts_by_reference(self) -> bool:
        """Whether the frozen copy of the engine acts, and not the policy that is trained."""
        return False

    @contextlib.contextmanager
    def acting_policy(self) -> Iterator[nn.Module]:
        """Hold the policy that acts where the engine is."""
        if not self.acts_by_reference:
            yield self.engine.model
            return
        with self.engine.reference_at_hand():
            yield self.engine.reference

    @classmethod
    def rollout_needs(cls, cfg: Any) -> RolloutNeeds:
        """Return what rollouts have to hold besides what all of them do."""
        return RolloutNeeds()

    def policy_engine(self, model: nn.Module, **options: Any) -> TrainEngine:
        """Return what trains a policy of envs as `actor` says.

        Args:
            model: the policy, on the CPU and equal on each rank, its weights in float32.
            **options: further ones of `TrainEngine`.
        """
        cfg, place = self.cfg, self.place
        if cfg.actor.fsdp_config.gradient_checkpointing:
            model.enable_gradient_checkpointing()
        return TrainEngine(
            model,
            cfg.actor,
            place.device,
            place.world_size,
            place.total_steps,
            on_nan=cfg.runner.on_nan,
            **options,
        )

    def add_engine(self, name: str, engine: TrainEngine, loop: UpdateLoop) -> None:
        """Take charge of a model; that of the policy comes first.

        Args:
            name: what it is called in checkpoints.
            engine: the model and its optimisers.
            loop: what makes its optimiser steps.
        """
        self.engines[name], self.loops[name] = engine, loop
        if engine.precision.note and name == ACTOR:
            self.tell(engine.precision.note)
        if self.cfg.runner.deterministic and self.fingerprints is None:
            self.fingerprints = StepFingerprints(engine)
            loop.watches.append(self.fingerprints)

    @property
    def engine(self) -> TrainEngine:
        """The policy and its optimisers."""
        return self.engines[ACTOR]

    @property
    def updates(self) -> UpdateLoop:
        """What makes the optimiser steps of the policy."""
        return self.loops[ACTOR]

    @abstractmethod
    def prepare(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Make of a batch what `update` needs; return metrics over all ranks."""

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Train; return metrics over all ranks."""

    def tell(self, message: str) -> None:
        """Tell the user something, once for all ranks."""
        if self.place.rank == 0:
            self.place.warn(message)

    def tell_what_was_left_out(self, metrics: dict[str, float], why_empty: str) -> None:
        """Tell of updates that were not made.

        Args:
            metrics: of an update loop.
            why_empty: why nothing of a batch may count.
        """
        not_finite, empty = (
            metrics.get(f"actor/updates_{kind}", 0.0) for kind in ("not_finite", "empty")
        )
        if not_finite:
            self.tell(f"updates left out, since a gradient was not finite: {not_finite:.0f}")
        if empty and not metrics["actor/updates"]:
            self.tell(f"no update was made: {why_empty}")

    def close(self) -> None:  # noqa: B027 - most learners have nothing to let go of
        """Remove files that a learner works with; it is not used any more."""

    # -- checkpoints ----------------------------------------------------------------------------

    def state(self) -> dict[str, dict[str, Any]]:
        """Return what this rank remembers besides weights and optimisers, by engine, plain data."""
        states: dict[str, dict[str, Any]] = {
            name: engine_state(engine, self.loops[name]) for name, engine in self.engines.items()
        }
        states[ACTOR] |= {
            "version": self.version,
            "random": torch.get_rng_state(),
            "own": self.own_state(),
        }
        return states

    def load_state(self, states: dict[str, dict[str, Any]]) -> list[str]:
        """Go on from a state; return, in words, what does not carry over.

        Args:
            states: of this rank, or of rank 0 of another number of ranks.
        """
        own = states[ACTOR]
        self.version = own["version"]
        same = own["world_size"] == self.place.world_size
        self.load_own_state(own["own"], same)
        if same:
            torch.set_rng_state(own["random"])
        lost = [
            load_engine_state(engine, self.loops[name], states[name], name)
            for name, engine in self.engines.items()
        ]
        return list(filter(None, lost))

    def own_state(self) -> dict[str, Any]:
        """Return what a subclass has to keep, plain data and tensors."""
        return {}

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """Go on from what `own_state` returned.

        Args:
            state: of this rank, or of rank 0 of another number of ranks.
            same_ranks: whether there are as many ranks as there were.

        Raises:
            ValueError: the state is that of another learner.
        """
        if state:
            raise ValueError(
                f"the checkpoint has {', '.join(state)} of another learner, which "
                f"{type(self).__name__} does not know; is algorithm.loss_type another one?"
            )

    def snapshot_files(self, folder: Path) -> Callable[[], None] | None:
        """Fix what a subclass keeps in files of its own; training goes on at once.

        Args:
            folder: of the checkpoint, which all ranks share.

        Returns:
            What writes them, in any thread; None if there are none.
        """
        return None

    def load_files(self, folder: Path) -> list[str]:
        """Go on from what `snapshot_files` wrote; return, in words, what does not carry over."""
        return []


def engine_state(engine: TrainEngine, loop: UpdateLoop) -> dict[str, Any]:
    """Return what a rank remembers of an engine besides its tensors, plain data."""
    return {
        "world_size": engine.world_size,
        "engine": counters(engine),
        "shuffle": loop.shuffle.get_state(),
    }


def load_engine_state(
    engine: TrainEngine, loop: UpdateLoop, state: dict[str, Any], name: str
) -> str:
    """Go on from what `engine_state` returned; return, in words, what does not carry over.

    Args:
        engine: whose state it is.
        loop: what makes its optimiser steps.
        state: of this rank, or of rank 0 of another number of ranks.
        name: what its ranks are called.
    """
    set_counters(engine, state["engine"])
    if state["world_size"] == engine.world_size:
        loop.shuffle.set_state(state["shuffle"])
        return ""
    return (
        f"the order of samples within a batch, as there were {state['world_size']} {name} ranks "
        f"and now are {engine.world_size}"
    )
