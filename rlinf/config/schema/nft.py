"""Keys that DiffusionNFT adds to the `algorithm` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int, Section


class NFTConfig(Section):
    """How a flow learns from good and bad actions."""

    beta: Float = Field(
        1.0,
        gt=0,
        description="How far the policies of good and of bad actions are from the old one, in "
        "parts of the way from that to the trained one.",
    )
    form: Literal["mse", "dpo"] = Field(
        "mse",
        description="Weigh the errors of both policies by how good an action was, or compare them "
        "with a logistic loss.",
    )
    dpo_beta: Float = Field(1.0, gt=0, description="Steepness of the logistic loss.")
    weight: Literal["constant", "t", "1-t", "inv_t2", "adaptive"] = Field(
        "inv_t2",
        description="Weight of the square of how far the expected action is from the sampled one, "
        "at time t; inv_t2 makes it the error of the velocity, adaptive divides by its typical "
        "size.",
    )
    draws: Int = Field(
        4, gt=0, description="Times and noises that each sample is learned with, in each pass."
    )
    adv_clip_max: Float = Field(
        5.0,
        gt=0,
        description="Advantage from which on an action is good without reserve, or bad below its "
        "negative. The smaller, the further an update goes, and the sooner it goes too far.",
    )
    tau: Float | list[Float] = Field(
        1.0,
        description="Share of the way to the trained policy that the one which acts goes after "
        "each update: above 0, and 1 lets the trained policy act. [a, b, m, n] is a until update "
        "m, b from update n on, and on a line in between.",
    )

    @field_validator("tau")
    @classmethod
    def _is_a_share(cls, tau: float | list[float]) -> float | list[float]:
        """Check the share, or the schedule of it."""
        shares = tau[:2] if isinstance(tau, list) else [tau]
        rises = not isinstance(tau, list) or (len(tau) == 4 and 0 <= tau[2] < tau[3])
        if not rises or not all(0 < share <= 1 for share in shares):
            raise ValueError(
                "tau is a number above 0 and up to 1, or a list of four, [a, b, m, n]: two such "
                "numbers, and updates m < n"
            )
        return tau


class NFTKeys(Section):
    """Keys of `loss_type: embodied_nft`."""

    nft: NFTConfig = Field(default_factory=NFTConfig, description="DiffusionNFT.")


register_schema("loss", "embodied_nft", NFTKeys)
