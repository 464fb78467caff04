"""The actor of language models: receives groups of responses, learns, and sends the weights on."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rlinf.algorithms.agreement import Tolerance
from rlinf.config.placed import is_placed
from rlinf.hybrid_engines.fsdp.precision import FORMATS
from rlinf.hybrid_engines.fsdp.sharding import whole
from rlinf.hybrid_engines.weight_sync.packing import format_of
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from rlinf.models import get_model
from rlinf.models.causal_lm.model import CausalLM
from rlinf.scheduler import Channel, Worker
from rlinf.scheduler.channel.channel import DEFAULT_KEY
from rlinf.workers.actor.actor import Actor
from rlinf.workers.actor.reasoning_critic import build_critic
from rlinf.workers.actor.reasoning_learner import Examples, ReasoningLearner
from rlinf.workers.actor.registry import learner_of
from rlinf.workers.agreement import Evidence, Finding
from rlinf.workers.cpu_threads import use_cores

if TYPE_CHECKING:
    from rlinf.data.reasoning import SampleGroup


class ReasoningActor(Actor):
    """Trains a language model on groups of responses that have their rewards.

    One step is `recv_rollout_batch`, `compute_advantages_and_returns`, `run_training`; or
    `run_training` with a channel, which does all three and, with `actor.stream_groups`, begins
    before the last group has been generated.
    """

    learner: ReasoningLearner
    _groups: list[SampleGroup] | None = None

    def init_worker(self, total_steps: int = 0) -> None:
        """Build the policy, a critic if there is one, and their learner.

        Args:
            total_steps: optimiser steps of the whole run, for schedules.
        """
        cfg = self.cfg
        use_cores(cfg, self._device)
        torch.manual_seed(self.seed)
        policy = get_model(cfg.actor.model, dtype=torch.float32, deferred=True)
        self._load_initial_weights(policy)
        critic = None
        uses_critic = cfg.critic is not None and cfg.critic.use_critic_model
        if uses_critic and not is_placed(cfg, "critic"):
            critic = build_critic(cfg)
        learner = learner_of(cfg)(cfg, policy, self._place(total_steps), critic)
        if cfg.actor.stream_groups and (problem := learner.why_not_stream()):
            raise ValueError(f"actor.stream_groups is {cfg.actor.stream_groups}, but {problem}")
        senders = {
            role: WeightSender(self, cfg, cfg[role].group_name, once=role == "reference")
            for role in ("rollout", "inference", "reference")
        }
        self._adopt(learner, senders)

    @property
    def policy(self) -> CausalLM:
        """The policy."""
        return self.engine.model

    # -- weights --------------------------------------------------------------------------------

    @Worker.timer("sync_weights")
    def sync_model_to_rollout(self) -> int:
        """Send this rank's part of the weights to rollout workers; return the number of bytes.

        They have the names of the plain model of transformers; those that share their memory, such
        as a tied last layer, go once. With adapters, `weight_syncer.lora` says what goes.
        """
        return self._send_policy("rollout")

    @Worker.timer("sync_weights")
    def sync_model_to_inference(self) -> int:
        """Return the same to workers that recompute log-probabilities; see `ReasoningInference`."""
        return self._send_policy("inference")

    @Worker.timer("sync_weights")
    def sync_model_to_reference(self) -> int:
        """Send the policy that it is to be compared with; return the number of bytes.

        It is the policy as it is now; with adapters, the one without what they have learnt.
        """
        return self._send_policy("reference")

    def _send_policy(self, role: str) -> int:
        self.engine.onload(optimizer=False)
        if role == "reference":
            # Not rounded: the actor's own reference is not, either.
            return self._send(role, self.policy.base_shards(whole))
        adapters = self.cfg.weight_syncer.lora == "adapters"
        rounded_to = self._format_on_the_way() if role == "rollout" else None
        return self._send(role, self.policy.policy_shards(whole, adapters), rounded_to)

    def _format_on_the_way(self) -> torch.dtype | None:
        """Return what weights are rounded to in messages to the rollout; None if they are not."""
        name = self.cfg.weight_syncer.bucket.bucket_dtype
        return None if name is None else FORMATS[name]

    def save_model(self, folder: str) -> None:
        """Write the policy as a model folder of Hugging Face layout, adapters merged."""
        self.engine.onload(optimizer=False)
        tensors = dict(self.policy.policy_tensors(whole))
        if self._rank == 0:
            self.policy.save_folder(folder, tensors)
        self._offload()

    # -- responses ------------------------------------------------------------------------------

    def recv_rollout_batch(
        self, input_channel: Channel, num_groups: int | None = None, key: Hashable = DEFAULT_KEY
    ) -> int:
        """Take this rank's share of the groups of a step; return the number of sequences in it.

        Args:
            input_channel: where groups come from, one or a list of them per item, at any rank.
            num_groups: groups of this step over all ranks; None is `data.rollout_batch_size`.
            key: what they wait under.
        """
        self._groups = list(self._arriving(input_channel, self._share(num_groups), key))
        return sum(len(group.samples) for group in self._groups)

    def _share(self, num_groups: int | None) -> int:
        total = self._total(num_groups)
        return total // self._world_size + (self._rank < total % self._world_size)

    def _total(self, num_groups: int | None) -> int:
        return self.cfg.data.rollout_batch_size if num_groups is None else num_groups

    def _arriving(self, channel: Channel, count: int, key: Hashable) -> Iterator[SampleGroup]:
        """Return the groups as they come."""
        while count > 0:
            item = channel.get(key=key)
            groups = item if isinstance(item, list) else [item]
            if len(groups) > count:
                raise ValueError(
                    f"actor rank {self._rank} got {len(groups)} groups in one item, but only "
                    f"{count} are missing from its share; put groups into the channel one by one"
                )
            count -= len(groups)
            yield from groups

    # -- learning -------------------------------------------------------------------------------

    @Worker.timer("advantages")
    def compute_advantages_and_returns(
        self, chosen: Sequence[int] | None = None
    ) -> dict[str, float]:
        """Compute all that training needs to know of tokens; return metrics over all ranks.

        Args:
            chosen: numbers of the prompts whose groups are trained on; None is all.
        """
        if self._groups is None:
            raise RuntimeError("there are no samples to learn from: call recv_rollout_batch first")
        groups, self._groups = self._groups, None
        return self.learner.prepare(groups, chosen)

    @Worker.timer("training")
    def run_training(
        self,
        input_channel: Channel | None = None,
        num_groups: int | None = None,
        key: Hashable = DEFAULT_KEY,
        tolerance: Tolerance | None = None,
        returns_channel: Channel | None = None,
        critic_first: bool = False,
        chosen: Sequence[int] | None = None,
    ) -> dict[str, float] | tuple[dict[str, float], dict[str, float]]:
        """Update the policy.

        Args:
            input_channel: where groups come from; None trains on what was received and prepared.
            num_groups: groups of this step over all ranks; None is `data.rollout_batch_size`.
            key: what they wait under.
            tolerance: see `ReasoningLearner.update`.
            returns_channel: gets what critic workers learn from, under the same key, one item from
                each rank; None without such workers.
            critic_first: see `ReasoningLearner.update`.
            chosen: numbers of the prompts whose groups are trained on, the others are dropped; None
                is all. Not for groups that are streamed.

        Returns:
            Metrics of the update over all ranks; with a channel, those of the batch before them.

        Raises:
            TooFarApart: engine and policy disagree; nothing was updated.
        """
        if input_channel is None:
            metrics = self.learner.update(tolerance, critic_first)
        elif self.cfg.actor.stream_groups:
            arriving = self._arriving(input_channel, self._share(num_groups), key)
            metrics = self.learner.stream(arriving, self._total(num_groups), tolerance)
        else:
            self.recv_rollout_batch(input_channel, num_groups, key)
            of_batch = self.compute_advantages_and_returns(chosen)
            if returns_channel is not None:
                returns_channel.put(self.learner.for_critic(), key=key)
            metrics = of_batch, self.learner.update(tolerance, critic_first)
        self._offload()
        return metrics

    @Worker.timer("supervised")
    def run_supervised(self, examples: Examples) -> dict[str, float]:
        """Learn given responses, before the first step; see `ReasoningLearner.supervise`.

        Args:
            examples: token ids of prompt and response of each, and which are learnt, the same on
                all ranks; a multiple of `actor.supervised.batch_size`.

        Returns:
            Metrics over all ranks.
        """
        metrics = self.learner.supervise(examples)
        self._offload()
        return metrics

    # -- agreement ------------------------------------------------------------------------------

    def find_differences(self, evidence: list[Evidence]) -> list[Finding]:
        """Say what differs between this rank and the rollout workers, after `TooFarApart`."""
        self.engine.onload(optimizer=False)
        rounded_to = self._format_on_the_way()
        weights = self.policy.policy_tensors(whole)
        sent = ((name, tensor.to(format_of(tensor, rounded_to))) for name, tensor in weights)
        findings = self.learner.find_differences(sent, evidence)
        if rounded_to is not None and rounded_to.itemsize < 4:
            name = self.cfg.weight_syncer.bucket.bucket_dtype
            text = f"weights are rounded to {name} on their way: weight_syncer.bucket.bucket_dtype"
            findings.append(Finding("dtype", text))
        return findings

    # -- checkpoints ----------------------------------------------------------------------------

    def _restore(self, folder: Path) -> list[str]:
        if self.engine.reference is not None and (folder / "reference").exists():
            raise ValueError(
                f"the reference policy of {folder} was in workers of its own; name reference in "
                "cluster.component_placement again"
            )
        return super()._restore(folder)
