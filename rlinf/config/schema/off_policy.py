"""Keys that learners from a replay buffer add to the `algorithm` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.actor import OptimConfig
from rlinf.config.schema.base import Float, Int, Section
from rlinf.config.schema.replay import DemoBufferConfig, ReplayBufferConfig

Aggregation = Literal["min", "mean"]
ActorAggregation = Literal["min", "mean", "first"]


def _check_heads(value: int) -> int:
    if value == 0:
        raise ValueError("must be -1 or null (all Q-functions), or how many, at least 1")
    return value


Heads = Annotated[Int, AfterValidator(_check_heads)]


class TemperatureOptimConfig(OptimConfig):
    """The optimiser of the temperature."""

    lr: Float = Field(3e-4, gt=0, description="Learning rate.")
    weight_decay: Float = Field(0.0, ge=0, description="Decay of the parameter, times lr.")
    clip_grad: Float | None = Field(
        None, gt=0, description="Greatest gradient; null does not clip."
    )


class EntropyTuningConfig(Section):
    """The temperature alpha, which weighs entropy against rewards."""

    alpha_type: Literal["exp", "softplus", "fixed_alpha"] = Field(
        "exp",
        description="What alpha is of the number that is trained: exp or softplus of it; "
        "fixed_alpha does not train it.",
    )
    initial_alpha: Float = Field(1.0, gt=0, description="Alpha at the start.")
    target_entropy: Float | None = Field(
        None,
        description="Entropy of a chunk of actions that alpha is tuned for (nats), actions being "
        "scaled to [-1, 1]; null is -1 for each number of the chunk, for choices half of the "
        "greatest entropy.",
    )
    optim: TemperatureOptimConfig = Field(
        default_factory=TemperatureOptimConfig, description="Its optimiser."
    )


class OffPolicyKeys(Section):
    """What all learners from a replay buffer have."""

    update_epoch: Int = Field(
        1,
        gt=0,
        description="Gradient steps after each rollout, each on actor.global_batch_size "
        "transitions of the replay buffer. A rollout is total_num_envs x rollout_epoch x "
        "max_steps_per_rollout_epoch env steps; both numbers alike make one gradient step per env "
        "step.",
    )
    critic_actor_ratio: Int = Field(
        1, gt=0, description="Gradient steps of the critics for one of the actor."
    )
    train_actor_steps: Int = Field(
        0,
        ge=0,
        description="Transitions in the buffer, over all ranks, before the actor is trained, and "
        "not the critics alone.",
    )
    random_steps: Int | None = Field(
        None,
        ge=0,
        description="Env steps, over all envs, that begin the run with actions drawn uniformly "
        "from their range; null is as many as fill replay_buffer.min_buffer_size.",
    )
    agg_q: Aggregation = Field(
        "min", description="How the Q-values of all heads become one in the target."
    )
    actor_agg_q: ActorAggregation | None = Field(
        None,
        description="The same in the loss of the actor, or that of the first head; null is agg_q.",
    )
    critic_subsample_size: Heads | None = Field(
        None,
        ge=-1,
        description="Heads that a target is made of, drawn anew for each gradient step, none "
        "twice (REDQ); null or -1 is all.",
    )
    replay_buffer: ReplayBufferConfig = Field(
        default_factory=ReplayBufferConfig, description="Transitions that are kept."
    )
    demo_buffer: DemoBufferConfig | None = Field(
        None, description="Demonstrations that a share of each batch is drawn from; null is none."
    )


class TargetKeys(Section):
    """Slow copies that targets are computed with."""

    tau: Float = Field(
        0.005, gt=0, le=1, description="Share of the way that targets go towards the critics."
    )
    target_update_freq: Int = Field(1, gt=0, description="Gradient steps between such moves.")
    target_update_type: Literal["all", "q_head_only"] = Field(
        "all",
        description="Average all weights of the critics in the targets, or those of the Q-heads "
        "and copy the encoder.",
    )


class EntropyKeys(Section):
    """What policies that are rewarded for entropy have."""

    backup_entropy: bool = Field(
        True, description="Count the entropy of the next action in the target."
    )
    entropy_tuning: EntropyTuningConfig = Field(
        default_factory=EntropyTuningConfig, description="Weight of entropy."
    )


class SACKeys(EntropyKeys, TargetKeys, OffPolicyKeys):
    """Soft actor-critic."""


class CrossQKeys(EntropyKeys, OffPolicyKeys):
    """CrossQ, which has no slow copies."""


class TD3Keys(TargetKeys, OffPolicyKeys):
    """TD3."""

    critic_actor_ratio: Int = Field(
        2, gt=0, description="Gradient steps of the critics for one of the actor."
    )
    actor_agg_q: ActorAggregation | None = Field(
        "first", description="How Q-values become one in the loss of the actor; null is agg_q."
    )
    target_noise: Float = Field(
        0.2,
        ge=0,
        description="Deviation of the noise on the next actions in targets, as a part of half "
        "their range.",
    )
    target_noise_clip: Float = Field(0.5, ge=0, description="Greatest absolute noise.")


register_schema("loss", "embodied_sac", SACKeys)
register_schema("loss", "embodied_crossq", CrossQKeys)
register_schema("loss", "embodied_td3", TD3Keys)
