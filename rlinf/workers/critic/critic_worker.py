"""A value function of token sequences in workers of its own, before and beside the actor."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.scheduler import UNTIL_CLOSED, Channel, Worker
from rlinf.scheduler.channel.channel import DEFAULT_KEY
from rlinf.utils.checkpoint import save_tree
from rlinf.utils.determinism import be_deterministic
from rlinf.workers.actor.exchange import exchange
from rlinf.workers.actor.learner import LearnerPlace, engine_state, load_engine_state
from rlinf.workers.actor.reasoning_batches import deal
from rlinf.workers.actor.reasoning_critic import ReasoningCritic, build_critic, critic_seed
from rlinf.workers.checkpointed import Checkpointed, Job, load_rank
from rlinf.workers.cpu_threads import use_cores
from rlinf.workers.inference.stage import pass_on, share_of


class ReasoningCriticWorker(Checkpointed, Worker):
    """Trains a value function with a network of its own, beside the actor.

    In each step groups pass through `run_inference` on their way to the actor, which makes returns
    of the values and sends them back to `run_training`.

    Args:
        cfg: checked configuration.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        if cfg.runner.deterministic:
            be_deterministic(cfg.runner.seed, "critic", self._rank)
        self.cfg = cfg

    def init_worker(self, total_steps: int = 0) -> None:
        """Build the value function and its optimiser.

        Args:
            total_steps: optimiser steps of the whole run, for schedules.
        """
        device = torch.device(self.torch_device_type)
        use_cores(self.cfg, device)
        place = LearnerPlace(
            device,
            seed=critic_seed(self.cfg),
            rank=self._rank,
            world_size=self._world_size,
            total_steps=total_steps,
        )
        self.critic = ReasoningCritic(self.cfg, build_critic(self.cfg), place)
        self._tensors = EngineCheckpoint(self.critic.engine)
        self._offload()

    def _offload(self) -> None:
        if self.cfg.critic.enable_offload:
            self.critic.engine.offload()

    def warming_up(self) -> bool:
        """Return whether the policy has to wait for further steps of the value function."""
        return self.critic.warming_up

    @Worker.timer("values")
    def run_inference(
        self,
        input_channel: Channel,
        output_channel: Channel,
        num_groups: int,
        key: Hashable = DEFAULT_KEY,
    ) -> int:
        """Add values to this rank's share of the groups of a step, as they come.

        Args:
            input_channel: groups with rewards.
            output_channel: the same groups, with values as well.
            num_groups: groups of this step over all ranks.
            key: what they wait under, in both channels.

        Returns:
            The number of groups of this rank.
        """
        return pass_on(
            input_channel,
            output_channel,
            total=num_groups,
            key=key,
            rank=self._rank,
            world_size=self._world_size,
            what="values",
            compute=self.critic.values,
        )

    @Worker.timer("training")
    def run_training(
        self, input_channel: Channel, senders: int, key: Hashable = DEFAULT_KEY
    ) -> dict[str, float]:
        """Update the value function on the returns of a step.

        Args:
            input_channel: `TokenSamples` with returns, one item from each rank of the actor.
            senders: number of these.
            key: what they wait under.

        Returns:
            Metrics over all ranks.
        """
        own = share_of(senders, self._rank, self._world_size)
        # Begun with its step, whose responses take as long as they take.
        parts = [input_channel.get(key=key, timeout=UNTIL_CLOSED) for _ in range(own)]
        how = partial(deal, ranks=self._world_size)
        # Whole groups of each rank, in the order of prompts, as the actor deals them.
        metrics = self.critic.update(exchange(self.critic.engine, parts, self._rank, how))
        self._offload()
        return metrics

    # -- checkpoints ----------------------------------------------------------------------------

    def _snapshot(self, folder: Path) -> Job:
        tensors = self._tensors.snapshot()
        state = engine_state(self.critic.engine, self.critic.updates)

        def write() -> None:
            self._tensors.write(tensors, folder / "critic" / "tensors")
            save_tree(folder / "critic" / f"rank_{self._rank}", state)

        return write

    def _restore(self, folder: Path) -> list[str]:
        self._tensors.read(folder / "critic" / "tensors")
        state = load_rank(folder / "critic", self._rank)
        lost = load_engine_state(self.critic.engine, self.critic.updates, state, "critic")
        return [lost] if lost else []
