"""Completes a model section: defaults from the schema, sizes from the env."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from rlinf.config.errors import ConfigError
from rlinf.config.explain import explain
from rlinf.config.plugins import get_schema, known_names
from rlinf.config.schema.model import (
    EmbodiedModelConfig,
    ModelConfig,
    ReasoningModelConfig,
    RewardModelConfig,
)
from rlinf.config.specialise import compose
from rlinf.config.supported_model import SupportedModel
from rlinf.config.tracked import TrackedConfig

if TYPE_CHECKING:
    from rlinf.utils.env_spec import EnvSpec

_SECTIONS: dict[str, type[ModelConfig]] = {
    "embodied": EmbodiedModelConfig,
    "reward": RewardModelConfig,
    "reasoning": ReasoningModelConfig,
}
"""What the section of a model is, by its category."""
_SIZES = {
    "obs_dim": "numbers in the env's states",
    "action_dim": "numbers in one action of the env",
}


def complete(cfg: Mapping[str, Any], env_spec: EnvSpec | None) -> DictConfig:
    """Return a copy of a model section with defaults and sizes filled in.

    Args:
        cfg: A checked section, which is taken as it is and goes on counting reads; or any other
            mapping, which is checked against the schema of its `model_type`.
        env_spec: Where sizes come from that are null.

    Returns:
        A read-only config; that of a policy that acts with `obs_dim`, `action_dim` and
        `action_choices`, and that of a reward model with `obs_dim`, null if nobody knows them.

    Raises:
        ValueError: A key is wrong, or config and env disagree about a size.
    """
    filled = copy.deepcopy(cfg) if isinstance(cfg, TrackedConfig) else _checked(cfg)
    known = SupportedModel.find(filled["model_type"])
    category = "embodied" if known is None else known.category
    if category == "reasoning":
        OmegaConf.set_readonly(filled, True)
        return filled
    OmegaConf.set_readonly(filled, False)
    OmegaConf.set_struct(filled, False)
    _fill_size(filled, "obs_dim", env_spec)
    if category == "embodied":
        _fill_size(filled, "action_dim", env_spec)
        filled["action_choices"] = _choices(filled.get("action_choices"), env_spec)
        if filled["action_dim"] is None and filled["action_choices"] is not None:
            filled["action_dim"] = len(filled["action_choices"])
    OmegaConf.set_struct(filled, True)
    OmegaConf.set_readonly(filled, True)
    return filled


def _fill_size(filled: DictConfig, name: str, env_spec: EnvSpec | None) -> None:
    """Set a size of `_SIZES` to what the config or the env says."""
    own, real = filled.get(name), getattr(env_spec, name, None)
    if own is not None and real is not None and own != real:
        raise ValueError(
            f"model.{name} is {own}, but the {_SIZES[name]} are {real}; "
            f"set model.{name} to {real} or null"
        )
    filled[name] = real if own is None else own


def _choices(own: Sequence[int] | None, env_spec: EnvSpec | None) -> list[int] | None:
    """Return the number of choices for each number of an action; None for real numbers."""
    if env_spec is None or env_spec.action_dim is None:
        return own
    real = None if env_spec.action_choices is None else list(env_spec.action_choices)
    if own is not None and list(own) != real:
        takes = "real numbers" if real is None else f"choices out of {real}"
        raise ValueError(
            f"model.action_choices is {list(own)}, but the actions of the env are {takes}; set "
            "model.action_choices to null"
        )
    return real


def rollout_section(cfg: Any) -> DictConfig:
    """Return `actor.model` as the rollout builds it: what `rollout.model` says goes first.

    It has no Q-functions: nobody acts with them.

    Args:
        cfg: The whole checked config, which is not changed.
    """
    own = cfg.rollout.model
    changes = {
        "model_type": own.model_type,
        "model_path": cfg.rollout.model_dir or own.model_path,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    if cfg.actor.model.get("add_q_head"):
        given["add_q_head"] = False
    return changed_section(cfg.actor.model, given)


def section_to_rebuild(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section that builds a trained model again, before it gets the trained weights.

    A folder that training began with stays in it where it is left: it may say what the model is,
    and have its tokenizer. A model that is made from its keys does without.

    Args:
        section: A model section, plain data.
    """
    folder = section.get("model_path")
    gone = folder is not None and not Path(folder).expanduser().exists()
    return {**section, "model_path": None if gone else folder}


def changed_section(section: DictConfig, changes: Mapping[str, Any]) -> DictConfig:
    """Return a copy of a checked model section with some keys set to something else."""
    section = copy.deepcopy(section)
    OmegaConf.set_readonly(section, False)
    for key, value in changes.items():
        section[key] = value
    OmegaConf.set_readonly(section, True)
    return section


def _checked(cfg: Mapping[str, Any]) -> DictConfig:
    data = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else dict(cfg)
    name = data["model_type"]
    known = SupportedModel.find(name)
    section = ModelConfig if known is None else _SECTIONS[known.category]
    if name.lower() in known_names("model"):
        schema = get_schema("model", name)
        section = section if schema is None else compose(section, schema)
    try:
        return OmegaConf.create(section.model_validate(data).model_dump())
    except ValidationError as error:
        raise ConfigError([explain(item, section, data) for item in error.errors()]) from None


def needed(cfg: DictConfig, name: str) -> int:
    """Return a size that a model cannot do without.

    Args:
        cfg: As returned by `complete`.
        name: `obs_dim` or `action_dim`.

    Raises:
        ValueError: Neither config nor env says it.
    """
    value = cfg.get(name)
    if value is None:
        raise ValueError(
            f"the {_SIZES[name]} are unknown: set model.{name}, or build the model with the "
            "env's spec"
        )
    return int(value)
