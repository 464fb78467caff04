"""Weights of a small model in a folder: one safetensors file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

WEIGHTS_FILE = "model.safetensors"


def save_weights(model: nn.Module, folder: str | Path) -> Path:
    """Write parameters and buffers of a model.

    Args:
        model: Its tensors must be whole, not sharded.
        folder: Made if absent.

    Returns:
        The file.
    """
    from safetensors.torch import save_file

    path = Path(folder) / WEIGHTS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, path)
    return path


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Read parameters and buffers into a model.

    Args:
        model: Receives the values in its own number format.
        path: A `.safetensors` or `.pt` file with a state dict, or a folder with
            `model.safetensors`.

    Raises:
        ValueError: There is no such file, or its tensors are not those of the model.
    """
    from safetensors.torch import load_file

    file = Path(path)
    file = file / WEIGHTS_FILE if file.is_dir() else file
    if not file.is_file():
        raise ValueError(f"no weights at {file}: expected that file, or a folder that holds it")
    if file.suffix == ".safetensors":
        state = load_file(file)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
    own = model.state_dict()
    wrong = [f"missing {name}" for name in sorted(own.keys() - state.keys())]
    wrong += [f"unknown {name}" for name in sorted(state.keys() - own.keys())]
    wrong += [
        f"{name} is {list(state[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(
            f"weights in {file} are of another model: {'; '.join(wrong[:5])}{more}; check the "
            "sizes in the model section"
        )
    model.load_state_dict(state)
