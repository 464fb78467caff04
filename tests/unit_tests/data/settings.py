"""The `data` section of a config, filled with defaults."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf.config.plugins import get_schema
from rlinf.config.schema.data import DataConfig
from rlinf.config.specialise import compose


def data_section(**keys: Any) -> DictConfig:
    """Returns a section as a checked config has it."""
    keys = {"rollout_batch_size": 4, **keys}
    extra = get_schema("dataset", keys.get("type", "files"))
    schema = compose(DataConfig, extra) if extra is not None else DataConfig
    return OmegaConf.create(schema(**keys).model_dump())
