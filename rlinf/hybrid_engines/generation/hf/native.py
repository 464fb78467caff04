"""Compiles the decoding step of `native.c` for a model's heads, once per machine, and calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlinf.utils.native import NoNativeKernels, blas, load

SOURCE = Path(__file__).with_name("native.c")
LANES = 16
"""Numbers in a vector."""

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class LayerPointers(ctypes.Structure):
    """`Layer` of `native.c`."""

    _fields_ = [
        (name, _POINTER)
        for name in (
            *("before_attention", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias"),
            *("before_mlp", "gate_up", "gate_up_bias", "down", "down_bias", "keys", "values"),
        )
    ]


class ModelPointers(ctypes.Structure):
    """`Model` of `native.c`."""

    _fields_ = [
        ("sgemm", _POINTER),
        ("set_threads", _POINTER),
        ("layers", ctypes.POINTER(LayerPointers)),
        *((name, _POINTER) for name in ("embedding", "norm", "head", "cosine", "sine")),
        *((name, _NUMBER) for name in ("layers_count", "hidden", "inner", "vocabulary")),
        *((name, _NUMBER) for name in ("kv_heads", "capacity")),
        ("epsilon", ctypes.c_float),
    ]


class InputPointers(ctypes.Structure):
    """`Input` of `native.c`."""

    _fields_ = [(name, _POINTER) for name in ("tokens", "positions", "slots")]


class DrawingPointers(ctypes.Structure):
    """`Drawing` of `native.c`."""

    _fields_ = [(name, _POINTER) for name in ("temperatures", "keys", "counters", "result")]


class NativeKernels:
    """The kernels for one kind of head; tensors are contiguous fp32 on the CPU.

    Args:
        head_dim: Numbers per head, a multiple of 16.
        group: Query heads per key head.

    Raises:
        NoNativeKernels: There is no C compiler or no BLAS in torch, or the heads do not fit.
    """

    def __init__(self, head_dim: int, group: int):
        if head_dim % LANES:
            raise NoNativeKernels(f"heads have {head_dim} numbers, not a multiple of {LANES}")
        self._blas = blas()
        library = load(SOURCE, HEAD_DIM=head_dim, GROUP=group)
        threads = ctypes.c_int
        signatures = {
            "forward": [*[_POINTER] * 5, _NUMBER, threads],
            "draw": [*[_POINTER] * 2, *[_NUMBER] * 2, threads],
            "copy": [*[_POINTER] * 4, _NUMBER, threads],
            "scratch_size": [_POINTER, _NUMBER, threads],
        }
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = _NUMBER if name == "scratch_size" else None
            setattr(self, f"_{name}", function)
        self._scratch = torch.empty(0)

    def pointers(
        self,
        layers: Sequence[Mapping[str, Tensor | None]],
        tensors: Mapping[str, Tensor],
        sizes: Mapping[str, float],
    ) -> ModelPointers:
        """Describes a model to the kernels; valid as long as no tensor moves.

        Args:
            layers: The tensors of each layer, by the fields of `LayerPointers`.
            tensors: The other tensors, by the fields of `ModelPointers`.
            sizes: The numbers, likewise.
        """
        array = (LayerPointers * len(layers))()
        for target, layer in zip(array, layers, strict=True):
            for name, tensor in layer.items():
                setattr(target, name, None if tensor is None else tensor.data_ptr())
        sgemm, set_threads = self._blas
        places = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        return ModelPointers(
            sgemm=sgemm,
            set_threads=set_threads,
            layers=array,
            layers_count=len(layers),
            **places,
            **sizes,
        )

    def forward(
        self,
        model: ModelPointers,
        tokens: InputPointers,
        rows: int,
        logits: Tensor | None = None,
        drawing: DrawingPointers | None = None,
    ) -> Tensor:
        """Reads tokens, and draws the next ones if it is told how.

        Args:
            model: From `pointers`.
            tokens: At least `rows` of them.
            rows: How many to read.
            logits: `[rows, V]`, to be filled.
            drawing: Of at least `rows`; tokens, positions and counters move on.

        Returns:
            Hidden states `[rows, H]` behind the last norm; valid until the next call.
        """
        threads, address = torch.get_num_threads(), ctypes.addressof(model)
        size = self._scratch_size(address, rows, threads)
        if self._scratch.numel() < size:
            self._scratch = torch.empty(size)
        self._forward(
            address,
            ctypes.addressof(tokens),
            None if logits is None else logits.data_ptr(),
            None if drawing is None else ctypes.addressof(drawing),
            self._scratch.data_ptr(),
            rows,
            threads,
        )
        return self._scratch[: rows * model.hidden].view(rows, -1)

    def copy(self, model: ModelPointers, sources: Tensor, targets: Tensor, lengths: Tensor) -> None:
        """Copies the first tokens of slots to other slots; all `[n]` int64."""
        places = (t.data_ptr() for t in (sources, targets, lengths))
        count, threads = sources.shape[0], torch.get_num_threads()
        self._copy(ctypes.addressof(model), *places, count, threads)

    def draw(
        self, logits: Tensor, temperatures: Tensor, keys: Tensor, counters: Tensor, result: Tensor
    ) -> None:
        """Draws tokens without cuts.

        Args:
            logits: `[B, V]`.
            temperatures: `[B]`; 0 takes the likeliest.
            keys: `[B]` int64, see `noise`.
            counters: `[B]` int64.
            result: `[B, 2]` float64; gets tokens and log-probabilities.
        """
        drawing = drawing_pointers(temperatures, keys, counters, result)
        threads = torch.get_num_threads()
        self._draw(ctypes.addressof(drawing), logits.data_ptr(), *logits.shape, threads)


def input_pointers(tokens: Tensor, positions: Tensor, slots: Tensor | None = None) -> InputPointers:
    """Tokens to read, `[B]` int64 each; without slots, token b is in slot b."""
    return InputPointers(
        tokens=tokens.data_ptr(),
        positions=positions.data_ptr(),
        slots=None if slots is None else slots.data_ptr(),
    )


def drawing_pointers(
    temperatures: Tensor, keys: Tensor, counters: Tensor, result: Tensor
) -> DrawingPointers:
    """How to draw; see `NativeKernels.draw`."""
    return DrawingPointers(
        temperatures=temperatures.data_ptr(),
        keys=keys.data_ptr(),
        counters=counters.data_ptr(),
        result=result.data_ptr(),
    )
