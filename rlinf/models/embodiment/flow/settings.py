"""How a policy denoises and learns to: what its model section says."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rlinf.models.embodiment.flow.steps import FlowSettings

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class PolicyFlowSettings(FlowSettings):
    """How a policy denoises; the config keys of the same names."""

    noise_std_min: float = 0.08
    noise_std_max: float = 0.16
    time_alpha: float = 1.5

    @classmethod
    def of(cls, cfg: DictConfig) -> PolicyFlowSettings:
        """Read the settings from a model section."""
        return cls(**{own.name: cfg[own.name] for own in fields(cls)})
