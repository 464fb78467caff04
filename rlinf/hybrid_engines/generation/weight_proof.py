"""What new weights of an engine of another project are checked against, before and after."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

_SHIFT = 1.25

Send = Callable[[dict[str, Tensor]], None]
"""Replaces all weights of an engine."""
Probe = Callable[[], float]
"""Returns a number that depends on all weights, such as a log-probability."""


class KnownWeights:
    """The weights that a model has, by what its folder says.

    Args:
        folder: Of the model, with `config.json` and `*.safetensors`.

    Attributes:
        tied: Whether one matrix is for what is read and for what is drawn.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.shapes = known_shapes(folder)
        self.tied = ties_embeddings(folder)

    def check(self, tensors: dict[str, Tensor]) -> None:
        """Refuse weights that are not those of the model.

        Raises:
            WeightMismatch: A tensor is unknown, missing or of another shape.
        """
        may_lack = {HEAD} if self.tied else set()
        missing = self.shapes.keys() - tensors.keys() - may_lack
        unknown = tensors.keys() - self.shapes.keys() - may_lack
        if missing or unknown:
            raise WeightMismatch(
                f"weights do not fit the model in {self.folder}: missing {sorted(missing)[:3]}, "
                f"unknown {sorted(unknown)[:3]}"
            )
        for name, shape in self.shapes.items():
            if name in tensors and tuple(tensors[name].shape) != shape:
                raise WeightMismatch(
                    f"{name!r} arrived as {tuple(tensors[name].shape)} and is {shape} in "
                    f"{self.folder}"
                )


def prove(
    engine: str, send: Send, probe: Probe, tensors: dict[str, Tensor], tied: bool, prompt: list[int]
) -> None:
    """Change weights of each kind and back, and look at what comes of it.

    Args:
        engine: What errors call it.
        send: How to replace the weights.
        probe: What must follow them; it reads `prompt`.
        tensors: The weights that the engine has, by name.
        tied: Whether one matrix is for what is read and for what is drawn.
        prompt: Tokens that the probe reads.

    Raises:
        WeightMismatch: A change had no effect.
    """
    before = probe()
    for kind, changed in changes(tensors, tied, prompt):
        send(tensors | changed)
        after = probe()
        send(tensors)
        again = probe()
        if after == before or not math.isclose(again, before, abs_tol=1e-3):
            raise WeightMismatch(
                f"{engine} took new values of {kind} (such as {min(changed)}) without effect: the "
                f"log-probability of a token was {before:.6f}, {after:.6f} with values times "
                f"{_SHIFT:g}, and {again:.6f} with the old ones again; use another version of "
                f"{engine}, or rollout_backend hf"
            )


def known_shapes(folder: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in a folder, by name."""
    from safetensors import safe_open

    known: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            known |= {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    if not known:
        raise ValueError(
            f"there are no *.safetensors in {folder}: save the model with "
            "model.save_pretrained(folder)"
        )
    return known


def ties_embeddings(folder: str) -> bool:
    """Return whether a model has one matrix for what goes in and what comes out."""
    from transformers import AutoConfig

    return bool(AutoConfig.from_pretrained(folder).tie_word_embeddings)


def changes(
    tensors: dict[str, Tensor], tied: bool, prompt: list[int]
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Change weights of one kind after the other, each so that what a prompt gives must change.

    Args:
        tensors: All weights by name.
        tied: Whether one matrix is for what is read and for what is drawn.
        prompt: Tokens that are read.

    Yields:
        What was changed, and the changed tensors by name.
    """
    kinds: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if "embed" in name or (tied and name == HEAD):
            kind = "embeddings"
        elif name == HEAD:
            kind = "the last layer"
        else:
            kind = "matrices" if tensor.dim() > 1 else "vectors"
        kinds.setdefault(kind, []).append(name)
    for kind, names in kinds.items():
        if kind != "embeddings":
            yield kind, {name: tensors[name] * _SHIFT for name in names}
            continue
        rows = torch.ones(len(tensors[names[0]]), 1, device=tensors[names[0]].device)
        rows[prompt] = _SHIFT
        yield "embeddings of what is read", {n: (tensors[n] * rows).to(tensors[n]) for n in names}
        if tied:
            rows = 1 + _SHIFT - rows
            changed = {n: (tensors[n] * rows).to(tensors[n]) for n in names}
            yield "embeddings of what is drawn", changed
