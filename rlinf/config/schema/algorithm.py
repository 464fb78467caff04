"""The `algorithm` section: what is optimised and how."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section

KLPenalty = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]


class SamplingConfig(Section):
    """How tokens are drawn from a language model."""

    do_sample: bool = Field(True, description="Draw tokens; false takes the likeliest.")
    temperature: Float = Field(1.0, gt=0, description="Divides the logits before drawing.")
    top_k: Int = Field(0, ge=-1, description="Draw among this many likeliest tokens; 0 or -1 all.")
    top_p: Float = Field(
        1.0, gt=0, le=1, description="Draw among the likeliest tokens of this total probability."
    )
    repetition_penalty: Float = Field(
        1.0, gt=0, description="Divides the score of tokens already present; 1 is none."
    )
    max_new_tokens: Int | None = Field(
        None, gt=0, description="Most tokens of a response; null is what seq_length leaves."
    )
    stop: list[str] = Field(
        default_factory=list, description="Texts that end a response when they are generated."
    )


class MismatchConfig(Section):
    """What is done about tokens that the engine drew with other probabilities than the trainer's.

    The ratio is that of the trainer's probability before the update to the engine's.
    """

    level: Literal["token", "sequence", "geometric"] = Field(
        "token",
        description="Whose ratio: of each token, the product over a response, or its geometric "
        "mean, which only drops responses.",
    )
    mode: Literal["truncate", "mask", "none"] = Field(
        "truncate",
        description="Weigh by the ratio, truncated to [low, high]; or mask what is outside of it; "
        "or correct nothing.",
    )
    low: Float = Field(0.0, ge=0, le=1, description="Least ratio.")
    high: Float = Field(2.0, ge=1, description="Greatest ratio.")


class AlgorithmConfig(Section):
    """Advantages, losses and the shape of an update."""

    plugin_selectors: ClassVar[dict[str, str]] = {"advantage": "adv_type", "loss": "loss_type"}

    adv_type: str = Field(..., description="Registered advantage: gae, grpo, reinpp, raw, ...")
    loss_type: str = Field(
        ..., description="Registered policy loss: actor, actor_critic, decoupled_actor, ..."
    )
    group_size: Int = Field(
        1, gt=0, description="Samples that share a start (prompt or reset state) and a baseline."
    )
    update_epoch: Int = Field(1, gt=0, description="Passes over each rollout.")
    shuffle_rollout: bool = Field(True, description="Shuffle samples anew for every pass.")
    max_policy_age: Int = Field(
        0,
        ge=0,
        description="Oldest weights, in updates, a sample may come from. 0 is on-policy: rollout "
        "and update take turns; above 0 they overlap.",
    )

    gamma: Float = Field(0.99, ge=0, le=1, description="Discount per step.")
    gae_lambda: Float = Field(0.95, ge=0, le=1, description="Decay of GAE.")
    normalize_advantages: bool = Field(
        True, description="Shift and scale advantages to mean 0, deviation 1 over the batch."
    )
    group_baseline: Literal["mean", "leave_one_out"] = Field(
        "mean",
        description="What grpo subtracts from a reward: the mean of its group, or of the others.",
    )
    group_scale: Literal["std", "none"] = Field(
        "std", description="What grpo divides by: the deviation of the group, or nothing."
    )
    use_reinpp_baseline: bool = Field(False, description="Subtract the group mean in reinpp.")
    reinpp_kl_beta: Float = Field(0.0, ge=0, description="KL weight in the reward of reinpp.")

    ratio_clip_eps: Float = Field(
        0.2, gt=0, description="Clip range of the ratio, both sides (policy_loss ppo)."
    )
    clip_ratio_low: Float | None = Field(
        None,
        gt=0,
        le=1,
        description="Lower clip range; null is ratio_clip_eps (gspo: 3e-4, cispo: 1).",
    )
    clip_ratio_high: Float | None = Field(
        None, gt=0, description="Upper clip range; null is ratio_clip_eps (gspo: 4e-4, cispo: 4)."
    )
    clip_ratio_c: Float | None = Field(
        None, gt=1, description="Dual-clip bound for negative advantages; null is off."
    )
    clip_log_ratio_min: Float | None = Field(
        None, le=0, description="Least log-ratio before it is exponentiated; null is no bound."
    )
    clip_log_ratio_max: Float | None = Field(
        None, ge=0, description="Greatest log-ratio before it is exponentiated; null is no bound."
    )
    loss_agg_func: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = Field(
        "token-mean",
        description="How losses per token become one number; embodied: a token is a step, a "
        "sequence an episode.",
    )
    loss_length: Int | None = Field(
        None,
        gt=0,
        description="What seq-mean-token-sum-norm divides by; null is the most tokens of a "
        "response (reasoning).",
    )
    target_kl: Float | None = Field(
        None,
        gt=0,
        description="Make no further step of an update whose minibatch is further than this from "
        "the old policy (nats).",
    )
    entropy_bonus: Float = Field(0.0, ge=0, description="Weight of entropy in the loss.")
    calculate_entropy: bool = Field(False, description="Compute entropy even without a bonus.")
    value_loss_coef: Float = Field(1.0, ge=0, description="Weight of the value loss.")
    value_clip: Float | None = Field(
        0.2, gt=0, description="Clip range of a value's change; null is off."
    )
    huber_delta: Float = Field(10.0, gt=0, description="Error at which value loss turns linear.")
    critic_warmup_steps: Int = Field(
        0, ge=0, description="Optimiser steps that train only the value function, at first."
    )
    behave_weight_threshold: Float | None = Field(
        2.0, gt=0, description="Drop samples whose policy drifted further (ratio); null keeps all."
    )

    kl_beta: Float = Field(0.0, ge=0, description="Weight of KL to the reference policy.")
    kl_penalty_type: KLPenalty = Field(
        "low_var_kl",
        description="Estimator of that KL; k1 (kl) is for the reward only: as a loss it has no "
        "gradient on average.",
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="Whether that KL is part of the loss or of the reward."
    )

    filter_rewards: bool = Field(
        False, description="Leave out groups whose mean reward is outside the bounds."
    )
    rewards_lower_bound: Float | None = Field(
        None, description="Least mean reward of a group that is kept; null is no bound."
    )
    rewards_upper_bound: Float | None = Field(
        None, description="Greatest mean reward of a group that is kept; null is no bound."
    )
    recompute_logprobs: bool = Field(
        True,
        description="Recompute old log-probabilities in the trainer (reasoning), or those of the "
        "policy before the update (decoupled losses; false interpolates them).",
    )


class EmbodiedAlgorithmConfig(AlgorithmConfig):
    """What only learning in environments has."""

    discount_per: Literal["step", "chunk"] = Field(
        "step",
        description="What gamma and gae_lambda count: steps of the env, or chunks of actions "
        "(embodied).",
    )
    policy_loss: Literal["ppo", "cispo"] = Field(
        "ppo",
        description="Surrogate of the policy gradient: a clipped ratio, or a clipped weight.",
    )
    normalize_returns: bool = Field(
        False, description="Scale rewards by the running deviation of returns."
    )
    bootstrap_type: Literal["standard", "always"] = Field(
        "standard", description="Which ends of episodes add the value of the next state."
    )

    reward_type: Literal["action_level", "chunk_level"] = Field(
        "chunk_level", description="Unit of rewards and advantages."
    )
    logprob_type: Literal["token_level", "action_level", "chunk_level"] = Field(
        "chunk_level", description="Unit of the probability ratio."
    )
    entropy_type: Literal["token_level", "action_level", "chunk_level"] = Field(
        "chunk_level", description="Unit over which entropy is summed."
    )


class OfflineAlgorithmConfig(Section):
    """What learning from data has; the schema registered for `loss_type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"loss": "loss_type"}

    loss_type: str = Field(
        ..., description="Registered learner from data: embodied_bc, offline_iql, ..."
    )


class ReasoningAlgorithmConfig(AlgorithmConfig):
    """What only learning from generated tokens has."""

    gamma: Float = Field(
        1.0,
        ge=0,
        le=1,
        description="Discount per token; with 1, what comes of a response is worth as much to its "
        "first token as to its last.",
    )
    policy_loss: Literal["ppo", "gspo", "cispo"] = Field(
        "ppo",
        description="Surrogate of the policy gradient: a clipped ratio per token, a clipped ratio "
        "per response, or a clipped weight per token.",
    )
    n_minibatches: Int | None = Field(
        None,
        gt=0,
        description="Optimiser steps per pass over a rollout; null is what "
        "actor.global_batch_size makes of it, or 1.",
    )
    dynamic_sampling: bool = Field(
        False, description="Generate until enough groups have unequal scores (DAPO)."
    )
    max_num_gen_batches: Int = Field(
        4, gt=0, description="Most prompt batches that dynamic sampling may use for one step."
    )
    overlong_buffer_length: Int = Field(
        0, ge=0, description="Last tokens of the length limit that are penalised; 0 is off (DAPO)."
    )
    overlong_penalty: Float = Field(
        1.0, ge=0, description="Penalty at the length limit, growing over the buffer."
    )

    advantage_mode: Literal["trajectory", "turn", "agent"] = Field(
        "trajectory",
        description="What is compared among the episodes of a prompt, and has one advantage: whole "
        "episodes, turns by what they and later turns of their agent were given, or agents by what "
        "their turns were given; each has the reward of its episode, too (agents).",
    )
    loss_scales: list[Literal["group_level", "agent_level", "turn_level"]] = Field(
        default_factory=list,
        description="How turns weigh in the loss, in this order: group_level divides by the number "
        "of episodes instead of turns, agent_level counts the agents of an episode alike and the "
        "turns of an agent, turn_level counts those turns by their tokens; needs loss_agg_func "
        "seq-mean-token-mean (agents).",
    )

    mask_truncated: bool = Field(
        False,
        description="Learn nothing from responses that were cut at the length limit; their "
        "rewards still count in the baseline.",
    )
    logprob_forward_micro_batch_size: Int | None = Field(
        None,
        gt=0,
        description="Sequences per forward pass when log-probabilities are recomputed; null is as "
        "in training.",
    )
    mismatch: MismatchConfig | None = Field(
        None,
        description="Correction for what the engine drew otherwise than the trainer would "
        "(reasoning); null truncates the ratio of each token at 2 where engine and trainer both "
        "give log-probabilities.",
    )
    sampling_params: SamplingConfig = Field(
        default_factory=SamplingConfig, description="How training responses are drawn."
    )
    val_sampling_params: SamplingConfig | None = Field(
        None,
        description="How validation responses are drawn; null is as in training, but the likeliest "
        "tokens if there is one response per prompt.",
    )
