"""Chooses how to run a model: which kernels, which cache, how many rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from rlinf.hybrid_engines.generation.hf.device_block_cache import DeviceBlockCache
from rlinf.hybrid_engines.generation.hf.flash_cache import FlashCache
from rlinf.hybrid_engines.generation.hf.kv_cache import BmmCache, CacheShape, KVCache, SdpaCache
from rlinf.hybrid_engines.generation.hf.lean import LeanModel, cache_shape, fused_groups
from rlinf.hybrid_engines.generation.hf.model import DecoderModel, check_against_module
from rlinf.hybrid_engines.generation.hf.paged_cache import PagedCache
from rlinf.hybrid_engines.generation.hf.triton_model import TritonModel
from rlinf.hybrid_engines.generation.hf.weights import WeightArena
from rlinf.hybrid_engines.generation.settings import PRECISIONS, EngineSettings
from rlinf.models.causal_lm.families import why_not_plain
from rlinf.models.causal_lm.load import transformers_module

logger = logging.getLogger(__name__)

STRIDE = 16
"""Capacities are multiples of it: kernels work on whole vectors."""

KERNELS = ("auto", "triton", "flash", "torch", "transformers")
_ON_CUDA = ("triton", "flash")
"""From the fastest on."""
_CACHES: dict[str, type[KVCache]] = {
    "triton": SdpaCache,
    "flash": FlashCache,
    "torch": SdpaCache,
}


@dataclass(frozen=True)
class Paging:
    """Whether keys and values are in blocks, and in how many.

    Attributes:
        paged: Whether they are; otherwise each row has memory for its full length. `auto` decides
            by the path, see `resolved`.
        tokens: Most tokens in blocks; None is what all rows take when they are full.
        reuse: Whether sequences use blocks of earlier ones.
    """

    paged: bool | Literal["auto"] = "auto"
    tokens: int | None = None
    reuse: bool = True

    def resolved(self, path: str, device: torch.device) -> Paging:
        """Return the paging of a path, with `paged` decided.

        `auto` is true for the path `triton`, where blocks cost no speed.

        Raises:
            ValueError: The path has no paged cache and is asked for one, or tokens are given
                without one.
        """
        if self.paged is True and path != "triton" and (path, device.type) != ("torch", "cpu"):
            raise ValueError(
                f"rollout.hf.paged_cache is true: the path triton, and torch on a CPU, have a "
                f"paged cache, {path} on {device.type} has not; set it to auto or false"
            )
        paged = path == "triton" if self.paged == "auto" else self.paged
        if self.tokens is not None and not paged:
            why = f", which is off for the path {path} on {device.type}"
            raise ValueError(
                f"rollout.hf.max_cache_tokens is {self.tokens}: it is for a paged cache, and "
                f"rollout.hf.paged_cache is {str(self.paged).lower()}"
                f"{why if self.paged == 'auto' else ''}; set it to true or leave "
                "max_cache_tokens out"
            )
        return replace(self, paged=paged)


@torch.no_grad()
def build_model(
    module: nn.Module,
    *,
    slots: int,
    tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    kernels: str = "auto",
    compiled: bool = False,
    memory: float = 0.65,
    paging: Paging = Paging(),  # noqa: B008 - frozen
) -> DecoderModel:
    """Make a model ready to generate, and check it against its own forward.

    Args:
        module: A causal language model of transformers; its parameters are moved.
        slots: Rows wanted.
        tokens: Tokens per row wanted; the capacity is this or a bit more.
        device: Where to run.
        dtype: Number format.
        kernels: One of `KERNELS`.
        compiled: Fuse small operations with `torch.compile`.
        memory: Part of a CUDA device that weights and cache may take.
        paging: Whether keys and values are in blocks.

    Returns:
        The model, with its cache allocated.

    Raises:
        ValueError: These kernels cannot run this model, or there is no memory for one row.
    """
    if kernels not in KERNELS:
        raise ValueError(f"kernels is {kernels!r}: {', '.join(KERNELS)} are allowed")
    module.eval()
    path = _path(module, device, dtype, kernels)
    chosen = paging.resolved(path, device)
    groups = [] if path == "transformers" else fused_groups(module)
    weights = WeightArena(module, device, dtype, groups)

    failures: list[str] = []
    attempts = _attempts(path, kernels, paging, chosen)
    for number, (path, cache) in enumerate(attempts, start=1):
        model = _assemble(
            path, module, weights, slots, tokens, device, dtype, compiled, memory, cache
        )
        name = f"{path} with {'a paged cache' if cache.paged else 'contiguous rows'}"
        try:
            model.allocate()
            check_against_module(model)
        except Exception as error:  # a compiler of kernels fails in many ways
            # Its memory is for the next one.
            del model
            if number == len(attempts):
                _report(failures, "nothing else works")
                raise
            failures.append(f"{name} fails: {error}")
        else:
            _report(failures, f"generation uses {name}")
            return model
    raise AssertionError("there is at least one attempt")


def _attempts(path: str, kernels: str, wanted: Paging, chosen: Paging) -> list[tuple[str, Paging]]:
    """Return what to try, from the fastest on; what was asked for by name is tried alone."""
    attempts, rows = [(path, chosen)], Paging(paged=False)
    if wanted.paged is True:
        return attempts
    if chosen.paged:
        attempts.append((path, rows))
    if kernels == "auto" and path in _ON_CUDA:
        attempts.append(("torch", rows))
    return attempts


def _report(failures: list[str], outcome: str) -> None:
    if failures:
        logger.warning("%s, since %s", outcome, "; ".join(failures))


def _assemble(
    path: str,
    module: nn.Module,
    weights: WeightArena,
    slots: int,
    tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    compiled: bool,
    memory: float,
    paging: Paging,
) -> DecoderModel:
    if path == "transformers":
        from rlinf.hybrid_engines.generation.hf.generic import GenericModel

        model: DecoderModel = GenericModel(module, weights, slots, tokens)
        # It knows the memory of a row only now, and takes it later.
        model.slots = _rows_that_fit(slots, tokens, model.bytes_per_row(), device, memory)
        return model
    capacity = tokens + -tokens % STRIDE
    if paging.paged:
        cache = _blocks(path, cache_shape(module, slots, capacity), device, dtype, memory, paging)
    else:
        kind = BmmCache if (path, device.type) == ("torch", "cpu") else _CACHES[path]
        room = kind.bytes_per_slot(cache_shape(module, 1, capacity), dtype)
        rows = _rows_that_fit(slots, tokens, room, device, memory)
        cache = kind(cache_shape(module, rows, capacity), device, dtype)
    if path == "triton":
        return TritonModel(module, weights, cache)
    model = LeanModel(module, weights, cache, compiled)
    model.path = path
    return model


def _blocks(
    path: str,
    shape: CacheShape,
    device: torch.device,
    dtype: torch.dtype,
    memory: float,
    paging: Paging,
) -> KVCache:
    """Return a paged cache: all rows wanted, and blocks as the memory allows."""
    kind = PagedCache if path == "torch" else DeviceBlockCache
    tokens = shape.slots * (shape.capacity + -shape.capacity % kind.block)
    if paging.tokens is not None:
        tokens = paging.tokens
    if device.type == "cuda":
        total, left = _memory(device, memory)
        # One block is that of rows without a sequence.
        fit = (left // DeviceBlockCache.block_bytes(shape, dtype) - 1) * kind.block
        if fit < shape.capacity + -shape.capacity % kind.block:
            raise ValueError(
                f"no sequence of {shape.capacity} tokens fits on {device}: "
                f"rollout.gpu_memory_utilization {memory:g} of {total / 2**30:.1f} GiB leaves room "
                f"for {max(fit, 0)} tokens; raise it or shorten runner.seq_length"
            )
        if fit < tokens:
            logger.warning(
                "keys and values of %d tokens fit on %s, not of %d: responses wait if they need "
                "more",
                fit,
                device,
                tokens,
            )
            tokens = fit
    return kind(shape, device, dtype, tokens, paging.reuse)


def load_model(settings: EngineSettings) -> nn.Module:
    """Load the model of a folder.

    Raises:
        ValueError: There is no such folder.
    """
    if not Path(settings.model_path).is_dir():
        raise ValueError(
            f"model_path is {settings.model_path!r}: there is no such folder; set "
            "rollout.model.model_path or actor.model.model_path"
        )
    return transformers_module().AutoModelForCausalLM.from_pretrained(
        settings.model_path,
        dtype=getattr(torch, PRECISIONS[settings.precision]),
        trust_remote_code=settings.trust_remote_code,
    )


def end_tokens(module: nn.Module) -> tuple[int, ...]:
    """Return what ends a sequence, by the model's generation config or, without one, its config."""
    for config in (getattr(module, "generation_config", None), module.config):
        ends = getattr(config, "eos_token_id", None)
        if ends is not None:
            return (ends,) if isinstance(ends, int) else tuple(ends)
    return ()


def _path(module: nn.Module, device: torch.device, dtype: torch.dtype, kernels: str) -> str:
    not_lean = why_not_plain(module)
    head_dim = 0 if not_lean else cache_shape(module, 1, 1).head_dim
    reasons = {
        "triton": lambda: TritonModel.why_not(device, dtype, head_dim),
        "flash": lambda: FlashCache.why_not(device, dtype, head_dim),
        "torch": lambda: None,
    }
    if kernels == "transformers":
        return kernels
    if kernels != "auto":
        reason = not_lean or reasons[kernels]()
        if reason:
            raise ValueError(f"kernels {kernels!r} cannot run this model: {reason}")
        return kernels
    if not_lean:
        logger.warning(
            "%s is run by the forward of transformers, which is slower than our own: %s",
            type(module).__name__,
            not_lean,
        )
        return "transformers"
    for best in _ON_CUDA if device.type == "cuda" else ():
        reason = reasons[best]()
        if not reason:
            return best
        logger.warning("the %s kernels cannot be used, so decoding is slower: %s", best, reason)
    return "torch"


def _memory(device: torch.device, part: float) -> tuple[int, int]:
    """Return the bytes of a CUDA device, and how many of this part of them are left."""
    total = torch.cuda.get_device_properties(device).total_memory
    return total, int(part * total) - torch.cuda.memory_allocated(device)


def _rows_that_fit(slots: int, tokens: int, room: int, device: torch.device, memory: float) -> int:
    if device.type != "cuda":
        return slots
    total, left = _memory(device, memory)
    fit = min(slots, left // room)
    numbers = (
        f"rollout.gpu_memory_utilization {memory:g} of {total / 2**30:.1f} GiB leaves "
        f"{max(left, 0) / 2**30:.1f} GiB for keys and values, and a sequence of {tokens} tokens "
        f"takes {room / 2**30:.3f} GiB"
    )
    if fit < 1:
        raise ValueError(
            f"no sequence fits on {device}: {numbers}; raise it or shorten runner.seq_length"
        )
    if fit < slots:
        logger.warning("%d responses at a time instead of %d: %s", fit, slots, numbers)
    return fit
