"""The `model` part of actor, rollout and critic: which network, from where, how precise."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlinf.config.schema.base import Int, Section

Precision = Literal["fp32", "bf16", "fp16"]


class ModelConfig(Section):
    """A network to train; the schema registered for `model_type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"model": "model_type"}

    model_type: str = Field(..., description="Registered model: mlp_policy, qwen3, ...")
    model_path: str | None = Field(
        None, description="Folder with weights in Hugging Face layout; null starts from scratch."
    )
    precision: Precision = Field(
        "fp32",
        description="Number format to compute in, where the device has it; weights that are "
        "trained are kept in fp32.",
    )


class PolicyModelConfig(ModelConfig):
    """A policy."""

    add_value_head: bool = Field(False, description="Add a value function to the policy.")


class RewardModelConfig(ModelConfig):
    """A network that says how likely it is that a task is solved."""


class EmbodiedModelConfig(PolicyModelConfig):
    """A policy that acts."""

    action_dim: Int | None = Field(
        None, gt=0, description="Numbers in one action; null asks the env."
    )
    action_choices: list[Annotated[Int, Field(gt=0)]] | None = Field(
        None,
        min_length=1,
        description="Choices for each number of an action; null asks the env.",
    )
    num_action_chunks: Int = Field(1, gt=0, description="Actions predicted at a time.")
    value_type: Literal["chunk_level", "action_level"] = Field(
        "chunk_level", description="One value per chunk or one per action of it."
    )
    add_q_head: bool = Field(
        False, description="Add Q-functions to the policy, for learning from a replay buffer."
    )


class LoraKeys(Section):
    """Low-rank adapters, of language models and of policies with one in them."""

    is_lora: bool = Field(False, description="Train low-rank adapters instead of all weights.")
    lora_rank: Int = Field(32, gt=0, description="Rank of the adapters.")
    lora_path: str | None = Field(None, description="Adapters to start from; null is fresh ones.")
    lora_target_modules: list[str] = Field(
        default_factory=list, description="Modules that get adapters; empty is all linear ones."
    )
    lora_alpha: Int | None = Field(
        None, gt=0, description="Adapters are scaled by lora_alpha / lora_rank; null is lora_rank."
    )


class ReasoningModelConfig(LoraKeys, PolicyModelConfig):
    """A language model."""


class RolloutModelConfig(Section):
    """The network as the rollout uses it; all that is not here is as in `actor.model`."""

    model_type: str | None = Field(None, description="The actor's model type; null is the same.")
    model_path: str | None = Field(
        None,
        description="Folder with weights to build it with, until those of the actor come; null is "
        "the actor's.",
    )
    precision: Precision | None = Field(
        None, description="Number format of the weights; null is the actor's."
    )


class ReasoningRolloutModelConfig(RolloutModelConfig):
    """A language model as the rollout uses it."""

    trust_remote_code: bool | None = Field(
        None, description="Run Python code found in the folder; null is the actor's."
    )


class TokenizerConfig(Section):
    """Text to tokens and back."""

    tokenizer_model: str | None = Field(
        None,
        description="Folder with the tokenizer, `characters`, or `words:` or `spaced_words:` with "
        "all words, which decode without or with spaces between them; null is "
        "the model's own folder.",
    )
    trust_remote_code: bool = Field(False, description="Run Python code found in that folder.")
    chat_template: str | None = Field(
        None, description="Chat template, as Jinja text; null is the tokenizer's own, if any."
    )
