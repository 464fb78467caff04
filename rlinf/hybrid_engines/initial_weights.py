"""Weights that a policy begins with, from a checkpoint, an export or a single file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rlinf.hybrid_engines.fsdp.checkpoint import MODEL
from rlinf.models.deferred import deferred_of
from rlinf.models.tensor_files import SafetensorsFiles, TensorSource, tensors_of_file
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


def load_initial_weights(model: nn.Module, cfg: Any) -> str:
    """Give a model the weights that the config names, if it names any.

    Args:
        model: whole, not sharded; one that was built without weights gets them when it is filled.
        cfg: checked configuration.

    Returns:
        What to tell the user, or nothing; as `load_weights`.

    Raises:
        ValueError: there are no weights at that place, or they are those of another model.
    """
    path = initial_weights(cfg)
    return "" if path is None else load_weights(model, path)


def load_weights(model: nn.Module, path: str) -> str:
    """Give a model the weights of a checkpoint, a run or a file; see `tensors_at`.

    Args:
        model: as for `load_initial_weights`.
        path: where they are. Value and Q-functions, and networks of exploration noise, may be
            missing there, or be too many. Adapters may be missing: they then begin afresh beside
            the weights that are there.

    Returns:
        Which of the heads begin afresh, in words; empty if none do.

    Raises:
        ValueError: there are no weights at that place, or they are those of another model.
    """
    found = tensors_at(Path(path).expanduser())
    own = model.state_dict()
    names = {name: name for name in own}
    if not any(map(_is_adapter, found.names())):
        plain = {name: name.replace(".base_layer.", ".") for name in own}
        names = {name: there for name, there in plain.items() if not _is_adapter(name)}
    fresh = _without_heads(model, found, names)
    for name in fresh:
        del names[name]
    _require_fitting(model, found, {there: own[name] for name, there in names.items()}, path)
    deferred = deferred_of(model)
    if deferred is not None:
        named = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        later = {name: there for name, there in names.items() if name in named}
        deferred.replace(found, later)
        names = {name: there for name, there in names.items() if name not in later}
    given = {name: found.read(there) for name, there in names.items()}
    model.load_state_dict(given, strict=False)
    heads = ", ".join(dict.fromkeys(name.partition(".")[0] for name in fresh))
    return f"{path} has no {heads}: begun afresh" if fresh else ""


def _is_adapter(name: str) -> bool:
    return ".lora_" in name


def _without_heads(model: nn.Module, found: TensorSource, own: Iterable[str]) -> list[str]:
    """Return the weights of heads that a source has nothing of at all.

    What was trained without them, by behaviour cloning for instance, is still the policy that a
    training with them begins with; they begin afresh.
    """
    fresh = []
    for belongs in _heads(model):
        if not any(map(belongs, found.names())):
            fresh += [name for name in own if belongs(name)]
    return fresh


def _heads(model: nn.Module) -> list[Callable[[str], bool]]:
    """Return what tells whether a weight is one of a value, of a Q-function, or of noise."""
    kinds = ("value", "q", "noise", "steering")
    names = [f"is_{kind}_parameter" for kind in kinds]
    return [getattr(model, name) for name in names if hasattr(model, name)]


def _require_fitting(
    model: nn.Module, found: TensorSource, own: dict[str, Tensor], path: str
) -> None:
    """Refuse the weights of another model; heads that this one does not have do not matter."""
    names = set(found.names())
    for belongs in _heads(model):
        if not any(map(belongs, own)):
            names = {name for name in names if not belongs(name)}
    missing, unknown = sorted(own.keys() - names), sorted(names - own.keys())
    shapes = [
        f"{name} is {list(found.shape(name))} there and {list(own[name].shape)} here"
        for name in sorted(own.keys() & names)
        if found.shape(name) != tuple(own[name].shape)
    ]
    if missing or unknown or shapes:
        facts = [f"it lacks {', '.join(missing[:4])}"] if missing else []
        facts += [f"it also has {', '.join(unknown[:4])}"] if unknown else []
        raise ValueError(
            f"the weights of {path} are not those of this model: "
            f"{'; '.join(facts + shapes[:4])}; make the model section that of the run that wrote "
            "them, or name other weights with runner.ckpt_path"
        )


def tensors_at(path: Path) -> TensorSource:
    """Find weights and buffers of a model; nothing is unpickled but tensors.

    Args:
        path: folder of a checkpoint or of a run, folder that `rlinf export` wrote, or a file of
            safetensors or of `torch.save`.

    Raises:
        ValueError: there are none.
    """
    if path.is_file():
        return tensors_of_file(path)
    exported = sorted(path.glob("*.safetensors"))
    if exported:
        return SafetensorsFiles(exported)
    if not path.is_dir():
        raise ValueError(
            f"there are no weights at {path}: there is no such file or folder; runner.ckpt_path "
            "takes a checkpoint, a run, an exported folder or a file of weights"
        )
    folder = Checkpoint.find(path).path / "actor" / "tensors"
    tensors = SafetensorsFiles(sorted(folder.glob("*.safetensors")), MODEL)
    if not tensors.names():
        raise ValueError(f"{folder} has no tensors of a model")
    return tensors
