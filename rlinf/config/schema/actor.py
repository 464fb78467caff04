"""The `actor` and `critic` sections: networks that are trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section
from rlinf.config.schema.model import (
    EmbodiedModelConfig,
    ModelConfig,
    Precision,
    ReasoningModelConfig,
    RewardModelConfig,
    TokenizerConfig,
)


class OptimConfig(Section):
    """AdamW and its learning rate."""

    lr: Float = Field(1e-4, gt=0, description="Learning rate.")
    value_lr: Float | None = Field(
        None, gt=0, description="Learning rate of the value head; null is lr."
    )
    adam_beta1: Float = Field(0.9, ge=0, lt=1, description="Decay of the gradient's mean.")
    adam_beta2: Float = Field(0.999, ge=0, lt=1, description="Decay of the gradient's square.")
    adam_eps: Float = Field(1e-8, gt=0, description="Added to the denominator of Adam.")
    weight_decay: Float = Field(0.01, ge=0, description="Decay of weights per step, times lr.")
    clip_grad: Float | None = Field(
        1.0, gt=0, description="Greatest norm of the gradient; null does not clip."
    )
    lr_scheduler: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Course of the learning rate after the warm-up."
    )
    lr_warmup_steps: Int = Field(0, ge=0, description="Optimiser steps of rising learning rate.")
    lr_warmup_steps_ratio: Float = Field(
        0.0, ge=0, le=1, description="The same as a part of total_training_steps; the longer wins."
    )
    total_training_steps: Int | None = Field(
        None, gt=0, description="Optimiser steps of the schedule; null follows from the run."
    )
    num_cycles: Float = Field(0.5, gt=0, description="Cosine waves over the schedule.")
    min_lr: Float = Field(0.0, ge=0, description="Learning rate at the end of the schedule.")
    min_lr_rate: Float | None = Field(
        None, ge=0, le=1, description="The same as a part of lr; null is min_lr."
    )


class MixedPrecisionConfig(Section):
    """Number formats inside FSDP; buffers keep theirs."""

    param_dtype: Precision | None = Field(
        None, description="Of weights in use; null is model.precision."
    )
    reduce_dtype: Precision | None = Field(
        None, description="Of gradients in flight; null is fp32."
    )


class AutocastConfig(Section):
    """torch.autocast around the forward pass."""

    enabled: bool = Field(False, description="Run the forward pass under autocast.")
    precision: Literal["bf16", "fp16"] = Field("bf16", description="Number format of autocast.")


class WrapPolicyConfig(Section):
    """Which modules are sharded on their own."""

    transformer_layer_cls_to_wrap: list[str] = Field(
        default_factory=list, description="Class names of layers; empty asks the model."
    )
    module_classes_to_wrap: list[str] = Field(
        default_factory=list, description="Class names of further modules."
    )


class FSDPConfig(Section):
    """Sharded data-parallel training."""

    sharding_strategy: Literal["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"] = Field(
        "full_shard",
        description="What is spread over ranks: weights, gradients and optimiser; all but weights "
        "in use; the same inside each node, with copies on the others; nothing.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass to save memory."
    )
    reshard_after_forward: bool = Field(
        True, description="Free gathered weights between forward and backward."
    )
    enable_gradient_accumulation: bool = Field(
        True, description="Exchange gradients once per optimiser step, not per micro-batch."
    )
    mixed_precision: MixedPrecisionConfig = Field(
        default_factory=MixedPrecisionConfig, description="Number formats inside FSDP."
    )
    amp_autocast: AutocastConfig = Field(
        default_factory=AutocastConfig, description="torch.autocast; not with mixed_precision."
    )
    wrap_policy: WrapPolicyConfig = Field(
        default_factory=WrapPolicyConfig, description="Which modules are sharded on their own."
    )


class ReasoningFSDPConfig(FSDPConfig):
    """Sharded data-parallel training of language models."""

    gradient_checkpointing_use_reentrant: bool = Field(
        False, description="Use the older form of activation recomputation."
    )


class TrainedConfig(Section):
    """What all networks that are trained have in common."""

    micro_batch_size: Int | None = Field(
        None,
        gt=0,
        description="Samples per forward and backward pass of a rank; null is its whole share "
        "(reasoning: as many as make a fitting number of tokens).",
    )
    seed: Int | None = Field(None, ge=0, description="Seed of the learner; null is runner.seed.")
    enable_offload: bool = Field(
        False, description="Keep weights and optimiser in host memory while others use the device."
    )
    compile_model: bool = Field(False, description="Compile the network with torch.compile.")
    optim: OptimConfig = Field(default_factory=OptimConfig, description="The optimiser.")
    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig, description="FSDP.")


class SupervisedConfig(Section):
    """Learning from given responses before reinforcement begins."""

    steps: Int = Field(0, ge=0, description="Optimiser steps; 0 leaves it out.")
    batch_size: Int = Field(64, gt=0, description="Examples per step over all ranks.")
    optim: OptimConfig = Field(
        default_factory=OptimConfig, description="The optimiser of these steps."
    )


class ActorConfig(TrainedConfig):
    """The policy that is trained."""

    group_name: str = Field("ActorGroup", description="Name of the group of actor workers.")
    model: ModelConfig = Field(..., description="The network.")
    global_batch_size: Int | None = Field(
        None,
        gt=0,
        description="Samples per optimiser step over all ranks; null is the whole rollout "
        "(reasoning: rollout over n_minibatches).",
    )
    offload_reference: bool = Field(
        False,
        description="Keep the reference policy in host memory except while it is asked.",
    )
    checkpoint_load_path: str | None = Field(None, description="Older name of runner.ckpt_path.")
    checkpoint_save_path: str | None = Field(
        None,
        description="Where to save instead of runner.logger.log_path: checkpoints are in "
        "<experiment_name>/checkpoints below it.",
    )


class EmbodiedActorConfig(ActorConfig):
    """The policy of an embodied run."""

    model: EmbodiedModelConfig = Field(..., description="The network.")
    critic_optim: OptimConfig | None = Field(
        None,
        description="The optimiser of the Q-functions (off-policy); null is as optim.",
    )
    enable_drq: bool = Field(
        False,
        description="Shift the pictures of each batch from the replay buffer at random, by up to "
        "four pixels (off-policy; DrQ).",
    )


class RewardModelActorConfig(ActorConfig):
    """The reward model that is trained."""

    model: RewardModelConfig = Field(..., description="The network.")


class ReasoningActorConfig(ActorConfig):
    """The policy of a reasoning run."""

    model: ReasoningModelConfig = Field(..., description="The network.")
    fsdp_config: ReasoningFSDPConfig = Field(
        default_factory=ReasoningFSDPConfig, description="FSDP."
    )
    tokenizer: TokenizerConfig = Field(
        default_factory=TokenizerConfig, description="Text to tokens and back."
    )
    enable_dp_load_balance: bool = Field(
        False, description="Deal groups to ranks by number of tokens."
    )
    stream_groups: Int = Field(
        0,
        ge=0,
        description="Groups that a rank trains on as soon as they have arrived, while others are "
        "generated; 0 waits for all.",
    )
    supervised: SupervisedConfig = Field(
        default_factory=SupervisedConfig,
        description="Learning from given responses before reinforcement begins.",
    )


class CriticConfig(TrainedConfig):
    """A value function with a network of its own."""

    group_name: str = Field("CriticGroup", description="Name of the group of critic workers.")
    use_critic_model: bool = Field(False, description="Train a separate value network.")
    model: ReasoningModelConfig | None = Field(None, description="The network.")
    fsdp_config: ReasoningFSDPConfig = Field(
        default_factory=ReasoningFSDPConfig, description="FSDP."
    )
