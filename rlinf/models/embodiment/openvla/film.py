"""The file of towers with FiLM, in which OpenVLA-OFT leaves its adapters beside the weights.

Names there are those of the network, but blocks are wrapped (`blocks.N.block.*` beside
`blocks.N.scale` and `blocks.N.shift`), and each linear layer of the towers that is not FiLM's has
`base_layer`, `lora_A.default` and `lora_B.default`: W = W_0 + (alpha / rank) B A with
alpha = min(rank, 16).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.openvla.vision import is_film
from rlinf.models.tensor_files import TensorSource, tensors_of_file
from rlinf.utils.shards import Rows

FILM_PART = "vision_backbone"
"""What the file is called after."""
RANK = 32
"""Of adapters that are written, the default of OpenVLA-OFT's `lora_rank`."""
_MOST_ALPHA = 16
_BASE, _A, _B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def name_in_file(name: str) -> str:
    """Return what a tensor of the network is called there, adapters aside."""
    return name if is_film(name) else re.sub(r"\.blocks\.(\d+)\.", r".blocks.\1.block.", name)


class FilmFile:
    """Tensors of such a file, with adapters merged into them as they are read.

    Args:
        file: Of `torch.save`.

    Raises:
        ValueError: It is another file, or half of an adapter is missing.
    """

    def __init__(self, file: Path) -> None:
        self._source: TensorSource = tensors_of_file(file)
        found = {name.removeprefix("module."): name for name in self._source.names()}
        # By the name of a weight without adapters: that of the weight and those of its adapter.
        self._adapters: dict[str, tuple[str, str]] = {}
        for layer in sorted({name.partition(".lora_")[0] for name in found if ".lora_" in name}):
            halves = f"{layer}{_A}", f"{layer}{_B}"
            missing = [name for name in halves if name not in found]
            if missing:
                raise ValueError(f"{file} has adapters of {layer}, but misses {missing[0]}")
            self._adapters[f"{layer}.weight"] = found.pop(halves[0]), found.pop(halves[1])
        self._names = {name.replace(_BASE, "."): there for name, there in found.items()}

    def names(self) -> list[str]:
        """Return the names of all tensors, as they are without adapters."""
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a tensor."""
        return self._source.shape(self._names[name])

    def read(self, name: str, rows: Rows | None = None) -> Tensor:
        """Read a tensor, or some of its rows."""
        weight = self._source.read(self._names[name], rows)
        if name not in self._adapters:
            return weight
        down, up = self._adapters[name]
        factor, rank = self._source.read(down).float(), self._source.shape(down)[0]
        change = self._source.read(up, rows).float() @ factor
        return (weight.float() + min(rank, _MOST_ALPHA) / rank * change).to(weight.dtype)


def film_tensors(backbone: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what the file of a network's towers holds.

    Its adapters change nothing: A is drawn as peft draws it, and B is zero, as before a training.

    Args:
        backbone: The towers.
        state: Weights of the network, without adapters.
    """
    linear = {
        f"{FILM_PART}.{name}.weight".replace(_BASE[:-1], "")
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and ".lora_" not in name
    }
    rng = torch.Generator().manual_seed(0)
    found = {}
    for name, tensor in state.items():
        if not name.startswith(f"{FILM_PART}."):
            continue
        there, tensor = name_in_file(name), tensor.detach().contiguous()
        layer, _, kind = there.rpartition(".")
        own_layer = f"{name.rpartition('.')[0]}.weight"
        if own_layer not in linear or is_film(name):
            found[there] = tensor
            continue
        found[f"{layer}{_BASE}{kind}"] = tensor
        if kind == "weight":
            outputs, inputs = tensor.shape
            drawn = torch.randn(RANK, inputs, generator=rng) / RANK
            found[f"{layer}{_A}"] = drawn.to(tensor.dtype)
            found[f"{layer}{_B}"] = tensor.new_zeros(outputs, RANK)
    return found
