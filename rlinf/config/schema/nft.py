"""Keys that DiffusionNFT adds to the `algorithm` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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


class NFTKeys(Section):
    """Keys of `loss_type: embodied_nft`."""

    nft: NFTConfig = Field(default_factory=NFTConfig, description="DiffusionNFT.")


register_schema("loss", "embodied_nft", NFTKeys)
