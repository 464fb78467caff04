"""Keys that implicit Q-learning adds to the `algorithm` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int, Section


class IQLKeys(Section):
    """Keys of `loss_type: offline_iql`."""

    gamma: Float = Field(0.99, ge=0, le=1, description="Discount per step.")
    expectile: Float = Field(
        0.7,
        gt=0,
        lt=1,
        description="Which expectile of the Q-values of the data's actions the value of a state "
        "is: 0.5 is their mean, towards 1 the greatest.",
    )
    temperature: Float = Field(
        3.0,
        ge=0,
        description="How much better actions count more: an action of advantage A weighs "
        "exp(temperature * A); 0 is behaviour cloning.",
    )
    max_weight: Float = Field(100.0, gt=0, description="Greatest weight of an action.")
    normalize_rewards: bool = Field(
        True,
        description="Divide rewards by the deviation of the discounted returns of the data, so "
        "that temperature means the same in all envs.",
    )
    tau: Float = Field(
        0.005, gt=0, le=1, description="Share of the way that targets go towards the critics."
    )
    target_update_freq: Int = Field(1, gt=0, description="Gradient steps between such moves.")
    agg_q: Literal["min", "mean"] = Field(
        "min", description="How the Q-values of all heads become one."
    )


register_schema("loss", "offline_iql", IQLKeys)
