"""The `inference` and `reference` sections: workers that some reasoning runs add."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.schema.base import Int, Section


class InferenceConfig(Section):
    """Workers that only recompute log-probabilities, on devices of their own."""

    group_name: str = Field("InferenceGroup", description="Name of the group of workers.")
    micro_batch_size: Int | None = Field(
        None,
        gt=0,
        description="Sequences per forward pass; null is "
        "algorithm.logprob_forward_micro_batch_size.",
    )


class ReferenceConfig(Section):
    """Workers that hold the reference policy, on devices of their own."""

    group_name: str = Field("ReferenceGroup", description="Name of the group of workers.")
    micro_batch_size: Int | None = Field(
        None,
        gt=0,
        description="Sequences per forward pass; null is "
        "algorithm.logprob_forward_micro_batch_size.",
    )
