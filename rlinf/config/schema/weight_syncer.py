"""The `weight_syncer` section: how new weights reach the rollout."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.schema.base import Int, Section
from rlinf.config.schema.model import Precision


class BucketConfig(Section):
    """Weights sent whole, many tensors to a message."""

    bucket_size: Int | None = Field(
        None, gt=0, description="Most bytes of a message; null is 512 MiB, from a GPU 2 GiB."
    )
    keep_buffers: bool | None = Field(
        None,
        description="Keep two buffers of a message on the actor's GPU between updates, which are "
        "then faster; null is yes, unless the actor offloads.",
    )


class ReasoningBucketConfig(BucketConfig):
    """Weights of language models."""

    bucket_dtype: Precision | None = Field(
        None, description="Number format on the way; null is the trainer's."
    )


class WeightSyncerConfig(Section):
    """Weights from actor to rollout."""

    type: Literal["bucket", "patch"] = Field(
        "bucket",
        description="What goes to workers on other hosts: the weights, or what has changed in them "
        "since the last update, where that is less.",
    )
    verify: bool = Field(True, description="Compare checksums after every update.")
    bucket: BucketConfig = Field(
        default_factory=BucketConfig, description="Messages that weights are sent in."
    )


class ReasoningWeightSyncerConfig(WeightSyncerConfig):
    """Weights of language models from actor to rollout."""

    lora: Literal["merged", "adapters"] = Field(
        "merged",
        description="What goes to the rollout of a model with adapters: whole weights with the "
        "adapters merged into them, or the adapters alone.",
    )
    bucket: ReasoningBucketConfig = Field(
        default_factory=ReasoningBucketConfig, description="Messages that weights are sent in."
    )
