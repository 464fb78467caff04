"""The `inference`, `reference` and `agentloop` sections: workers that some reasoning runs add."""

from __future__ import annotations

from typing import ClassVar

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


class AgentLoopConfig(Section):
    """Multi-turn episodes; the schema registered for `agent_type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"agent": "agent_type"}

    group_name: str = Field("AgentLoopGroup", description="Name of the group of workers.")
    agent_type: str = Field(..., description="Registered agent.")
    max_turns: Int = Field(1, gt=0, description="Most turns of an episode.")
