"""Reward models of earlier runs: found, checked against an env, and loaded."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from rlinf.hybrid_engines.fsdp.checkpoint import read_model
from rlinf.models import get_model
from rlinf.utils.checkpoint import Checkpoint, load_tree
from rlinf.utils.env_spec import EnvSpec

_KEY = "reward.model.model_path"
_HOW = "train one with `rlinf train metaworld_reward_model_mlp`, or name its run"


def load_reward_model(path: str, env_spec: EnvSpec, device: torch.device) -> nn.Module:
    """Load the reward model of a run.

    Args:
        path: `reward.model.model_path`: folder of the run, or of one of its checkpoints.
        env_spec: What the env observes.
        device: Where to compute.

    Returns:
        The model, which is not trained any more.

    Raises:
        ValueError: There is none, or it looks at other observations than those of the env.
    """
    model, checkpoint = build_reward_model(path, env_spec)
    model.load_state_dict(read_model(checkpoint.path / "actor" / "tensors"))
    return model.to(device).eval().requires_grad_(False)


def build_reward_model(path: str, env_spec: EnvSpec) -> tuple[nn.Module, Checkpoint]:
    """Build the reward model of a run, without its weights, and return where these are.

    Args:
        path: As for `load_reward_model`.
        env_spec: What the env observes.

    Raises:
        ValueError: As `load_reward_model`.
    """
    checkpoint = find_reward_model(path)
    spec = EnvSpec(**load_tree(checkpoint.path / "actor" / "env_spec"))
    section = checkpoint.manifest["config"]["actor"]["model"]
    model = get_model(section | {"model_path": None, "precision": "fp32"}, spec)
    require_fitting(model.observation_names, spec, env_spec, path)
    return model, checkpoint


def find_reward_model(path: str) -> Checkpoint:
    """Return the checkpoint of a reward model.

    Args:
        path: As for `load_reward_model`.

    Raises:
        ValueError: There is none.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{_KEY} is {path}, and there is no such folder; {_HOW}")
    checkpoint = Checkpoint.find(folder)
    task = checkpoint.manifest["config"]["runner"]["task_type"]
    if task != "reward_model":
        raise ValueError(
            f"{_KEY} is {path}, a run of task type {task}, which trains no reward model; {_HOW}"
        )
    return checkpoint


def require_fitting(names: list[str], trained: EnvSpec, env: EnvSpec, path: str) -> None:
    """Refuse a reward model that looks at what an env does not observe.

    Args:
        names: Of the observations that it looks at.
        trained: Sizes of the observations that it was trained on.
        env: Sizes of those of the env.
        path: Of the model, for the error.

    Raises:
        ValueError: They differ.
    """
    sizes = {
        "states": (trained.obs_dim, env.obs_dim, "numbers"),
        "main_images": (_channels(trained), _channels(env), "channels"),
    }
    for name in names:
        if name not in sizes:
            continue
        wanted, found, unit = sizes[name]
        if wanted != found:
            has = f"has {found} {unit} there" if found is not None else "does not have it"
            raise ValueError(
                f"the reward model of {path} looks at '{name}' of {wanted} {unit}, and env.train "
                f"{has}: train a reward model on episodes of this env, or give env.train the "
                "observations that it was trained on"
            )


def _channels(spec: EnvSpec) -> int | None:
    return None if spec.image_shape is None else spec.image_shape[-1]
