"""Which language model an evaluation without an actor is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf.config.tracked import to_plain
from rlinf.utils.checkpoint import Checkpoint

ANY_TYPE = "hf_causal_lm"
"""Model type that takes a folder of any architecture."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A language model, described.

    Attributes:
        network: model section, plain data.
        tokenizer: tokenizer section, plain data; empty is that of the model's folder.
        weights: checkpoint, run or file whose weights replace those of the section; None if they
            are in the folder that it names.
        step: global step that made the weights; 0 if that is not known.
    """

    network: dict[str, Any]
    tokenizer: dict[str, Any]
    weights: str | None
    step: int


def evaluated_model(cfg: Any) -> EvaluatedModel:
    """Read a configuration of task type `reasoning_eval`.

    The network is that of `rollout.model`. What it leaves open is as in `actor.model` or, without
    an actor section, as in the checkpoint that `runner.ckpt_path` names. That may also be a folder
    of a model.

    Raises:
        ValueError: nothing says which network it is, or there are no weights.
    """
    weights, folder = cfg.runner.ckpt_path, cfg.rollout.model_dir
    if weights is not None:
        weights = str(Path(weights).expanduser())
        if (Path(weights) / "config.json").is_file():
            weights, folder = None, weights
    checkpoint = None if weights is None else _checkpoint(Path(weights))
    source: dict[str, Any] = {}
    if cfg.actor is not None:
        source = to_plain(cfg.actor)
    elif checkpoint is not None:
        source = checkpoint.manifest["config"]["actor"]
    own = {key: value for key, value in to_plain(cfg.rollout.model).items() if value is not None}
    if folder is not None:
        own["model_path"] = folder
    network = dict(source.get("model", {})) | own
    if "model_path" in own:
        network.pop("hf_config", None)
        network.setdefault("model_type", ANY_TYPE)
    if "model_type" not in network:
        raise ValueError(
            f"nothing says which model to evaluate: runner.ckpt_path is {weights}; name a "
            "checkpoint or a run there, or set rollout.model.model_path to a folder of a model, or "
            "describe the model with rollout.model.model_type"
        )
    if weights is None and network.get("model_path") is None:
        raise ValueError(
            "there are no weights to evaluate: set rollout.model.model_path to a folder of a "
            "model, or runner.ckpt_path to a checkpoint"
        )
    step = 0 if checkpoint is None else checkpoint.step
    return EvaluatedModel(network, source.get("tokenizer", {}), weights, step)


def _checkpoint(path: Path) -> Checkpoint | None:
    # Whoever reads the weights compares the hashes.
    return None if path.is_file() else Checkpoint.find(path, verify=False)
