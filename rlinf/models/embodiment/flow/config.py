"""Keys of every model section whose policy denoises its actions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlinf.config.schema.base import Float, Int, Section

Units = Annotated[Int, Field(gt=0)]


class RealTimeChunkingKeys(Section):
    """How plans go on where the last one still counts."""

    delay: Int = Field(
        1,
        ge=0,
        description="Actions that are decided before a plan is made: they are those of the last "
        "plan.",
    )
    max_guidance: Float = Field(
        5.0,
        ge=0,
        description="Greatest weight of the guidance towards the last plan; 0 does not guide, and "
        "is what `rollouts: delayed` needs.",
    )
    rollouts: Literal["anew", "delayed"] = Field(
        "anew",
        description="Rollouts to learn from: each plan is made anew from the observation that its "
        "first action follows; or `delay` actions earlier, while those of the last plan are "
        "carried out, and its own are those behind them.",
    )


class FlowKeys(Section):
    """Keys of every policy that denoises its actions."""

    num_steps: Int = Field(4, gt=0, description="Denoising steps from noise to an action.")
    noise_method: Literal["flow_ode", "flow_sde", "flow_cps", "flow_noise", "reinflow"] = Field(
        "flow_sde",
        description="Noise of denoising steps while collecting: none; that of an SDE with the "
        "same distribution of actions; part of what is left of the noise (CPS); learned, with the "
        "step's own state as an input; or learned from observation and time, in every step.",
    )
    noise_level: Float = Field(
        0.5, gt=0, description="How much noise flow_sde and flow_cps add; flow_cps takes up to 1."
    )
    noise_std_min: Float = Field(0.08, gt=0, description="Smallest deviation of learned noise.")
    noise_std_max: Float = Field(0.16, gt=0, description="Greatest deviation of learned noise.")
    joint_logprob: bool = Field(
        False,
        description="Add noise in every denoising step, and take the mean of their "
        "log-probabilities; false adds it in one step of each chunk, drawn at random.",
    )
    time_alpha: Float = Field(
        1.5,
        gt=0,
        description="Times of flow matching are drawn from Beta(alpha, 1): 1 is uniform, more has "
        "more of them near the noise.",
    )
    rtc: RealTimeChunkingKeys | None = Field(
        None,
        description="Real-time chunking: plans of evaluations agree with what the last one has "
        "for the same times, and on request rollouts have its delay; null makes every plan anew.",
    )

    @model_validator(mode="after")
    def _goes_together(self) -> FlowKeys:
        """Check the keys against each other."""
        if self.noise_method == "reinflow" and not self.joint_logprob:
            raise ValueError(
                "noise_method reinflow has noise in every step: set joint_logprob to true, or use "
                "flow_noise"
            )
        if self.noise_method == "flow_cps" and (self.num_steps < 2 or self.noise_level > 1):
            raise ValueError(
                "noise_method flow_cps needs num_steps of at least 2, as its last step has no "
                "noise, and a noise_level of at most 1"
            )
        if self.noise_std_min > self.noise_std_max:
            raise ValueError(
                f"noise_std_min {self.noise_std_min} is above noise_std_max {self.noise_std_max}"
            )
        return self


class SteeringKeys(Section):
    """Keys of an actor that chooses the noise of a frozen flow."""

    use_dsrl: bool = Field(
        False,
        description="Freeze the flow, and train an actor that chooses the noise which it begins "
        "with (algorithm.loss_type embodied_sac).",
    )
    noise_bound: Float = Field(
        1.5, gt=0, description="Greatest absolute noise that this actor chooses."
    )
    steering_hidden_sizes: list[Units] = Field(
        default_factory=lambda: [128, 128, 128],
        description="Units of each hidden layer of this actor, and of its Q-functions.",
    )
    num_q_heads: Int = Field(10, gt=0, description="Q-functions of this actor.")
