"""Takes a language model out of a checkpoint and writes an ordinary folder of transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import OmegaConf

from rlinf.data.tokenizer import load_tokenizer
from rlinf.hybrid_engines.fsdp.checkpoint import read_model
from rlinf.models import get_model
from rlinf.models.export.folder import write_whole
from rlinf.utils.checkpoint import Checkpoint

FORMATS = ("hf", "safetensors")
"""Both are the same folder: its weights are safetensors."""


def export_causal_lm(checkpoint: Checkpoint, to: str, out: Path) -> Path:
    """Write weights, adapters merged, config and tokenizer.

    Args:
        checkpoint: Of a run of a language model.
        to: One of `FORMATS`.
        out: Absent, or an empty folder.

    Returns:
        The folder.

    Raises:
        ValueError: The format is unknown, something is in the way, or the folder that the model
            was made from is gone.
    """
    if to not in FORMATS:
        raise ValueError(f"unknown format {to!r}; known: {', '.join(FORMATS)}")
    actor = checkpoint.manifest["config"]["actor"]
    section = OmegaConf.create(actor["model"])
    path = section.model_path
    if path is not None and not Path(path).is_dir():
        raise ValueError(
            f"the model was made from {path}, which is not there any more: its config and "
            "tokenizer are needed; bring the folder back"
        )
    policy = get_model(section, dtype=torch.float32)
    policy.load_state_dict(read_model(checkpoint.path / "actor" / "tensors"))
    tokenizer = load_tokenizer(OmegaConf.create(actor["tokenizer"]), path)

    def write(folder: Path) -> None:
        policy.save_folder(folder, dict(policy.policy_tensors(lambda tensor: tensor)))
        tokenizer.save_pretrained(folder)

    return write_whole(out, write)
