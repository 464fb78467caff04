"""Takes the policy out of a checkpoint and writes it into a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf.config.task_types import GENERATING
from rlinf.hybrid_engines.fsdp.checkpoint import read_model
from rlinf.models.export import PolicyExport, write_export
from rlinf.models.export.folder import VLA_FOLDERS
from rlinf.utils.checkpoint import Checkpoint, CheckpointError, load_tree
from rlinf.utils.env_spec import EnvSpec, task_title


def export_checkpoint(path: str | Path, to: str, out: str | Path | None = None) -> Path:
    """Write the policy of a checkpoint into a folder that loads without this package.

    Args:
        path: Folder of a checkpoint, or of a run, whose newest one is taken.
        to: `safetensors` or `hf`.
        out: Where; absent or empty. None is `export/global_step_<N>-<format>` of the run.

    Returns:
        The folder.

    Raises:
        CheckpointError: It is not a checkpoint, or not complete, or damaged.
        ValueError: The format is unknown or does not go with the model, or `out` is not empty.
    """
    checkpoint = Checkpoint.find(path)
    if out is None:
        out = checkpoint.run_folder / "export" / f"{checkpoint.path.name}-{to}"
    if checkpoint.manifest["config"]["runner"]["task_type"] in GENERATING:
        # Imported here: transformers takes a second.
        from rlinf.hybrid_engines.export_causal_lm import export_causal_lm

        return export_causal_lm(checkpoint, to, Path(out))
    if checkpoint.manifest["config"]["runner"]["task_type"] == "reward_model":
        raise ValueError(
            f"{checkpoint.path} is a reward model, and only policies are exported: name its run in "
            "reward.model.model_path of the runs that learn from its rewards"
        )
    return write_export(_policy_of(checkpoint), to, Path(out))


def _policy_of(checkpoint: Checkpoint) -> PolicyExport:
    actor, config = checkpoint.path / "actor", checkpoint.manifest["config"]
    if not (actor / "tensors").is_dir():
        raise CheckpointError(f"{checkpoint.path} has no policy: there is no {actor / 'tensors'}")
    if not (actor / "env_spec.json").exists():
        raise CheckpointError(
            f"{checkpoint.path} does not say for which env its policy is (actor/env_spec.json is "
            "missing): it was written by an earlier version; resume the run and save it again"
        )
    facts: dict[str, Any] = {
        "step": checkpoint.step,
        "time": checkpoint.manifest["time"],
        "env": _env_name(config),
        "versions": checkpoint.manifest["versions"],
    }
    return PolicyExport(
        tensors=read_model(actor / "tensors"),
        settings=_settings(config["actor"]["model"]),
        env_spec=EnvSpec(**load_tree(actor / "env_spec")),
        facts=facts,
    )


def _settings(section: dict[str, Any]) -> dict[str, Any]:
    """Return the model section that builds the policy again, before it gets its weights."""
    # Of vision-language-action policies, sizes and tokenizer are in the folder they began with.
    keeps = section["model_type"].lower() in VLA_FOLDERS
    return section if keeps else section | {"model_path": None}


def _env_name(config: dict[str, Any]) -> str:
    section = config["env"]["train"] or config["env"]["eval"]
    name = task_title(section)
    return f"{section['env_type']} {name}" if name else section["env_type"]
