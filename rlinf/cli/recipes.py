"""Recipes: the YAML files under `examples/*/config`, and the scripts that run them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ENTRY_SCRIPTS = {
    "workers": "examples/workers/main.py",
    "embodied": "examples/embodiment/train_embodied_agent.py",
    "offline": "examples/embodiment/train_offline.py",
    "sft": "examples/embodiment/train_offline.py",
    "reward_model": "examples/embodiment/train_reward_model.py",
    "reasoning": "examples/reasoning/main_grpo.py",
    "reasoning_eval": "examples/reasoning/main_grpo.py",
    "agent": "examples/agents/main_agent.py",
    "coding_online_rl": "examples/coding_online_rl/main_coding_online_rl.py",
}
"""Script that runs a config, by its `runner.task_type`."""


@dataclass(frozen=True)
class Recipe:
    """A config that can be run by name.

    Attributes:
        path: The YAML file.
        about: What it does, from the comment at its top; may be empty.
    """

    path: Path
    about: str = ""

    @property
    def name(self) -> str:
        """What a user types."""
        return self.path.stem


@dataclass(frozen=True)
class Config:
    """A config that was found and is valid.

    Attributes:
        folder: Folder of its YAML file.
        name: File name without `.yaml`.
        task_type: Its `runner.task_type`.
        overrides: Overrides in the form that Hydra takes.
    """

    folder: Path
    name: str
    task_type: str
    overrides: tuple[str, ...] = ()


def list_recipes() -> list[Recipe]:
    """Return the recipes of the current folder and of this package, by folder and name."""
    from rlinf.config import config_folders

    return list(_recipes(folder for folder in config_folders() if folder.name == "config"))


def load(name: str, overrides: Sequence[str] = (), config_path: str | None = None) -> Config:
    """Find a config, compose and check it.

    Args:
        name: Name of a recipe, or path to a YAML file.
        overrides: Hydra overrides.
        config_path: Folder to look in; None looks where `list_recipes` does.

    Raises:
        rlinf.config.ConfigError: There is no such config, or it is not valid.
    """
    from rlinf.config import build_config, validate_cfg
    from rlinf.config.load import find_config, hydra_overrides

    folder, stem = find_config(name, config_path)
    cfg = validate_cfg(build_config(stem, overrides, folder))
    for_hydra = hydra_overrides(overrides, folder, stem)
    return Config(folder, stem, cfg.runner.task_type, tuple(for_hydra))


def trains(name: str, overrides: Sequence[str] = (), config_path: str | None = None) -> bool:
    """Return whether a config, which need not be valid, is one of training; as `load`."""
    from omegaconf import OmegaConf

    from rlinf.config import build_config
    from rlinf.config.load import find_config

    folder, stem = find_config(name, config_path)
    cfg = build_config(stem, overrides, folder)
    return OmegaConf.select(cfg, "runner.task_type") != "workers"


def entry_script(config: Config) -> Path:
    """Return the script that runs a config.

    A script in the tree that the config belongs to goes before the one that comes with this
    package, so that a copy of an example runs its own code.

    Raises:
        ValueError: The script is not there.
    """
    from rlinf.config.load import shipped_folder

    script = Path(ENTRY_SCRIPTS[config.task_type])
    homes = [folder for folder in config.folder.parents if folder.name == script.parent.name]
    candidates = [home / script.name for home in homes] + [shipped_folder() / script]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ValueError(
        f"{script} runs task type {config.task_type!r}, but it is not there; "
        "install the package again, or run from a checkout of its source"
    )


def _recipes(folders: Iterable[Path]) -> Iterable[Recipe]:
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            lines = path.read_text(encoding="utf-8").splitlines()
            # Shared pieces are not recipes: Hydra group files, and files that start with "_".
            if path.name.startswith("_") or any(line.startswith("# @package") for line in lines):
                continue
            first = lines[0] if lines else ""
            yield Recipe(path, first.lstrip("# ").rstrip() if first.startswith("#") else "")
