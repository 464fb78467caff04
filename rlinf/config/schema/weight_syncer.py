"""The `weight_syncer` section: how new weights reach the rollout."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rlinf.config.schema.base import Int, Section, choice, reserved
from rlinf.config.schema.model import Precision


class BucketConfig(Section):
    """Weights sent whole, many tensors to a message."""

    bucket_size: Int | None = Field(
        None, gt=0, description="Most bytes of a message; null is 512 MiB, from a GPU 2 GiB."
    )
    bucket_dtype: Precision | None = Field(
        None, description="Number format on the way; null is the trainer's."
    )
    bucket_device: str | None = reserved(
        None, "Device on which messages are packed; it is that of the weights."
    )
    keep_buffers: bool | None = Field(
        None,
        description="Keep two buffers of a message on the actor's GPU between updates, which are "
        "then faster; null is yes, unless the actor offloads.",
    )
    load_instant: bool = reserved(True, "Load each message as it comes, not all at the end.")


class WeightSyncerConfig(Section):
    """Weights from actor to rollout."""

    type: Literal["bucket", "patch"] = choice(
        "bucket", "Send all weights, or only what changed.", reserved_values=("patch",)
    )
    verify: bool = Field(True, description="Compare checksums after every update.")
    lora: Literal["merged", "adapters"] = Field(
        "merged",
        description="What goes to the rollout of a model with adapters: whole weights with the "
        "adapters merged into them, or the adapters alone.",
    )
    bucket: BucketConfig = Field(default_factory=BucketConfig, description="For type bucket.")
    patch: dict[str, Any] | None = reserved(None, "For type patch.")
    use_ring_sync: bool = reserved(False, "Pass weights from rank to rank.")
    nccl_max_ctas: Int | None = reserved(None, "Most blocks that NCCL may use.")
    nccl_min_ctas: Int | None = reserved(None, "Fewest blocks that NCCL may use.")
