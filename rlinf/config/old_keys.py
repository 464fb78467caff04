"""Keys that users of other versions and of older examples may still write."""

from __future__ import annotations

from typing import Any

SYNONYMS = {"algorithm.staleness_threshold": "algorithm.max_policy_age"}
"""Key path of a section's key to the one that it is another name of."""
ADVICE = {
    "algorithm.staleness_threshold": "it is another name of algorithm.max_policy_age: set one of "
    "the two",
    "algorithm.rollout_epoch": "it belongs to the envs: env.train.rollout_epoch",
    "algorithm.eval_rollout_epoch": "remove it: an evaluation plays runner.eval_episodes episodes",
    "algorithm.training_batch_size_per_gpu": "set actor.micro_batch_size",
    "algorithm.rollout_batch_size_per_gpu": "it never had an effect; remove it",
    "algorithm.val_rollout_batch_size_per_gpu": "it never had an effect; remove it",
    "algorithm.kl_penalty": "it is called algorithm.kl_penalty_type here",
    "algorithm.value_cliprange": "it is called algorithm.value_clip here",
    "algorithm.use_valid_token_scale": "remove it: token means are always exact",
    "algorithm.early_stop_imp_ratio": "set algorithm.target_kl",
    "algorithm.len_reward_penalty": "set algorithm.overlong_penalty",
    "algorithm.safe_length": "set algorithm.overlong_buffer_length",
    "algorithm.max_length": "set algorithm.sampling_params.max_new_tokens",
    "algorithm.nft_tau": "set algorithm.nft.tau",
    "algorithm.max_resample": "set algorithm.max_num_gen_batches",
    "algorithm.rollout_store_size_per_rank": "remove it: an update learns from one whole rollout",
    "algorithm.on_policy_min_ratio": "remove it: algorithm.max_policy_age bounds the age of all "
    "samples",
    "algorithm.importance_sampling_fix": "set algorithm.mismatch; its default truncates the ratio "
    "of each token at 2, and {mode: none} corrects nothing",
    "algorithm.importance_sampling_clip": "set algorithm.mismatch.high",
    "algorithm.importance_sampling_level": "set algorithm.mismatch.level",
    "actor.tokenizer.use_fast": "remove it: tokenizers are always fast ones",
    "actor.tokenizer.padding_side": "remove it: sequences are packed, not padded",
    "algorithm.length_params": "set algorithm.sampling_params",
    "actor.optim.critic_warmup_steps": "set algorithm.critic_warmup_steps",
    "actor.model.squash_actions": "set actor.model.distribution to squashed_gaussian",
    "actor.lr_sched": "the learning-rate schedule is part of actor.optim",
    "actor.megatron": "remove it: FSDP trains, see actor.fsdp_config",
    "actor.training_backend": "remove it: FSDP trains, see actor.fsdp_config",
    "actor.fsdp_config.strategy": "remove it: FSDP2 is what is used",
    "actor.fsdp_config.cpu_offload": "set actor.enable_offload, which offloads between updates",
    "actor.fsdp_config.save_full_model_weights": "remove it: rlinf export writes whole weights",
    "critic.optim.critic_warmup_steps": "set algorithm.critic_warmup_steps",
    "data.dataset_name": "name a generated dataset with data.type",
    "data.dataset_kwargs": "a dataset has keys of its own in `data`",
    "data.num_workers": "only data.type reasoning_gym has it",
    "data.validation_shuffle": "remove it: every validation uses all prompts",
    "reward.use_prompt": "remove it: rewards always get the prompt",
    "rollout.backend": "set rollout.rollout_backend (reasoning)",
    "rollout.expert_model": "set algorithm.dagger.expert to the folder of the expert's run, or of "
    "an exported policy",
    "runner.expert_ckpt_path": "set algorithm.dagger.expert to the folder of the expert's run, or "
    "of an exported policy",
    "rollout.collect_prev_infos": "remove it: log-probabilities and values are always kept",
    "rollout.collect_transitions": "remove it: learners from a replay buffer always get the "
    "observations that follow",
    "rollout.validate_weight": "set weight_syncer.verify, which compares after every update",
    "env.eval.auto_reset": "remove it: an evaluation plays whole episodes, runner.eval_episodes",
    "env.eval.rollout_epoch": "remove it: an evaluation plays runner.eval_episodes episodes",
    "env.eval.use_fixed_reset_state_ids": "remove it: episodes of an evaluation are always fixed",
    "env.train.data_collection": "remove it: `rlinf collect` writes datasets, with the policy of a "
    "run or an expert",
    "env.eval.data_collection": "remove it: `rlinf collect` writes datasets, with the policy of a "
    "run or an expert",
    "env.train.video_cfg": "set env.eval.video_cfg: videos are of evaluations",
    "rollout.recompute_logprobs": "set algorithm.recompute_logprobs",
    "rollout.sampling_params": "set algorithm.sampling_params",
    "runner.enable_decoupled_mode": "remove it; algorithm.max_policy_age: 1 lets envs, policy and "
    "learner go on without waiting for a slow one",
    "runner.use_training_pipeline": "remove it; algorithm.max_policy_age: 1 lets the learner learn "
    "while the next rollout is played",
    "runner.experiment_name": "set runner.logger.experiment_name",
    "runner.output_dir": "set runner.logger.log_path",
    "runner.per_worker_log": "remove it: every worker has a log of its own, see rlinf logs",
}
"""Key path to what a user should do about it."""


def replace_synonyms(data: dict[str, Any]) -> dict[str, str]:
    """Give keys their own names, in place, unless both names are used.

    Args:
        data: a config as plain data.

    Returns:
        The new path of each key path that was changed.
    """
    changed = {}
    for path, own_path in SYNONYMS.items():
        name, _, key = path.partition(".")
        own_key = own_path.partition(".")[2]
        section = data.get(name)
        if isinstance(section, dict) and key in section and own_key not in section:
            section[own_key] = section.pop(key)
            changed[path] = own_path
    return changed
