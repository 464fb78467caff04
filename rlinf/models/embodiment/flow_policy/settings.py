"""Settings of the small flow policies."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from rlinf.models.embodiment.flow.guidance import RealTimeChunking
from rlinf.models.embodiment.flow.steps import FlowSettings
from rlinf.models.embodiment.head_settings import HeadSettings

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class SmallFlowSettings(FlowSettings):
    """How a small policy denoises; the config keys of the same names."""

    noise_std_min: float = 0.08
    noise_std_max: float = 0.16
    time_alpha: float = 1.5

    @classmethod
    def of(cls, cfg: DictConfig) -> SmallFlowSettings:
        """Read the settings from a model section."""
        return cls(**{own.name: cfg[own.name] for own in fields(cls)})


@dataclass(frozen=True)
class FlowHeadSettings(HeadSettings):
    """How actions are denoised and values come from features.

    Attributes:
        flow: How plans are denoised.
        action_horizon: H, actions of a plan; None is `num_action_chunks`.
        rtc: How evaluations go on with plans; None makes each anew.
        noise_bound: Greatest noise that a steering actor chooses.
        steering_hidden_sizes: Units of each hidden layer of that actor, and of its Q-functions.
    """

    flow: SmallFlowSettings = field(default_factory=SmallFlowSettings)
    action_horizon: int | None = None
    rtc: RealTimeChunking | None = None
    noise_bound: float = 1.5
    steering_hidden_sizes: tuple[int, ...] = (128, 128, 128)

    def __post_init__(self) -> None:
        """Check the settings against each other."""
        super().__post_init__()
        horizon, executed = self.horizon, self.num_action_chunks
        if horizon < executed:
            raise ValueError(
                f"action_horizon {horizon} is below num_action_chunks {executed}: only what is "
                "planned can be carried out"
            )
        if self.rtc is not None:
            self.rtc.check(horizon, executed)

    @property
    def horizon(self) -> int:
        """H, actions of a plan."""
        return self.action_horizon or self.num_action_chunks
