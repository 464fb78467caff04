"""What a user sees when keys do not fit one another."""

import copy

import pytest

from rlinf.config import ConfigError, validate_cfg

# Changes to a valid config (... deletes), and what the message must contain.
EMBODIED = {
    "placement": (
        {"cluster.component_placement.actor": "0-9"},
        'cluster.component_placement.actor = "0-9"',
        "^",
        "8",
    ),
    "placement without a component": (
        {"cluster.component_placement": {"actor,rollout": "0-3"}},
        'cluster.component_placement = {actor,rollout: "0-3"}',
        "has no place for env; this task needs actor, env, rollout",
        'add them, for instance "actor,env,rollout: all"',
    ),
    "a constant length that nobody knows": (
        {"algorithm.loss_agg_func": "seq-mean-token-sum-norm"},
        "algorithm.loss_length\n",
        "is missing: loss_agg_func seq-mean-token-sum-norm divides by it",
    ),
    "no end": (
        {"runner.max_steps": -1},
        "runner.max_steps = -1",
        "the run would never end: max_steps and max_epochs are both -1 (no limit)",
    ),
    "values of another unit than rewards": (
        {"actor.model.num_action_chunks": 2, "algorithm.reward_type": "action_level"},
        'actor.model.value_type = "chunk_level"',
        "must be that of algorithm.reward_type, action_level",
        "set it to action_level",
    ),
    "envs that do not divide": (
        {
            "env.train.total_num_envs": 18,
            "rollout.pipeline_stage_num": 2,
            "env.eval": ...,
            "actor.global_batch_size": 200,
        },
        "env.train.total_num_envs = 18",
        "18 envs cannot be divided by 2 env workers × 2 pipeline stages × group size 1 = 4:"
        " 18 / 4 = 4.5 groups per worker and stage",
        "16 or 20 would do",
    ),
    "evaluation envs that do not divide": (
        {"env.eval.total_num_envs": 5},
        "env.eval.total_num_envs = 5",
        "5 / 2 = 2.5 groups per worker",
        "4 or 6 would do",
    ),
    "groups that actor workers would share": (
        {"env.train.total_num_envs": 20, "actor.global_batch_size": 200, "algorithm.group_size": 2},
        "env.train.total_num_envs = 20",
        "20 envs cannot be divided by 4 actor workers × 1 pipeline stages × group size 2 = 8:"
        " 20 / 8 = 2.5 groups per actor worker and stage",
        "16 or 24 would do",
    ),
    "evaluation envs that rollout workers would share": (
        {
            "env.eval.total_num_envs": 6,
            "cluster.component_placement": {"actor": "0-3", "env": "0-1", "rollout": "0-3"},
        },
        "env.eval.total_num_envs = 6",
        "6 envs cannot be divided by 4 rollout workers × 1 pipeline stages = 4",
        "4 or 8 would do",
    ),
    "a format in which gradients vanish": (
        {"actor.model.precision": "fp16"},
        'actor.model.precision = "fp16"',
        "cannot train: gradients vanish in fp16 unless the loss is scaled",
        "use bf16, or fp32",
    ),
    "steps that are no whole chunks": (
        {"actor.model.num_action_chunks": 8},
        "env.train.max_episode_steps = 100",
        "100 steps per rollout cannot be divided by actor.model.num_action_chunks 8",
        "96 or 104 would do",
    ),
    "samples that do not fill minibatches": (
        {"actor.global_batch_size": 600},
        "actor.global_batch_size = 600",
        "16 envs × 100 steps × 1 epoch = 1600 samples, which cannot be divided by"
        " global_batch_size 600: 1600 / 600 = 2.667 minibatches",
        "sizes that would do: 320, 400, 800",
    ),
    "minibatches that do not divide": (
        {"actor.micro_batch_size": 64},
        "actor.global_batch_size = 400",
        "global_batch_size 400 cannot be divided by micro_batch_size 64 × 4 actor workers = 256:"
        " 400 / 256 = 1.562 micro-batches per worker",
        "256 or 512 would do",
    ),
    "rollout that does not divide": (
        {"actor.global_batch_size": ..., "actor.micro_batch_size": 64},
        "env.train.total_num_envs = 16",
        "16 envs × 100 steps × 1 epoch = 1600 samples, the whole rollout, cannot be divided by"
        " micro_batch_size 64 × 4 actor workers = 256",
        "instead of 1600, 1536 or 1792 would do",
    ),
    "group of one": (
        {
            "algorithm.adv_type": "grpo",
            "algorithm.loss_type": "actor",
            "env.train.auto_reset": False,
        },
        "algorithm.group_size = 1",
        "must be at least 2: grpo compares the samples of a group with one another",
    ),
    "groups whose members go apart": (
        {
            "algorithm.adv_type": "grpo",
            "algorithm.loss_type": "actor",
            "algorithm.group_size": 8,
            "actor.model.add_value_head": False,
            "cluster.component_placement": {"actor,rollout,env": "0-1"},
        },
        "env.train.auto_reset = true",
        "must be false: adv_type grpo compares the episodes of a group, which share their start",
        "set env.train.auto_reset: false",
    ),
    "groups whose baseline goes apart": (
        {
            "algorithm.adv_type": "reinpp",
            "algorithm.loss_type": "actor",
            "algorithm.use_reinpp_baseline": True,
            "algorithm.group_size": 8,
            "actor.model.add_value_head": False,
            "cluster.component_placement": {"actor,rollout,env": "0-1"},
        },
        "env.train.auto_reset = true",
        "must be false: use_reinpp_baseline compares the episodes of a group",
    ),
    "groups that are filtered and go apart": (
        {
            "algorithm.filter_rewards": True,
            "algorithm.rewards_lower_bound": 0.1,
            "algorithm.rewards_upper_bound": 0.9,
            "algorithm.group_size": 8,
            "cluster.component_placement": {"actor,rollout,env": "0-1"},
        },
        "env.train.auto_reset = true",
        "must be false: filter_rewards compares the episodes of a group",
    ),
    "groups that disagree": (
        {"algorithm.group_size": 4, "env.train.group_size": 2},
        "env.train.group_size = 2",
        "must equal algorithm.group_size, which is 4",
        "leave it out to follow the algorithm",
    ),
    "value loss without values": (
        {"actor.model.add_value_head": False},
        "actor.model.add_value_head = false",
        "must be true: algorithm.loss_type actor_critic trains a value function",
    ),
    "a critic that goes first and is not there": (
        {
            "algorithm.adv_type": "raw",
            "algorithm.loss_type": "actor",
            "algorithm.critic_warmup_steps": 3,
            "actor.model.add_value_head": False,
        },
        "algorithm.critic_warmup_steps = 3",
        "there is no value function that could learn alone",
    ),
    "a critic that goes first and is not trained": (
        {
            "algorithm.adv_type": "raw",
            "algorithm.loss_type": "actor",
            "algorithm.critic_warmup_steps": 3,
        },
        "algorithm.critic_warmup_steps = 3",
        "has no effect: algorithm.loss_type actor trains no value function",
    ),
    "values that nothing trains": (
        {"algorithm.loss_type": "actor"},
        'algorithm.loss_type = "actor"',
        "gae would use values that nothing trains",
    ),
    "an evaluation at the start without envs": (
        {"env.eval": ..., "runner.eval_at_start": True},
        "env.eval\n",
        "environments to evaluate in are needed, as runner.eval_at_start asks for them",
    ),
    "evaluation without envs": (
        {"env.eval": ..., "runner.val_check_interval": 5},
        "env.eval\n",
        "environments to evaluate in are needed, as runner.val_check_interval asks for them",
    ),
    "ranking without evaluation": (
        {"runner.keep_best": 2, "runner.save_interval": 5},
        "runner.keep_best = 2",
        "checkpoints cannot be ranked: runner.val_check_interval is -1",
    ),
    "keeping what is not saved": (
        {"runner.keep_last": 2},
        "runner.keep_last = 2",
        "no checkpoints are saved: runner.save_interval is -1",
    ),
    "checkpoints between evaluations": (
        {"runner.keep_best": 2, "runner.save_interval": 5, "runner.val_check_interval": 2},
        "runner.save_interval = 5",
        "save_interval 5 cannot be divided by val_check_interval 2",
        "4 or 6 would do",
    ),
    "two kinds of mixed precision": (
        {
            "actor.fsdp_config.amp_autocast.enabled": True,
            "actor.fsdp_config.mixed_precision.param_dtype": "bf16",
        },
        "actor.fsdp_config.amp_autocast.enabled = true",
        'cannot be combined with mixed_precision {param_dtype: "bf16"}',
    ),
    "two paths for one model": (
        {
            "rollout.model_dir": "/a",
            "rollout.model.model_path": "/b",
            "actor.model.model_path": "/b",
        },
        'rollout.model_dir = "/a"',
        'rollout.model.model_path says otherwise: "/b"',
    ),
    "weights that the actor does not have": (
        {"rollout.model.model_path": "/a"},
        'rollout.model.model_path = "/a"',
        "the actor begins with fresh weights, which replace these before the first step",
        "set actor.model.model_path as well",
    ),
    "another model for the rollout": (
        {"rollout.model.model_type": "cnn_policy"},
        'rollout.model.model_type = "cnn_policy"',
        'must be actor.model.model_type, which is "mlp_policy"',
    ),
    "bounds in the wrong order": (
        {"algorithm.rewards_lower_bound": 4, "algorithm.rewards_upper_bound": 1},
        "algorithm.rewards_lower_bound = 4.0",
        "must be less than algorithm.rewards_upper_bound, which is 1.0",
    ),
    "a ratio per response": (
        {"algorithm.policy_loss": "gspo"},
        'algorithm.policy_loss = "gspo"',
        "must be one of: ppo, cispo",
    ),
    "a correction for engines": (
        {"algorithm.mismatch": {"high": 3}},
        "algorithm.mismatch = ",
        "it is a key of task_type reasoning and reasoning_eval and agent and "
        "coding_online_rl; remove it",
    ),
}

REASONING = {
    "sequences that do not fill minibatches": (
        {"algorithm.n_minibatches": 5},
        "algorithm.n_minibatches = 5",
        "32 prompts × 8 samples = 256 sequences, which cannot be divided by n_minibatches 5:"
        " 256 / 5 = 51.2 sequences per minibatch",
    ),
    "another global batch": (
        {"actor.global_batch_size": 100},
        "actor.global_batch_size = 100",
        "must be 64: 32 prompts × 8 samples = 256 sequences / 4 minibatches = 64",
    ),
    "a global batch that does not divide": (
        {"algorithm.n_minibatches": ..., "actor.global_batch_size": 100},
        "actor.global_batch_size = 100",
        "32 prompts × 8 samples = 256 sequences, which cannot be divided by global_batch_size 100:"
        " 256 / 100 = 2.56 minibatches",
        "sizes that would do: 32, 64, 128",
    ),
    "micro-batches that do not divide": (
        {"actor.micro_batch_size": 5},
        "actor.micro_batch_size = 5",
        "a minibatch of 64 sequences cannot be divided by"
        " micro_batch_size 5 × 4 actor workers = 20:"
        " 64 / 20 = 3.2 micro-batches per worker",
        "instead of 64, 60 or 80 would do",
    ),
    "no room for a response": (
        {"runner.seq_length": 128},
        "runner.seq_length = 128",
        "must be greater than data.max_prompt_length, which is 128",
    ),
    "no sequence length": (
        {"runner.seq_length": ...},
        "runner.seq_length\n",
        "is missing: the most tokens of prompt and response together",
    ),
    "response that is too long": (
        {"algorithm.sampling_params.max_new_tokens": 400},
        "algorithm.sampling_params.max_new_tokens = 400",
        "seq_length 512 - max_prompt_length 128 = 384 tokens are left",
    ),
    "no log-probabilities": (
        {"algorithm.recompute_logprobs": False, "rollout.return_logprobs": False},
        "algorithm.recompute_logprobs = false",
        "old log-probabilities have no source",
    ),
    "correction with one side": (
        {"algorithm.mismatch": {"mode": "mask"}, "rollout.return_logprobs": False},
        "algorithm.mismatch = ",
        "compares the log-probabilities of engine and trainer",
        "but rollout.return_logprobs is false",
    ),
    "correction of the engine's own ratio": (
        {"algorithm.mismatch": {"high": 3}, "algorithm.recompute_logprobs": False},
        "algorithm.mismatch = ",
        "but algorithm.recompute_logprobs is false",
    ),
    "older samples that nothing corrects": (
        {"algorithm.max_policy_age": 1, "rollout.return_logprobs": False},
        "algorithm.max_policy_age = 1",
        "nothing would correct for older samples: rollout.return_logprobs is false",
        "algorithm.mismatch.mode: none",
    ),
    "correction of a loss that corrects": (
        {"algorithm.loss_type": "decoupled_actor", "algorithm.mismatch": {"high": 3}},
        "algorithm.mismatch = ",
        "loss_type decoupled_actor weighs samples by their age already",
    ),
    "geometric weights": (
        {"algorithm.mismatch": {"level": "geometric"}},
        'algorithm.mismatch.mode = "truncate"',
        "level geometric drops responses and weighs none",
        "set it to mask",
    ),
    "an old name of the correction": (
        {"algorithm.importance_sampling_fix": True},
        "algorithm.importance_sampling_fix",
        "set algorithm.mismatch",
    ),
    "an old name of its limit": (
        {"algorithm.importance_sampling_clip": 3.0},
        "algorithm.importance_sampling_clip",
        "set algorithm.mismatch.high",
    ),
    "a divergence without a gradient": (
        {"algorithm.kl_beta": 0.1, "algorithm.kl_penalty_type": "k1"},
        'algorithm.kl_penalty_type = "k1"',
        "has no gradient on average",
        "use low_var_kl or k2, or set algorithm.kl_in to reward",
    ),
    "a clip range of another surrogate": (
        {"algorithm.policy_loss": "gspo", "algorithm.ratio_clip_eps": 0.1},
        "algorithm.ratio_clip_eps = 0.1",
        "is for policy_loss ppo, but that is gspo",
        "set algorithm.clip_ratio_low and algorithm.clip_ratio_high",
    ),
    "dual clip of a surrogate without it": (
        {"algorithm.policy_loss": "cispo", "algorithm.clip_ratio_c": 3.0},
        "algorithm.clip_ratio_c = 3.0",
        "cispo bounds the ratio itself",
    ),
    "groups that are chosen and streamed": (
        {"algorithm.dynamic_sampling": True, "actor.stream_groups": 2},
        "actor.stream_groups = 2",
        "dynamic sampling chooses the groups of a step when all are there",
    ),
    "evaluations that cannot be undone": (
        {
            "rollout.rollout_backend": "vllm",
            "runner.val_check_interval": 3,
            "runner.weight_sync_interval": 2,
            "data.val_data_paths": ["val.jsonl"],
        },
        "runner.val_check_interval = 3",
        "vllm cannot give back the weights of before",
    ),
    "gae without a critic": (
        {"algorithm.adv_type": "gae"},
        'algorithm.adv_type = "gae"',
        "gae needs values, but there is no critic",
        "set critic.use_critic_model to true",
    ),
    "a critic that goes first and is not there": (
        {"algorithm.critic_warmup_steps": 3},
        "algorithm.critic_warmup_steps = 3",
        "there is no value function that could learn alone",
    ),
    "two critics": (
        {
            "algorithm.adv_type": "gae",
            "algorithm.loss_type": "actor_critic",
            "critic": {
                "use_critic_model": True,
                "model": {"model_type": "qwen3", "model_path": "m"},
            },
            "actor.model.add_value_head": True,
        },
        "actor.model.add_value_head = true",
        "there is a critic with a network of its own as well",
    ),
    "a value head that nothing trains": (
        {"actor.model.add_value_head": True},
        "actor.model.add_value_head = true",
        "nothing would train it: loss_type is actor",
    ),
    "a value loss without a head": (
        {"algorithm.loss_type": "actor_critic"},
        'algorithm.loss_type = "actor_critic"',
        "trains a value head, which the policy does not have",
    ),
    "a model from nowhere": (
        {"actor.model.model_path": ...},
        "actor.model.model_path\n",
        "is missing: there are neither weights nor the sizes of a fresh model",
    ),
    "inference without work": (
        {
            "algorithm.recompute_logprobs": False,
            "cluster.component_placement": {"actor,rollout,reward,inference": "0-3"},
        },
        "cluster.component_placement = ",
        "inference workers would have nothing to do: algorithm.recompute_logprobs is false",
    ),
    "a reference that nobody asks": (
        {"cluster.component_placement": {"actor,rollout,reward,reference": "0-3"}},
        "reference workers would have nothing to do",
        "set algorithm.kl_beta, or take reference out",
    ),
    "a critic without a network": (
        {"cluster.component_placement": {"actor,rollout,reward,critic": "0-3"}},
        "critic workers would have nothing to do",
        "set critic.use_critic_model to true, or take critic out",
    ),
    "adapters that are not there": (
        {"weight_syncer.lora": "adapters"},
        'weight_syncer.lora = "adapters"',
        "there are no adapters: actor.model.is_lora is false",
    ),
    "adapters without a base": (
        {
            "weight_syncer.lora": "adapters",
            "actor.model": {"model_type": "qwen3", "is_lora": True, "hf_config": {"vocab_size": 9}},
        },
        'weight_syncer.lora = "adapters"',
        "a rollout cannot have the base weights: actor.model.model_path is null",
    ),
    "examples that do not divide": (
        {"actor.supervised": {"steps": 1, "batch_size": 6}},
        "actor.supervised.batch_size = 6",
        "6 examples cannot be divided by 4 actor workers: 6 / 4 = 1.5 examples per worker",
    ),
    "a decoupled loss without the engine": (
        {"algorithm.loss_type": "decoupled_actor", "rollout.return_logprobs": False},
        'algorithm.loss_type = "decoupled_actor"',
        "weighs samples by the engine's log-probabilities, but there are none",
    ),
    "critic without a model": (
        {"critic.use_critic_model": True},
        "critic.model\n",
        "is missing: critic.use_critic_model is true",
    ),
    "no reward": (
        {"reward.reward_type": ...},
        "reward.reward_type\n",
        "a reasoning run needs a reward for its responses",
    ),
    "unknown reward": (
        {"reward.reward_type": "maths"},
        'reward.reward_type = "maths"',
        "did you mean 'math'?",
    ),
    "no prompts": (
        {"data.train_data_paths": ...},
        "data.train_data_paths\n",
        "is missing: there are no training prompts",
    ),
    "generated prompts need no files": (
        {
            "data.train_data_paths": ...,
            "data.type": "arithmetic",
            "data.digits": 4,
        },
        "data.digits = 4",
        "must be a whole number, at least 1 and at most 3",
    ),
    "unknown dataset": (
        {"data.type": "arithmetics"},
        'data.type = "arithmetics"',
        "did you mean 'arithmetic'?",
    ),
    "template without a place": (
        {"data.prompt_template": "Solve:"},
        'data.prompt_template = "Solve:"',
        "has no `{prompt}`",
    ),
    "system prompt without a chat": (
        {"data.system_prompt": "Think."},
        'data.system_prompt = "Think."',
        "data.apply_chat_template is false",
    ),
    "overlong buffer": (
        {"algorithm.overlong_buffer_length": 300},
        "algorithm.overlong_buffer_length = 300",
        "more than a whole response, which has at most 256 tokens",
    ),
    "key of another dataset": (
        {"data.num_workers": 2},
        "data.num_workers",
        "only data.type reasoning_gym has it",
    ),
    "dynamic batches without a budget": (
        {"runner.enable_dynamic_batch_size": True},
        "runner.max_tokens_per_mbs\n",
        "enable_dynamic_batch_size needs the most tokens of a micro-batch",
    ),
    "reinforce++ baseline without groups": (
        {
            "algorithm.adv_type": "reinpp",
            "algorithm.use_reinpp_baseline": True,
            "algorithm.group_size": 1,
            "algorithm.n_minibatches": 2,
        },
        "algorithm.group_size = 1",
        "use_reinpp_baseline compares",
    ),
}


@pytest.mark.parametrize("case", EMBODIED)
def test_embodied_keys_that_do_not_fit(embodied, change, complaint, case):
    changes, *expected = EMBODIED[case]
    message = complaint(change(embodied, changes))
    assert message.startswith("The config has 1 problem:"), message
    for part in expected:
        assert part in message


@pytest.mark.parametrize("case", REASONING)
def test_reasoning_keys_that_do_not_fit(reasoning, change, complaint, case):
    changes, *expected = REASONING[case]
    message = complaint(change(reasoning, changes))
    assert message.startswith("The config has 1 problem:"), message
    for part in expected:
        assert part in message


def test_defaults_follow_the_task(embodied, reasoning, change):
    assert validate_cfg(embodied).algorithm.gamma == 0.99
    algorithm = validate_cfg(reasoning).algorithm
    assert algorithm.gamma == 1.0, "tokens are not discounted"
    assert algorithm.max_num_gen_batches > 1, "dynamic sampling can draw again"
    assert algorithm.kl_penalty_type == "low_var_kl" and algorithm.mismatch is None
    assert validate_cfg(change(reasoning, {"algorithm.gamma": 0.9})).algorithm.gamma == 0.9


EVALUATION = {
    "cluster": {"component_placement": {"rollout,reward": "0"}},
    "runner": {"task_type": "reasoning_eval", "seq_length": 64, "ckpt_path": "logs/run"},
    "data": {"type": "arithmetic", "max_prompt_length": 8},
    "rollout": {},
    "reward": {"reward_type": "arithmetic"},
}


def test_an_evaluation_needs_no_actor_and_no_algorithm(change):
    cfg = validate_cfg(EVALUATION)
    assert cfg.actor is None and cfg.runner.only_eval
    assert cfg.algorithm.sampling_params.max_new_tokens is None
    sampling = {"algorithm": {"sampling_params": {"max_new_tokens": 32}}}
    assert validate_cfg(EVALUATION | sampling).algorithm.sampling_params.max_new_tokens == 32


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"runner.ckpt_path": ...}, "there are no weights to evaluate"),
        ({"runner.resume_dir": "run/global_step_3"}, "reasoning_eval only evaluates"),
        ({"runner.only_eval": False}, "must be true: task type reasoning_eval only evaluates"),
        ({"algorithm": {"sampling_params": {"max_new_tokens": 60}}}, "does not fit"),
    ],
)
def test_evaluations_that_do_not_fit(change, complaint, changes, expected):
    message = complaint(change(copy.deepcopy(EVALUATION), changes))
    assert message.startswith("The config has 1 problem:") and expected in message, message


def test_k1_may_be_part_of_the_reward(reasoning, change):
    keys = {"kl_beta": 0.1, "kl_in": "reward", "kl_penalty_type": "k1"}
    validate_cfg(change(reasoning, {f"algorithm.{key}": value for key, value in keys.items()}))


def test_wrong_keys_do_not_cause_complaints_about_others(reasoning, change, complaint):
    message = complaint(change(reasoning, {"runner.seq_length": "${nowhere}"}))
    assert message.startswith("The config has 1 problem:"), message
    message = complaint(change(reasoning, {"data.rollout_batch_size": "many"}))
    assert message.startswith("The config has 2 problems:"), message


def test_an_evaluation_does_not_mind_the_sizes_of_training(embodied, change):
    wrong = {"env.train.total_num_envs": 17, "actor.global_batch_size": 13}
    with pytest.raises(ConfigError):
        validate_cfg(change(embodied, wrong))
    validate_cfg(change(embodied, {**wrong, "runner.only_eval": True}))


def test_evaluations_have_no_pipeline_stages(embodied, change):
    sizes = {"rollout.pipeline_stage_num": 2, "env.eval.total_num_envs": 14}
    validate_cfg(change(embodied, {**sizes, "env.train.total_num_envs": 32}))
