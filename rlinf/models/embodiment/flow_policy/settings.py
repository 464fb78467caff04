"""Settings of the small flow policies."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf.models.embodiment.flow.guidance import RealTimeChunking
from rlinf.models.embodiment.flow.settings import PolicyFlowSettings
from rlinf.models.embodiment.flow.steering import SteeringSettings
from rlinf.models.embodiment.head_settings import HeadSettings


@dataclass(frozen=True)
class FlowHeadSettings(HeadSettings):
    """How actions are denoised and values come from features.

    Attributes:
        flow: How plans are denoised.
        action_horizon: H, actions of a plan; None is `num_action_chunks`.
        rtc: How a plan goes on with the one before; None makes each anew.
        steering: Of the actor that chooses the noise; None draws it.
    """

    flow: PolicyFlowSettings = field(default_factory=PolicyFlowSettings)
    action_horizon: int | None = None
    rtc: RealTimeChunking | None = None
    steering: SteeringSettings | None = None

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
