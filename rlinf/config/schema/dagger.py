"""Keys that DAgger adds to the `algorithm` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int, Section
from rlinf.config.schema.replay import ReplayBufferConfig


class DAggerConfig(Section):
    """An expert beside the policy: it labels what is observed, and sometimes acts."""

    expert: str | None = Field(
        "scripted",
        description="Who labels observations in the env processes: a registered expert, or the "
        "folder of a run, of a checkpoint or of an exported policy; null takes only what the env "
        "itself reports as interventions.",
    )
    init_beta: Float = Field(
        1.0, ge=0, le=1, description="How likely the expert acts in the first rollout."
    )
    beta_schedule: Literal["exponential", "linear", "constant"] = Field(
        "exponential",
        description="How that changes from rollout to rollout: times beta_decay, less beta_decay, "
        "or not at all.",
    )
    beta_decay: Float = Field(0.99, ge=0, le=1, description="By how much.")
    beta_min: Float = Field(0.05, ge=0, le=1, description="The least that it falls to.")
    beta_unit: Literal["step", "episode"] = Field(
        "step", description="Whether it is drawn for each step, or once for an episode."
    )
    only_save_expert: bool = Field(
        False,
        description="Learn only from steps that the expert acted in, with the gate this is "
        "HG-DAgger; false learns from the expert's label of every step.",
    )
    gate: str | None = Field(
        None,
        description="Registered gate that lets the expert take over in an episode: deviation, "
        "expert (a person who touches the device), ...; null is none.",
    )
    gate_threshold: Float = Field(
        0.5,
        ge=0,
        description="Gate deviation: the expert takes over where a number of the policy's action "
        "is further than this from its own, as a part of half the range.",
    )
    gate_release: Float = Field(
        0.25,
        ge=0,
        description="Gate deviation: the policy goes on where all of them are nearer than this.",
    )


class DAggerKeys(Section):
    """Keys of `loss_type: embodied_dagger`."""

    update_epoch: Int = Field(
        1,
        gt=0,
        description="Gradient steps after each rollout, each on actor.global_batch_size labelled "
        "steps of all rollouts.",
    )
    bc_loss: Literal["mse", "nll"] = Field(
        "mse", description="What is made small; as in behaviour cloning."
    )
    dagger: DAggerConfig = Field(default_factory=DAggerConfig, description="The expert.")
    replay_buffer: ReplayBufferConfig = Field(
        default_factory=ReplayBufferConfig, description="Steps that are kept."
    )


register_schema("loss", "embodied_dagger", DAggerKeys)
