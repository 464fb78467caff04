"""Weights that a policy begins with, from a checkpoint, an export or a single file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.fsdp.checkpoint import read_model
from rlinf.utils.checkpoint import Checkpoint


def initial_weights(cfg: Any) -> str | None:
    """Return where the config says that the policy's first weights are; None if they are fresh.

    Raises:
        ValueError: two different places are named.
    """
    ours, older = cfg.runner.ckpt_path, cfg.actor.checkpoint_load_path
    if ours is not None and older is not None and ours != older:
        raise ValueError(
            f"runner.ckpt_path is {ours} and actor.checkpoint_load_path is {older}: both name the "
            "weights to begin with; keep one of them"
        )
    return ours if ours is not None else older


def load_initial_weights(model: nn.Module, cfg: Any) -> None:
    """Give a model the weights that the config names, if it names any.

    Args:
        model: whole, not sharded.
        cfg: checked configuration.

    Raises:
        ValueError: there are no weights at that place, or they are those of another model.
    """
    path = initial_weights(cfg)
    if path is not None:
        load_weights(model, path)


def load_weights(model: nn.Module, path: str) -> None:
    """Give a model the weights of a checkpoint, a run or a file; see `read_weights`.

    Args:
        model: whole, not sharded.
        path: where they are.

    Raises:
        ValueError: there are no weights at that place, or they are those of another model.
    """
    found = read_weights(Path(path))
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - found.keys()), sorted(found.keys() - own.keys())
    shapes = [
        f"{name} is {list(found[name].shape)} there and {list(own[name].shape)} here"
        for name in sorted(own.keys() & found.keys())
        if found[name].shape != own[name].shape
    ]
    if missing or unknown or shapes:
        facts = [f"it lacks {', '.join(missing[:4])}"] if missing else []
        facts += [f"it also has {', '.join(unknown[:4])}"] if unknown else []
        raise ValueError(
            f"the weights of {path} are not those of this model: "
            f"{'; '.join(facts + shapes[:4])}; make the model section that of the run that wrote "
            "them, or name other weights with runner.ckpt_path"
        )
    model.load_state_dict(found)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read weights and buffers of a model; nothing is unpickled but tensors.

    Args:
        path: folder of a checkpoint or of a run, folder that `rlinf export` wrote, or a file of
            safetensors or of `torch.save`.

    Raises:
        ValueError: there are none.
    """
    from safetensors.torch import load_file

    if path.is_file():
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
            raise ValueError(
                f"{path} is not a state dict: a file of torch.save must have tensors by name"
            )
        return tensors
    exported = sorted(path.glob("*.safetensors"))
    if exported:
        return {name: tensor for file in exported for name, tensor in load_file(file).items()}
    if not path.is_dir():
        raise ValueError(
            f"there are no weights at {path}: there is no such file or folder; runner.ckpt_path "
            "takes a checkpoint, a run, an exported folder or a file of weights"
        )
    checkpoint = Checkpoint.find(path)
    return read_model(checkpoint.path / "actor" / "tensors")
