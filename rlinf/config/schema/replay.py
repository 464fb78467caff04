"""The sections `replay_buffer` and `demo_buffer`: what off-policy learners keep."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section


class PrioritiesConfig(Section):
    """Draws in proportion to priorities."""

    alpha: Float = Field(0.6, ge=0, description="How much priorities count; 0 is uniform.")
    beta: Float = Field(
        0.4, ge=0, le=1, description="How much of the bias the weights take away; 1 is all."
    )
    epsilon: Float = Field(1e-6, gt=0, description="Added to each priority.")


class ReplayBufferConfig(Section):
    """Transitions that are kept; counts are over all ranks of the actor."""

    enable_cache: bool = Field(
        True,
        description="Keep observations and actions in memory; false maps them from files in the "
        "folder of the run.",
    )
    cache_size: Int = Field(
        1_000_000, gt=0, description="Most transitions; the oldest are dropped."
    )
    sample_window_size: Int | None = Field(
        None, gt=0, description="Draw from so many newest transitions; null is all."
    )
    min_buffer_size: Int = Field(
        1, gt=0, description="Transitions that can be drawn before the first update."
    )
    auto_save: bool = Field(
        False,
        description="Write transitions to the disk as they come, not when a checkpoint is made.",
    )
    n_step: Int = Field(1, gt=0, description="Chunks that rewards are summed over.")
    priorities: PrioritiesConfig | None = Field(
        None, description="Draw by priority; null draws uniformly."
    )


class DemoBufferConfig(Section):
    """Demonstrations, which are kept beside and not overwritten."""

    load_path: str = Field(
        ..., description="Folder of a LeRobot dataset, or of a saved replay buffer."
    )
    cache_size: Int | None = Field(
        None, gt=0, description="Most transitions; null is as many as there are."
    )
    demo_ratio: Float = Field(
        0.5, ge=0, le=1, description="Share of a batch that is drawn from demonstrations."
    )
