"""The shell of all actors: a worker that has a learner, sends its weights on and saves it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.initial_weights import load_initial_weights
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from rlinf.scheduler import Worker
from rlinf.scheduler.worker.file_places import place_to_read, place_to_write
from rlinf.utils.checkpoint import save_tree
from rlinf.utils.determinism import be_deterministic
from rlinf.utils.env_spec import EnvSpec
from rlinf.utils.shards import Shards
from rlinf.workers.actor.agreement import compute_format
from rlinf.workers.actor.learner import ACTOR, Learner, LearnerPlace
from rlinf.workers.checkpointed import Checkpointed, Job, load_rank


class Actor(Checkpointed, Worker):
    """Trains a policy; a subclass says where batches come from and builds the learner.

    Args:
        cfg: checked configuration.

    Attributes:
        learner: what it does with batches.
    """

    learner: Learner
    _env_spec: EnvSpec | None = None
    """Sizes and ranges of what the model sees and does; None for language models."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        if cfg.runner.deterministic:
            be_deterministic(cfg.runner.seed, "actor", self._rank)
        self.cfg = cfg
        self._device = torch.device(self.torch_device_type)

    @property
    def seed(self) -> int:
        """What weights and the order of samples begin from."""
        own = self.cfg.actor.seed
        return self.cfg.runner.seed if own is None else own

    def _load_initial_weights(self, model: nn.Module) -> None:
        """Begin with the weights of another run, if the config names one."""
        note = load_initial_weights(model, self.cfg)
        if note and self._rank == 0:
            self.log_warning(note)

    def _place(self, total_steps: int) -> LearnerPlace:
        return LearnerPlace(
            self._device,
            seed=self.seed,
            rank=self._rank,
            world_size=self._world_size,
            total_steps=total_steps,
            folder=self._folder(),
            warn=self.log_warning,
        )

    def _folder(self) -> Path | None:
        """Return where this process keeps files while the run goes on."""
        given = self.cfg.runner.run_dir
        return None if given is None or self.cfg.runner.only_eval else place_to_write(given)

    def _adopt(self, learner: Learner, senders: dict[str, WeightSender]) -> None:
        """Take charge of a learner.

        Args:
            learner: it.
            senders: whom its weights go to, by role.
        """
        self.learner, self._senders = learner, senders
        self._tensors = {name: EngineCheckpoint(e) for name, e in learner.engines.items()}
        self._offload()

    @property
    def engine(self) -> TrainEngine:
        """The policy and its optimisers."""
        return self.learner.engine

    @property
    def version(self) -> int:
        """Version of the weights: updates made so far."""
        return self.learner.version

    # -- weights --------------------------------------------------------------------------------

    def _send(self, role: str, tensors: Shards, rounded_to: torch.dtype | None = None) -> int:
        """Send weights to all workers of a role; all ranks call it, and each sends its own part.

        Args:
            role: whose.
            tensors: as sharded as they are.
            rounded_to: number format on the way; None leaves weights as they are.

        Returns:
            The number of bytes that this rank has sent.
        """
        size = self._senders[role].send(tensors, self.version, rounded_to, self.engine.place)
        self._offload()
        return size

    def _offload(self) -> None:
        """Leave the device to others, if the config says so."""
        for name, engine in self.learner.engines.items():
            section = self.cfg.get(name) or self.cfg.actor
            if section.enable_offload:
                with self.worker_timer("offload"):
                    engine.offload()

    # -- agreement and fingerprints -------------------------------------------------------------

    def number_format(self) -> torch.dtype:
        """Return the format that the policy computes in."""
        return compute_format(self.engine)

    def fingerprints(self) -> dict[str, Any]:
        """Hash of what the last update did; see `rlinf.utils.fingerprints`."""
        self.engine.onload(optimizer=False)
        record = self.learner.fingerprints.take()
        self._offload()
        return record

    def fingerprint_facts(self) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """Return what hashes may depend on besides the config, and the names of the tensors."""
        name = torch.cuda.get_device_name() if self._device.type == "cuda" else "cpu"
        facts = {
            "device": name,
            "actor_ranks": self._world_size,
            "threads": torch.get_num_threads(),
        }
        return facts, self.learner.fingerprints.names()

    # -- checkpoints ----------------------------------------------------------------------------

    def load_policy(self, folder: str) -> None:
        """Take the policy of a checkpoint, and nothing else of it."""
        tensors = place_to_read(folder) / ACTOR / "tensors"
        self._tensors[ACTOR].read(tensors, only_model=True)

    def _snapshot(self, folder: Path) -> Job:
        tensors = {name: checkpoint.snapshot() for name, checkpoint in self._tensors.items()}
        states = self.learner.state()
        write_files = self.learner.snapshot_files(folder / ACTOR)

        def write() -> None:
            for name, snapshot in tensors.items():
                self._tensors[name].write(snapshot, folder / name / "tensors")
                save_tree(folder / name / f"rank_{self._rank}", states[name])
            if write_files is not None:
                write_files()
            if self._env_spec is not None and self._rank == 0:
                # Whoever uses the model without the env has to know its sizes and ranges.
                save_tree(folder / ACTOR / "env_spec", asdict(self._env_spec))

        return write

    def _restore(self, folder: Path) -> list[str]:
        for name, checkpoint in self._tensors.items():
            checkpoint.read(folder / name / "tensors")
        states = {name: load_rank(folder / name, self._rank) for name in self._tensors}
        return [*self.learner.load_state(states), *self.learner.load_files(folder / ACTOR)]
