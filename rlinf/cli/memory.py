"""How much memory each worker of a config will take, worked out without starting one."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from rlinf.cli.env_sizes import Observations, SizesUnknown, env_sizes
from rlinf.cli.memory_parts import DEVICE_CONTEXT, MIB, CannotPredict, Part, WorkerMemory
from rlinf.config.arithmetic import learns_from_replay
from rlinf.config.task_types import LANGUAGE
from rlinf.hybrid_engines.fsdp.memory import TrainingBytes, saved_bytes
from rlinf.hybrid_engines.fsdp.precision import FORMATS
from rlinf.models.embodiment.base_policy import acts_with
from rlinf.models.embodiment.recompute import recomputes
from rlinf.utils.env_spec import EnvSpec, rollout_steps

BASE_PROCESS = {"actor": 440 * MIB, "rollout": 360 * MIB, "env": 360 * MIB}
"""Python, Ray and torch in a worker of a tiny job; resident memory, with the CPU build on Linux."""

_FACTS_OF_ROW = 32
"""Bytes of a transition besides observation, action and what the env knows: links and numbers."""


def predict_memory(
    cfg: Any, placement: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[WorkerMemory]:
    """Predict what workers take at their peak: all but those that only compute rewards.

    Args:
        cfg: what `validate_cfg` returned.
        placement: processes by component, as in the report of `rlinf check`.

    Raises:
        CannotPredict: the model, or the size of an observation, is not known; says what to do.
    """
    if cfg.runner.task_type in LANGUAGE:
        from rlinf.cli.reasoning_memory import predict_reasoning

        return predict_reasoning(cfg, placement)
    if cfg.runner.task_type != "embodied" or cfg.env.train is None:
        raise CannotPredict(f"there is no model of it for task type {cfg.runner.task_type}")
    try:
        spec, observations = env_sizes(cfg)
    except SizesUnknown as error:
        raise CannotPredict(f"{error} to have a prediction") from error
    model = _meta_model(cfg, spec)
    rollout = _Rollout.of(cfg, spec, model, observations)
    return [
        _worker(name, placement[name], parts)
        for name, parts in (
            ("actor", lambda ranks, gpu: _actor(cfg, model, rollout, ranks, gpu)),
            ("rollout", lambda ranks, gpu: _acting(cfg, model, rollout, ranks, gpu)),
            ("env", lambda ranks, gpu: _simulating(rollout, ranks, gpu)),
        )
    ]


def _worker(name: str, processes: Sequence[Mapping[str, Any]], parts: Any) -> WorkerMemory:
    accelerator = any(process["kind"] == "accelerator" for process in processes)
    found = [*parts(len(processes), accelerator), Part("process", BASE_PROCESS[name], False, False)]
    return WorkerMemory(name, len(processes), accelerator, tuple(p for p in found if p.bytes))


# -- what a rollout is ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rollout:
    """Sizes of one rollout.

    Attributes:
        samples: chunk steps of all envs, over all epochs.
        epochs: rollouts that are played one after the other.
        envs: of the run.
        inputs: what the policy keeps of a sample, `[2, ...]` on the meta device.
        of_policy: bytes per sample of what the policy knows.
        of_env: bytes per sample of what the envs know.
        value: bytes of one value.
        seen: bytes of one observation.
    """

    samples: int
    epochs: int
    envs: int
    inputs: dict[str, Tensor]
    of_policy: int
    of_env: int
    value: int
    seen: int

    @classmethod
    def of(cls, cfg: Any, spec: EnvSpec, model: nn.Module, observations: Observations) -> _Rollout:
        train, chunks = cfg.env.train, cfg.actor.model.num_action_chunks
        try:
            steps = rollout_steps(train, spec.train_steps) // chunks
        except ValueError as error:
            raise CannotPredict(str(error)) from error
        rows = 2
        obs: dict[str, Any] = {
            key: torch.empty((rows, *shape), dtype=dtype, device="meta")
            for key, (shape, dtype) in observations.items()
        }
        if spec.instructions:
            obs["task_descriptions"] = list(spec.instructions[:1]) * rows
        try:
            with torch.device("meta"):
                ahead = {}
                if model.decided_in_rollouts:
                    ahead = {"decided": torch.zeros(rows, dtype=torch.int64), "now": obs}
                _, result = model.predict_action_batch(obs, **ahead)
        except Exception as error:
            raise CannotPredict(
                f"{type(model).__name__}.predict_action_batch cannot be run without memory (on "
                f"torch's meta device): {type(error).__name__}: {error}"
            ) from error
        inputs = result["forward_inputs"]
        value = result["prev_values"].nbytes // rows
        kept = sum(tensor.nbytes for tensor in inputs.values()) // rows
        logprobs = result["prev_logprobs"].nbytes // rows
        versions, finite, begins = 8, 1, 1
        action = model.action_dim * model.action_dtype.itemsize
        return cls(
            samples=steps * train.total_num_envs * train.rollout_epoch,
            epochs=train.rollout_epoch,
            envs=train.total_num_envs,
            inputs=inputs,
            # The value of a step, and that of an observation in which an episode ended.
            of_policy=kept + logprobs + 2 * value + versions + finite,
            # Reward, action, and four flags of each action.
            of_env=chunks * (4 + action + 4 * 1) + begins,
            value=value,
            seen=sum(math.prod(shape) * dtype.itemsize for shape, dtype in observations.values()),
        )

    def batch(self, ranks: int) -> int:
        """Return the bytes of the batch of one actor rank."""
        last = self.envs * self.epochs // ranks * self.value
        return self.samples // ranks * (self.of_policy + self.of_env) + last


# -- what each component takes --------------------------------------------------------------------


def _actor(cfg: Any, model: nn.Module, rollout: _Rollout, ranks: int, gpu: bool) -> list[Part]:
    from rlinf.algorithms.registry import needs_reference

    own = TrainingBytes.of(model, ranks)
    parts = [
        Part("weights", own.parameters + own.buffers),
        Part("gradients", own.gradients),
        Part("optimiser", own.optimizer),
    ]
    if learns_from_replay(cfg):
        parts += _replay(cfg, own, rollout, ranks)
    elif needs_reference(cfg.algorithm):
        frozen = any(not parameter.requires_grad for parameter in model.parameters())
        # Where weights are frozen, what is trained gives way to what it was, and comes back.
        kept = own.gradients if frozen else own.parameters
        parts.append(Part("reference policy", kept + own.buffers))
    elif "nft" in cfg.algorithm and cfg.algorithm.nft.tau != 1.0:
        parts.append(Part("policy that acts", own.parameters + own.buffers))
    if ranks > 1:
        fully = sum(parameter.nbytes for parameter in model.parameters())
        parts.append(Part("gathered weights", fully, exact=False))
    parts.append(Part("batch", rollout.batch(ranks), on_device=False))
    if gpu:
        parts.append(Part("batch on the device", rollout.batch(ranks), exact=False))
        parts.append(Part("context", DEVICE_CONTEXT, exact=False))
    share = (cfg.actor.global_batch_size or rollout.samples) // ranks
    micro = min(cfg.actor.micro_batch_size or share, share)
    kept = activation_bytes(
        model, rollout.inputs, micro, cfg.actor.fsdp_config.gradient_checkpointing
    )
    parts.append(Part("activations", kept, exact=False))
    return parts


def _replay(cfg: Any, own: TrainingBytes, rollout: _Rollout, ranks: int) -> list[Part]:
    """What learning from a replay buffer takes: targets, and a full buffer."""
    buffer = cfg.algorithm.replay_buffer
    kept = sum(t.nbytes // len(t) for name, t in rollout.inputs.items() if name != "action")
    row = _FACTS_OF_ROW + rollout.of_env
    if buffer.enable_cache:
        row += kept
    rows = -(-buffer.cache_size // ranks)
    parts = [Part("replay buffer, full", rows * row, exact=False, on_device=False)]
    if "tau" in cfg.algorithm:
        parts.insert(0, Part("target networks", own.parameters + own.buffers))
    return parts


def _acting(cfg: Any, model: nn.Module, rollout: _Rollout, ranks: int, gpu: bool) -> list[Part]:
    name = cfg.rollout.model.precision or cfg.actor.model.precision
    # A CPU has no arithmetic of 16 bits and uses fp32 instead.
    size = FORMATS[name].itemsize if gpu else 4
    named = model.named_parameters()
    weights = sum(p.numel() * size for name, p in named if acts_with(model, name))
    weights += sum(buffer.nbytes for buffer in model.buffers())
    kept = rollout.samples // rollout.epochs // ranks * rollout.of_policy
    parts = [
        Part("weights", weights),
        # When a rollout ends, its steps are joined: for a moment it is there twice.
        Part("batch", 2 * kept, exact=False, on_device=False),
    ]
    return [*parts, Part("context", DEVICE_CONTEXT, exact=False)] if gpu else parts


def _simulating(rollout: _Rollout, ranks: int, gpu: bool) -> list[Part]:
    kept = rollout.samples // rollout.epochs // ranks * rollout.of_env
    seen = rollout.envs // ranks * rollout.seen
    parts = [Part("batch", 2 * kept + 2 * seen, exact=False, on_device=False)]
    return [*parts, Part("context", DEVICE_CONTEXT, exact=False)] if gpu else parts


def activation_bytes(
    model: nn.Module, inputs: Mapping[str, Tensor], rows: int, checkpointing: bool = False
) -> int:
    """Return what a forward pass keeps for its backward pass, in fp32.

    Args:
        model: on the meta device, or any other; with checkpointing it does so from now on.
        inputs: of some samples, `[n, ...]` each, on the same device.
        rows: samples of a micro-batch.
        checkpointing: keep the inputs of layers alone, and the activations of one layer at a time.
    """
    part = {key: tensor.new_zeros((rows, *tensor.shape[1:])) for key, tensor in inputs.items()}

    def run() -> Any:
        return model(
            forward_type="default", forward_inputs=part, compute_entropy=True, compute_values=True
        )

    whole = saved_bytes(model, run)
    if not checkpointing:
        return whole
    model.enable_gradient_checkpointing()
    layers = [module for module in model.modules() if recomputes(module)]
    entered: dict[int, int] = {}

    def enter(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        tensors = (each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        entered.update({each.untyped_storage()._cdata: each.nbytes for each in tensors})

    hooks = [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in layers]
    outside = saved_bytes(model, run)
    for hook in hooks:
        hook.remove()
    return outside + sum(entered.values()) + (whole - outside) // len(layers)


# -- the model -------------------------------------------------------------------------------------


def _meta_model(cfg: Any, spec: EnvSpec) -> nn.Module:
    """Return the model without memory."""
    from rlinf.models import get_model
    from rlinf.models.registry import can_defer

    section = cfg.actor.model
    try:
        if section.model_path is not None and can_defer(section.model_type):
            # A folder may be what says the sizes.
            return get_model(section, spec, torch.float32, deferred=True).to("meta")
        section = copy.deepcopy(section)
        OmegaConf.set_readonly(section, False)
        section.model_path = None
        OmegaConf.set_readonly(section, True)
        with torch.device("meta"):
            return get_model(section, spec, torch.float32)
    except (NotImplementedError, OSError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise CannotPredict(
            f"{section.model_type} cannot be built on the meta device: {first}"
        ) from error


# -- words ----------------------------------------------------------------------------------------


def as_data(workers: Sequence[WorkerMemory]) -> dict[str, Any]:
    """Return the same for programs: bytes by component and part."""
    return {
        worker.component: {
            "workers": worker.count,
            "parts": {part.name: part.bytes for part in worker.parts},
            "estimated": [part.name for part in worker.parts if not part.exact],
            "device_bytes": worker.total(on_device=True),
            "host_bytes": worker.total(on_device=False),
        }
        for worker in workers
    }


def as_lines(workers: Sequence[WorkerMemory]) -> list[str]:
    """Return a table for people, and what it leaves out."""
    lines = []
    width = max(len(_title(worker)) for worker in workers)
    for worker in workers:
        sums = [f"{readable(worker.total(on_device=False))} of the machine's memory"]
        if worker.accelerator:
            sums.insert(0, f"{readable(worker.total(on_device=True))} of its device's")
        lines.append(f"{_title(worker):<{width}}  {', '.join(sums)}")
        parts = [
            f"{part.name} {'' if part.exact else '~'}{readable(part.bytes)}"
            for part in worker.parts
        ]
        lines.append(f"{'':<{width}}    {', '.join(parts)}")
        if worker.note:
            lines.append(f"{'':<{width}}    {worker.note}")
    simulates = any(worker.component == "env" for worker in workers)
    left_out = "; what simulators take is not in it" if simulates else ""
    return [*lines, f"~ is an estimate{left_out}"]


def _title(worker: WorkerMemory) -> str:
    return f"{worker.component} ({worker.count})" if worker.count > 1 else worker.component


def readable(count: int) -> str:
    """Return the bytes in a unit that gives a short number."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} GiB" if size < 1000 else f"{size:.0f} GiB"
