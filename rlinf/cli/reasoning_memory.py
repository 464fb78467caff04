"""How much memory each worker of a reasoning config will take, worked out without starting one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlinf.cli.memory_parts import DEVICE_CONTEXT, MIB, CannotPredict, Part, WorkerMemory
from rlinf.config.arithmetic import reasoning_minibatches
from rlinf.config.placed import is_placed
from rlinf.hybrid_engines.fsdp.memory import TrainingBytes, saved_bytes
from rlinf.hybrid_engines.fsdp.precision import FORMATS
from rlinf.hybrid_engines.generation.settings import runs_elsewhere
from rlinf.hybrid_engines.weight_sync.sender import LIMITS, keeps_buffers
from rlinf.hybrid_engines.weight_sync.staging import SLOTS

_PROCESS = {"actor": 620 * MIB, "rollout": 490 * MIB}
"""Python, Ray, torch and transformers in a worker of a tiny job, with the CPU build on Linux.

Resident memory; others have about what an actor has.
"""
_PROBE = 32
"""Tokens of the pass that activations are counted in."""


def predict_reasoning(
    cfg: Any, placement: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[WorkerMemory]:
    """Predict what actor, rollout and the optional workers take at their peak.

    Args:
        cfg: what `validate_cfg` returned.
        placement: processes by component.

    Raises:
        CannotPredict: the model is not known; says what to do.
    """
    found = []
    for name, parts in (
        ("actor", _actor),
        ("rollout", _rollout),
        ("inference", _inference),
        ("reference", _reference),
        ("critic", _critic),
    ):
        if name not in placement:
            continue
        processes = placement[name]
        accelerator = any(process["kind"] == "accelerator" for process in processes)
        workers = _Workers(cfg, len(processes), accelerator)
        process = _PROCESS.get(name, _PROCESS["actor"])
        listed = [*parts(workers), Part("process", process, exact=False, on_device=False)]
        if accelerator:
            listed.append(Part("context", DEVICE_CONTEXT, exact=False))
        kept = tuple(part for part in listed if part.bytes)
        note = _note(cfg, accelerator) if name == "rollout" else ""
        found.append(WorkerMemory(name, len(processes), accelerator, kept, note))
    return found


@dataclass(frozen=True)
class _Workers:
    """Those of one component.

    Attributes:
        cfg: the configuration.
        ranks: how many there are.
        gpu: whether they have an accelerator.
    """

    cfg: Any
    ranks: int
    gpu: bool

    def format(self, name: str) -> torch.dtype:
        """Return the number format of a key.

        A CPU has no arithmetic of 16 bits and uses fp32 instead.
        """
        return FORMATS[name] if self.gpu else torch.float32


# -- who trains -----------------------------------------------------------------------------------


def _actor(workers: _Workers) -> list[Part]:
    from rlinf.algorithms.registry import needs_reference

    cfg = workers.cfg
    model = _model(cfg.actor.model)
    own = TrainingBytes.of(model, workers.ranks)
    parts = _trained(workers, model, cfg.actor)
    tokens = _micro_batch_tokens(workers, cfg.actor.micro_batch_size)
    # The logits, and their gradient.
    parts.append(Part("logits", 2 * _logits_bytes(workers, model, tokens), exact=False))
    adapters = cfg.actor.model.is_lora
    if needs_reference(cfg.algorithm) and not adapters and not is_placed(cfg, "reference"):
        stays = not cfg.actor.offload_reference
        parts.append(Part("reference policy", own.parameters + own.buffers, on_device=stays))
    if _has_critic(cfg) and not is_placed(cfg, "critic"):
        of_critic = _trained(workers, _model(cfg.critic.model, value_head=True), cfg.critic)
        parts += [
            Part(f"{part.name} of the critic", part.bytes, part.exact)
            for part in of_critic
            # One of both is trained at a time.
            if part.name != "activations"
        ]
    if workers.gpu and keeps_buffers(cfg):
        parts.append(Part("weights on their way", _staged_bytes(workers, model), exact=False))
    parts.append(Part("batch", _batch_bytes(cfg, workers.ranks), exact=False, on_device=False))
    return parts


def _staged_bytes(workers: _Workers, model: nn.Module) -> int:
    """Return the buffers that a rank keeps for the groups it sends its part of the weights to."""
    cfg = workers.cfg
    adapters = cfg.weight_syncer.lora == "adapters"
    sent = [p.numel() for n, p in model.named_parameters() if (".lora_" in n) or not adapters]
    name = cfg.weight_syncer.bucket.bucket_dtype
    sizes = [4 if name is None else FORMATS[name].itemsize]
    if is_placed(cfg, "inference"):
        sizes.append(4)
    most = SLOTS * (cfg.weight_syncer.bucket.bucket_size or LIMITS["cuda"])
    return sum(min(sum(sent) * size // workers.ranks, most) for size in sizes)


def _critic(workers: _Workers) -> list[Part]:
    cfg = workers.cfg
    parts = _trained(workers, _model(cfg.critic.model, value_head=True), cfg.critic)
    batch = _batch_bytes(cfg, workers.ranks)
    return [*parts, Part("batch", batch, exact=False, on_device=False)]


def _trained(workers: _Workers, model: nn.Module, section: Any) -> list[Part]:
    """Return what training a model takes, in fp32 and in the format that is computed in."""
    own = TrainingBytes.of(model, workers.ranks)
    parts = [
        Part("weights", own.parameters + own.buffers),
        Part("gradients", own.gradients),
        Part("optimiser", own.optimizer),
    ]
    compute = workers.format(section.model.precision)
    if workers.ranks > 1:
        parts.append(Part("gathered weights", _gathered(model, compute), exact=False))
    elif compute.itemsize < 4:
        rounded = sum(parameter.numel() for parameter in model.parameters()) * compute.itemsize
        parts.append(Part("rounded weights", rounded, exact=False))
    tokens = _micro_batch_tokens(workers, section.micro_batch_size)
    kept = activations_per_token(model, section.fsdp_config.gradient_checkpointing)
    size = int(tokens * kept * compute.itemsize / 4)
    parts.append(Part("activations", size, exact=False))
    return parts


def _logits_bytes(workers: _Workers, model: nn.Module, tokens: int) -> int:
    """Return the logits that exist at a time."""
    from rlinf.models.causal_lm.logprobs import CHUNK_ELEMENTS

    vocabulary = len(model.plain.get_output_embeddings().weight)
    chunk = workers.cfg.actor.model.logits_chunk_tokens
    if chunk is None:
        chunk = CHUNK_ELEMENTS["cuda" if workers.gpu else "cpu"] // vocabulary
    return min(max(1, chunk), tokens) * vocabulary * 4


def _gathered(model: nn.Module, compute: torch.dtype) -> int:
    """Return the weights that FSDP has gathered at a time: of no layer, and of two layers."""
    layers = _layers(model)
    of_layers = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    everything = sum(p.numel() for p in model.parameters())
    largest = max(of_layers, default=0)
    return (everything - sum(of_layers) + min(2, len(layers)) * largest) * compute.itemsize


def activations_per_token(model: nn.Module, checkpointing: bool = False) -> float:
    """Return the bytes that a token keeps for the backward pass, in fp32, without logits.

    It is counted in passes of one and two lengths: what grows with the square of the length is the
    attention of the meta device, which real kernels do not keep.

    Args:
        model: a `CausalLM`, on the meta device.
        checkpointing: whether layers recompute their activations.
    """
    plain = model.plain
    if checkpointing:
        plain.gradient_checkpointing_enable({"use_reentrant": False})
    once, twice = (
        saved_bytes(model, lambda length=length: _pass(plain, length))
        for length in (_PROBE, 2 * _PROBE)
    )
    return (4 * once - twice) / (2 * _PROBE)


def _pass(plain: nn.Module, length: int) -> Any:
    tokens = torch.zeros((1, length), dtype=torch.int64, device="meta")
    # Given whole, so that nobody asks a tensor without memory what is in it.
    mask = torch.zeros((1, 1, length, length), device="meta")
    try:
        return plain.base_model(input_ids=tokens, attention_mask=mask, use_cache=False)
    except Exception as error:
        raise CannotPredict(
            f"{type(plain).__name__} cannot be run without memory (on torch's meta device): "
            f"{type(error).__name__}: {error}"
        ) from error


def _micro_batch_tokens(workers: _Workers, sequences: int | None) -> int:
    """Most tokens of a micro-batch."""
    from rlinf.workers.actor.reasoning_batches import TOKENS

    cfg = workers.cfg
    total = cfg.data.rollout_batch_size * cfg.algorithm.group_size
    share = -(-total // (reasoning_minibatches(cfg) * workers.ranks)) * cfg.runner.seq_length
    if cfg.runner.enable_dynamic_batch_size:
        tokens = cfg.runner.max_tokens_per_mbs
    elif sequences is not None:
        tokens = sequences * cfg.runner.seq_length
    else:
        tokens = TOKENS["cuda" if workers.gpu else "cpu"]
    return min(share, max(tokens, cfg.runner.seq_length))


def _batch_bytes(cfg: Any, ranks: int) -> int:
    """Return the samples of a step on one rank, if all are as long as they can be."""
    sequences = -(-cfg.data.rollout_batch_size * cfg.algorithm.group_size // ranks)
    # Tokens; log-probabilities of three, versions, mask, advantages, returns and values.
    return sequences * cfg.runner.seq_length * (8 + 3 * 4 + 8 + 1 + 3 * 4)


# -- who does not ---------------------------------------------------------------------------------


def _rollout(workers: _Workers) -> list[Part]:
    cfg = workers.cfg
    model = _model(cfg.actor.model, plain=True)
    name = cfg.rollout.model.precision or cfg.actor.model.precision
    compute = workers.format(name)
    if runs_elsewhere(cfg.rollout):
        return _base_weights(cfg)
    own = cfg.rollout.rollout_backend == "hf"
    count = sum(parameter.numel() for parameter in model.parameters())
    parts = [Part("weights", count * compute.itemsize // cfg.rollout.tensor_parallel_size, own)]
    if own:
        rows = cfg.rollout.max_running_requests
        size = rows * _row_bytes(model.plain, cfg.runner.seq_length, compute)
        # Without a device, auto is contiguous rows.
        exact = not workers.gpu and cfg.rollout.hf.paged_cache is not True
        parts.append(Part("keys and values", size, exact=exact))
    return [*parts, *_base_weights(cfg)]


def _note(cfg: Any, gpu: bool) -> str:
    """Return what the numbers of a rollout worker leave out, in words."""
    if not gpu or runs_elsewhere(cfg.rollout):
        return ""
    name, part = cfg.rollout.rollout_backend, cfg.rollout.gpu_memory_utilization
    if name == "hf":
        return f"takes fewer keys and values if they do not fit into {part:g} of its device"
    return f"{name} takes {part:g} of its device in any case: rollout.gpu_memory_utilization"


def _row_bytes(lm: nn.Module, tokens: int, dtype: torch.dtype) -> int:
    """Return the keys and values of one sequence, as the engine lays them out."""
    from rlinf.hybrid_engines.generation.hf.build import STRIDE
    from rlinf.hybrid_engines.generation.hf.kv_cache import KVCache
    from rlinf.hybrid_engines.generation.hf.lean import cache_shape

    # The engine has room for one token more, and rounds up.
    capacity = tokens + 1 + -(tokens + 1) % STRIDE
    try:
        return KVCache.bytes_per_slot(cache_shape(lm, 1, capacity), dtype)
    except AttributeError as error:
        raise CannotPredict(
            f"the sizes of keys and values of {type(lm).__name__} are not known: {error}"
        ) from error


def _base_weights(cfg: Any, ranks: int = 1) -> list[Part]:
    """Return the weights that adapters are merged into, where only these are sent.

    Args:
        cfg: the configuration.
        ranks: that share them.
    """
    if cfg.weight_syncer.lora != "adapters":
        return []
    model = _model(cfg.actor.model)
    size = sum(
        parameter.nbytes
        for name, parameter in model.named_parameters()
        if name.endswith(".base_layer.weight")
    )
    return [Part("base weights", size // ranks, on_device=False)]


def _inference(workers: _Workers) -> list[Part]:
    return [*_frozen(workers), *_base_weights(workers.cfg, workers.ranks)]


def _reference(workers: _Workers) -> list[Part]:
    return _frozen(workers)


def _frozen(workers: _Workers) -> list[Part]:
    """Return the copy of the policy that workers share and only ask, in the format they use."""
    cfg = workers.cfg
    model = _model(cfg.actor.model, plain=True)
    own = TrainingBytes.of(model, workers.ranks)
    compute = workers.format(cfg.actor.model.precision)
    parts = [Part("weights", own.parameters * compute.itemsize // 4 + own.buffers)]
    if workers.ranks > 1:
        parts.append(Part("gathered weights", _gathered(model, compute), exact=False))
    group = cfg.algorithm.group_size * cfg.runner.seq_length
    tokens = min(group, _micro_batch_tokens(workers, cfg.actor.micro_batch_size))
    layers = max(1, len(_layers(model)))
    # Without a backward pass only what the layer at work has made is there.
    size = int(tokens * activations_per_token(model) / layers * compute.itemsize / 4)
    logits = _logits_bytes(workers, model, tokens)
    return [*parts, Part("activations", size, exact=False), Part("logits", logits, exact=False)]


# -- models ---------------------------------------------------------------------------------------


def _model(section: Any, *, plain: bool = False, value_head: bool = False) -> nn.Module:
    """Return a model without memory.

    Args:
        section: its section.
        plain: without adapters and value head.
        value_head: with a value head in any case.
    """
    from rlinf.models.causal_lm.load import shape_of_causal_lm
    from rlinf.models.causal_lm.model import CausalLM
    from rlinf.models.lora import shape_with_adapters

    try:
        lm = shape_of_causal_lm(section)
        if section.is_lora and not plain:
            lm = shape_with_adapters(lm, section)
        with torch.device("meta"):
            head = value_head or (section.add_value_head and not plain)
            return CausalLM(lm, value_head=head)
    except (ValueError, OSError) as error:
        raise CannotPredict(str(error).strip().splitlines()[0]) from error


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the modules that FSDP shards on their own."""
    names = set(model._no_split_modules)
    return [module for module in model.modules() if type(module).__name__ in names]


def _has_critic(cfg: Any) -> bool:
    return cfg.critic is not None and cfg.critic.use_critic_model
