"""Small decoders trained on a CPU by compiled C, in which responses share their prompt.

A model of a million weights spends most of a pass of torch outside of matrix products: in norms,
rotations and attention of short sequences, in memory that is asked for and given back, and in
threads that wait for each other after each operation. Here each thread takes sequences of its own
through all layers.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.models.causal_lm.families import why_not_plain
from rlinf.models.causal_lm.layout import Sequences
from rlinf.utils.native import NoNativeKernels, blas, load

SOURCE = Path(__file__).with_name("native_decoder.c")
LANES = 16
"""Numbers in a vector."""
MOST_WEIGHTS = 8 << 20
"""Of all layers: each thread has a gradient of its own. In greater models products prevail."""
UNIT_TOKENS = 512
"""Responses that share the prompt are at most so many tokens, unless there is one alone."""

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class _Model(ctypes.Structure):
    """`Model` of the C file."""

    _fields_ = [
        *((name, _POINTER) for name in ("sgemm", "set_threads", "weights", "cosine", "sine")),
        *((name, _POINTER) for name in ("segments", "units")),
        *((name, _NUMBER) for name in ("units_count", "tokens", "largest", "layers", "hidden")),
        *((name, _NUMBER) for name in ("inner", "heads", "kv_heads", "head_norms", "biases")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
    ]


def why_not_native(module: nn.Module) -> str | None:
    """Says why a causal language model cannot be trained this way, or returns None.

    Args:
        module: of transformers, without adapters.
    """
    reason = why_not_plain(module)
    if reason:
        return reason
    if module.config.attention_dropout:
        return "it drops out"
    head_dim = module.model.layers[0].self_attn.head_dim
    if head_dim % LANES:
        return f"heads have {head_dim} numbers, not a multiple of {LANES}"
    for layer in module.model.layers:
        if any(part.bias is not None for part in (layer.self_attn.o_proj, *_mlp(layer))):
            return "it has biases besides those of queries, keys and values"
    if sum(weight.numel() for weight in _weights(module)) > MOST_WEIGHTS:
        return f"it has more than {MOST_WEIGHTS} weights"
    try:
        _library(head_dim)
    except NoNativeKernels as error:
        return str(error)
    return None


def is_native_now(module: nn.Module) -> bool:
    """Whether a model for which `why_not_native` is None is in a state to be trained so.

    It is not while it is elsewhere than in float32 on a CPU, in shards, under autocast, traced by a
    compiler, or to recompute its activations.
    """
    # Of a layer: FSDP gathers what is outside of them before anybody asks.
    weight = module.model.layers[0].self_attn.q_proj.weight
    return (
        (weight.device.type, weight.dtype) == ("cpu", torch.float32)
        and not hasattr(weight, "device_mesh")
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not module.is_gradient_checkpointing
    )


@dataclass(frozen=True)
class SharedPrompts:
    """Sequences of which neighbours with the same prompt share it, as the C file wants them.

    Attributes:
        tokens: of each prompt, then of its responses but their last ones, int64 `[N]`.
        segments: beginning, length and length of the prompt before it, of each prompt (before
            which there is none) and each response, int64 `[S, 3]`.
        units: number of the segment of each prompt, and of segments, int64 `[U + 1]`.
        largest: most tokens of a prompt and its responses.
        places: of the tokens before each response token, int64 `[R]`.
        targets: response tokens, int64 `[R]`.
    """

    tokens: Tensor
    segments: Tensor
    units: Tensor
    largest: int
    places: Tensor
    targets: Tensor

    @classmethod
    def of(cls, sequences: Sequences) -> SharedPrompts:
        """Lays sequences out."""
        tokens, prompts, responses = sequences.tokens, sequences.prompts, sequences.responses
        starts = (prompts + responses).cumsum(0) - prompts - responses
        firsts = _first_of_units(tokens, starts, prompts, responses)
        new = torch.zeros(len(prompts), dtype=torch.int64)
        new[firsts] = 1
        # Each sequence is a segment, and so is the prompt of each unit, before its first one.
        place = torch.arange(len(prompts)) + new.cumsum(0)
        units = place[firsts] - 1
        length, prefix, source = torch.zeros(3, len(prompts) + len(units), dtype=torch.int64)
        length[units], source[units] = prompts[firsts], starts[firsts]
        # The last token predicts nothing.
        length[place], source[place] = (responses - 1).clamp(min=0), starts + prompts
        prefix[place] = prompts
        begin = length.cumsum(0) - length
        places = _runs(begin[place] - 1, responses)
        # The first token of a response comes after the prompt.
        some = responses > 0
        ends = (begin[units] + prompts[firsts] - 1)[new.cumsum(0) - 1]
        places[(responses.cumsum(0) - responses)[some]] = ends[some]
        sizes = torch.diff(begin[units], append=length.sum().unsqueeze(0))
        return cls(
            tokens=tokens[_runs(source, length)],
            segments=torch.stack([begin, length, prefix], 1),
            units=torch.cat([units, torch.tensor([len(length)])]),
            largest=int(sizes.max()),
            places=places,
            targets=tokens[_runs(starts + prompts, responses)],
        )


def _runs(starts: Tensor, lengths: Tensor) -> Tensor:
    """Numbers from each start on, so many each, end to end."""
    before = lengths.cumsum(0) - lengths
    offsets = torch.repeat_interleave(starts - before, lengths)
    return offsets + torch.arange(len(offsets))


def _first_of_units(tokens: Tensor, starts: Tensor, prompts: Tensor, responses: Tensor) -> Tensor:
    """Numbers of the sequences that share no prompt with the one before, int64 `[U]`."""
    longest = int(prompts.max())
    columns = torch.arange(longest)
    inside = columns < prompts.unsqueeze(1)
    padded = torch.where(inside, tokens[(starts.unsqueeze(1) + columns) * inside], -1)
    shares = (padded[1:] == padded[:-1]).all(1).tolist()
    firsts, size = [0], 0
    for number, (same, length) in enumerate(zip([True, *shares], responses.tolist(), strict=True)):
        if not same or (size and size + length > UNIT_TOKENS):
            firsts.append(number)
            size = 0
        size += length
    return torch.tensor(firsts)


def hidden_states(module: nn.Module, inputs: SharedPrompts) -> Tensor:
    """The last hidden states of all tokens, `[N, H]`.

    Args:
        module: a model for which `why_not_native` returns None.
        inputs: what it reads.
    """
    weights = torch.cat([weight.flatten() for weight in _weights(module)])
    return _Layers.apply(module.model.embed_tokens(inputs.tokens), weights, module, inputs)


class _Layers(torch.autograd.Function):
    """All layers and the last norm."""

    @staticmethod
    def forward(
        ctx: Any, embedded: Tensor, weights: Tensor, module: nn.Module, inputs: SharedPrompts
    ) -> Tensor:
        ctx.call = call = _Call(module, inputs, weights)
        ctx.kept = _Memory(call.kept_size()) if any(ctx.needs_input_grad) else None
        return call.forward(embedded, ctx.kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *ctx.call.backward(grad.contiguous(), ctx.kept), None, None


class _Call:
    """A model and its input as the C file sees them."""

    def __init__(self, module: nn.Module, inputs: SharedPrompts, weights: Tensor) -> None:
        config, attention = module.config, module.model.layers[0].self_attn
        longest = int(inputs.segments[:, 1:].sum(1).max())
        # The module's own table, in the precision that its forward would use.
        positions = torch.arange(longest).unsqueeze(0)
        cosine, sine = module.model.rotary_emb(weights, position_ids=positions)
        half = attention.head_dim // 2
        cosine, sine = (x[0, :, :half].contiguous() for x in (cosine, sine))
        sgemm, set_threads = blas()
        self._library = _library(attention.head_dim)
        # What the addresses are of must live as long as they do.
        self._alive = (weights, cosine, sine, inputs)
        self._model = _Model(
            sgemm=sgemm,
            set_threads=set_threads,
            weights=weights.data_ptr(),
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
            segments=inputs.segments.data_ptr(),
            units=inputs.units.data_ptr(),
            units_count=len(inputs.units) - 1,
            tokens=len(inputs.tokens),
            largest=inputs.largest,
            layers=len(module.model.layers),
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_norms=hasattr(attention, "q_norm"),
            biases=attention.q_proj.bias is not None,
            epsilon=config.rms_norm_eps,
            scale=attention.scaling,
        )
        assert self._library.weights_size(self._address) == weights.numel()

    @property
    def _address(self) -> int:
        return ctypes.addressof(self._model)

    def kept_size(self) -> int:
        """Numbers that the backward pass needs."""
        return self._library.kept_size(self._address)

    def forward(self, embedded: Tensor, kept: _Memory | None) -> Tensor:
        """Hidden states, of the shape of the embedded tokens."""
        out, threads = torch.empty_like(embedded), torch.get_num_threads()
        scratch = _Memory(self._library.scratch_size(self._address, threads))
        self._library.forward(
            self._address,
            embedded.data_ptr(),
            out.data_ptr(),
            None if kept is None else kept.address,
            scratch.address,
            threads,
        )
        return out

    def backward(self, grad: Tensor, kept: _Memory) -> tuple[Tensor, Tensor]:
        """The gradients of the embedded tokens and of the weights."""
        threads = torch.get_num_threads()
        to_embedded, size = torch.empty_like(grad), self._alive[0].numel()
        to_weights = torch.empty(threads, size)
        wanted = torch.empty(self._model.units_count, dtype=torch.int8)
        scratch = _Memory(self._library.scratch_size(self._address, threads))
        self._library.backward(
            self._address,
            grad.data_ptr(),
            kept.address,
            to_embedded.data_ptr(),
            to_weights.data_ptr(),
            wanted.data_ptr(),
            scratch.address,
            threads,
        )
        return to_embedded, to_weights[0]


class _Memory:
    """Memory that is used again: fresh memory costs as much as what is computed in it."""

    _spare: list[Tensor] = []
    _MOST = 3

    def __init__(self, size: int) -> None:
        fitting = [each for each in self._spare if each.numel() >= size]
        self._tensor = min(fitting, key=Tensor.numel, default=None)
        if self._tensor is None:
            self._tensor = torch.empty(size)
        else:
            self._spare[:] = [each for each in self._spare if each is not self._tensor]
        self.address = self._tensor.data_ptr()

    def __del__(self) -> None:
        self._spare.append(self._tensor)
        self._spare[:] = sorted(self._spare, key=Tensor.numel)[-self._MOST :]


@cache
def _library(head_dim: int) -> ctypes.CDLL:
    """The compiled C file.

    Raises:
        NoNativeKernels: it cannot be compiled, or torch does not show its products.
    """
    blas()
    library = load(SOURCE, HEAD_DIM=head_dim)
    threads = ctypes.c_int
    signatures = {
        "weights_size": [_POINTER],
        "kept_size": [_POINTER],
        "scratch_size": [_POINTER, threads],
        "forward": [*[_POINTER] * 5, threads],
        "backward": [*[_POINTER] * 7, threads],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = _NUMBER if name.endswith("size") else None
    return library


def _weights(module: nn.Module) -> list[Tensor]:
    """All weights but embeddings, in the order of `Weights` of the C file."""
    weights = []
    for layer in module.model.layers:
        attention = layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        weights.append(layer.input_layernorm.weight)
        weights += [each.weight for each in projections]
        weights += [each.bias for each in projections if each.bias is not None]
        if hasattr(attention, "q_norm"):
            weights += [attention.q_norm.weight, attention.k_norm.weight]
        weights += [attention.o_proj.weight, layer.post_attention_layernorm.weight]
        weights += [each.weight for each in _mlp(layer)]
    return [*weights, module.model.norm.weight]


def _mlp(layer: nn.Module) -> tuple[nn.Module, ...]:
    return layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj
