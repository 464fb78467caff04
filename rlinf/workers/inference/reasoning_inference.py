"""Log-probabilities of responses on devices of their own: the policy's, or the reference's."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from rlinf.data.token_batch import TokenBatch
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.fsdp.precision import ComputePrecision, training_precision
from rlinf.hybrid_engines.weight_sync.policy_receiver import PolicyReceiver
from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.models import get_model
from rlinf.models.causal_lm.model import CausalLM
from rlinf.models.settings import changed_section
from rlinf.scheduler import Channel, Worker
from rlinf.scheduler.channel.channel import DEFAULT_KEY
from rlinf.utils.determinism import be_deterministic
from rlinf.workers.actor.reasoning_batches import MicroBatches
from rlinf.workers.actor.reasoning_samples import recompute
from rlinf.workers.checkpointed import Checkpointed, Job
from rlinf.workers.cpu_threads import use_cores
from rlinf.workers.inference.stage import pass_on

Role = Literal["inference", "reference"]
_ADDS = {"inference": "old_logprobs", "reference": "ref_logprobs"}


class ReasoningInference(Checkpointed, Worker):
    """Adds log-probabilities to groups that have their rewards, on their way to the actor.

    As `inference` it has the actor's policy before the update, sent to it in every step. As
    `reference` it has the policy that training began with, sent once. Workers share one copy of the
    model, sharded as `actor.fsdp_config` says, in the number format that the actor computes in.

    Args:
        cfg: checked configuration.
        role: whose log-probabilities it adds.
    """

    def __init__(self, cfg: Any, role: Role = "inference") -> None:
        super().__init__()
        if cfg.runner.deterministic:
            be_deterministic(cfg.runner.seed, role, self._rank)
        self.cfg = cfg
        self._role = role

    def init_worker(self) -> None:
        """Build the model; its weights come from the actor, or from a checkpoint."""
        cfg = self.cfg
        device = torch.device(self.torch_device_type)
        use_cores(cfg, device)
        model = plain_policy(cfg.actor.model).requires_grad_(False)
        adapters = self._role == "inference" and cfg.weight_syncer.lora == "adapters"
        compute = training_precision(cfg.actor, device, 1, casts_alone=True).params
        if compute is not None and not adapters:
            # The actor casts weights that it trains; here they can be kept so.
            _keep_as(model, compute)
        self.engine = TrainEngine(model, cfg.actor, device, self._world_size, total_steps=0)
        self._weights: PolicyReceiver | None = None
        if self._role == "inference":
            self._weights = PolicyReceiver(self, cfg, self.engine.model.plain)
        if compute is not None and not self.engine.sharded:
            # Not before adapters have found the base weights as they are.
            _keep_as(self.engine.model, compute)
            self.engine.precision = ComputePrecision()
        sequences = (
            cfg[self._role].micro_batch_size
            or cfg.algorithm.logprob_forward_micro_batch_size
            or cfg.actor.micro_batch_size
        )
        self._micro_batches = MicroBatches.of(cfg, model, device, self.engine.agree, sequences)
        self._temperature = cfg.algorithm.sampling_params.temperature
        self._checkpoint = EngineCheckpoint(self.engine)

    @Worker.timer("sync_weights")
    def sync_model_from_actor(self) -> int:
        """Receive the actor's weights; return their version."""
        if self._weights is not None:
            return self._weights.receive()
        return WeightReceiver(self, self.cfg).receive(self.engine.model.plain)

    @Worker.timer("inference")
    def run_inference(
        self,
        input_channel: Channel,
        output_channel: Channel,
        num_groups: int,
        key: Hashable = DEFAULT_KEY,
    ) -> int:
        """Add log-probabilities to this rank's share of the groups of a step, as they come.

        Args:
            input_channel: groups with rewards.
            output_channel: the same groups, with log-probabilities as well.
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
            what=_ADDS[self._role],
            compute=self._logprobs,
        )

    def _logprobs(self, batch: TokenBatch) -> Tensor:
        return recompute(self.engine, batch, self._micro_batches, temperature=self._temperature)

    # -- checkpoints ----------------------------------------------------------------------------

    def _snapshot(self, folder: Path) -> Job:
        snapshot = self._checkpoint.snapshot()
        return lambda: self._checkpoint.write(snapshot, folder / self._role / "tensors")

    def _restore(self, folder: Path) -> list[str]:
        own = folder / self._role
        if not own.exists():
            raise ValueError(
                f"{folder} has no weights of {self._role} workers: in the run that made it the "
                f"actor had them; take {self._role} out of cluster.component_placement"
            )
        self._checkpoint.read(own / "tensors")
        return []


def plain_policy(section: Any) -> CausalLM:
    """Return the actor's model without adapters, value head and, so far, weights.

    Args:
        section: the model section of the actor.
    """
    plain = changed_section(section, {"is_lora": False, "add_value_head": False})
    return get_model(plain, dtype=torch.float32, deferred=True)


def _keep_as(model: CausalLM, dtype: torch.dtype) -> None:
    """Change the number format of the weights; buffers keep theirs, as in the actor."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
