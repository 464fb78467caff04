"""What a user sees for each of many mistakes."""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rlinf.config import ConfigError, validate_cfg

DELETE = object()


def change(config, changes):
    """Sets or deletes dotted keys in a plain config."""
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = config
        for key in parents:
            node = node.setdefault(key, {})
        if value is DELETE:
            del node[last]
        else:
            node[last] = value
    return config


def message_of(config):
    """Returns the message that a bad config gives."""
    with pytest.raises(ConfigError) as caught:
        validate_cfg(config)
    text = str(caught.value)
    for jargon in ("pydantic", "ValidationError", "type=", "http", "extra_forbidden", "Traceback"):
        assert jargon not in text
    return text


# Changes to the embodied config, and what the one block of the message must contain.
EMBODIED_MISTAKES = {
    "typo": (
        {"actor.micro_batch_sise": 4},
        "actor.micro_batch_sise = 4",
        "unknown key: 'actor' has no 'micro_batch_sise'",
        "did you mean 'micro_batch_size'?",
    ),
    "unknown section": (
        {"rollot": {"seed": 1}},
        "rollot = {seed: 1}",
        "unknown key: the config has no 'rollot'",
        "did you mean 'rollout'?",
    ),
    "key in the wrong section": (
        {"runner.lr": 1e-3},
        "runner.lr = 0.001",
        "unknown key: 'runner' has no 'lr'",
        "the key exists as actor.optim.lr and critic.optim.lr",
    ),
    "unknown and far from everything": (
        {"cluster.timeouts.zzz": 1},
        "cluster.timeouts.zzz = 1",
        "allowed here: call, channel, collective, launch, lock, nodes, port",
    ),
    "key of an env that the env does not have": (
        {"env.train.taskk": "reach-v3"},
        'env.train.taskk = "reach-v3"',
        "did you mean 'task'?",
    ),
    "renamed key": (
        {"algorithm.staleness_threshold": 1},
        "algorithm.staleness_threshold = 1",
        "it is called algorithm.max_policy_age here",
    ),
    "moved key": (
        {"algorithm.rollout_epoch": 2},
        "algorithm.rollout_epoch = 2",
        "it belongs to the envs: env.train.rollout_epoch",
    ),
    "dead key": (
        {"algorithm.rollout_batch_size_per_gpu": 2},
        "it never had an effect; remove it",
    ),
    "letters in a whole number": (
        {"runner.max_steps": "12a"},
        'runner.max_steps = "12a"',
        "must be a whole number, at least -1",
        '"12a" is text',
    ),
    "quoted whole number": (
        {"runner.max_steps": "12"},
        'runner.max_steps = "12"',
        "write 12 without quotes",
    ),
    "truth value as a whole number": (
        {"runner.max_steps": True},
        "runner.max_steps = true",
        "must be a whole number, at least -1",
        "true and false are not numbers",
    ),
    "fraction as a whole number": (
        {"actor.micro_batch_size": 2.5},
        "actor.micro_batch_size = 2.5",
        "must be a whole number, greater than 0, or null",
    ),
    "letters in a number": (
        {"actor.optim.lr": "fast"},
        'actor.optim.lr = "fast"',
        "must be a number, greater than 0",
        '"fast" is text',
    ),
    "not a finite number": (
        {"actor.optim.lr": float("inf")},
        "actor.optim.lr = inf",
        "must be a number, greater than 0",
    ),
    "quoted truth value": (
        {"rollout.enable_offload": "yes"},
        'rollout.enable_offload = "yes"',
        "must be true or false",
        "write true or false without quotes",
    ),
    "number as truth value": (
        {"rollout.enable_offload": 1},
        "rollout.enable_offload = 1",
        "must be true or false",
    ),
    "number as text": (
        {"runner.logger.experiment_name": 7},
        "runner.logger.experiment_name = 7",
        "must be text",
        'put it in quotes: "7"',
    ),
    "too small": (
        {"cluster.num_nodes": 0},
        "cluster.num_nodes = 0",
        "must be a whole number, at least 1 and at most 100000",
    ),
    "too large": (
        {"algorithm.gamma": 1.5},
        "algorithm.gamma = 1.5",
        "must be a number, at least 0 and at most 1",
    ),
    "null where a value is needed": (
        {"algorithm.gamma": None},
        "algorithm.gamma = null",
        "must be a number, at least 0 and at most 1",
        "leave it out to get the default, 0.99",
    ),
    "choice that does not exist": (
        {"algorithm.loss_agg_func": "token_mean"},
        'algorithm.loss_agg_func = "token_mean"',
        "must be one of: token-mean, seq-mean-token-sum, seq-mean-token-mean",
        "did you mean 'token-mean'?",
    ),
    "unknown task": (
        {"runner.task_type": "embodid"},
        'runner.task_type = "embodid"',
        "must be one of: workers, embodied, embodied_eval, reasoning",
        "did you mean 'embodied'?",
    ),
    "list instead of text": (
        {"actor.model.model_path": ["a"]},
        'actor.model.model_path = ["a"]',
        "must be text or null",
    ),
    "text instead of a list": (
        {"runner.logger.logger_backends": "wandb"},
        'runner.logger.logger_backends = "wandb"',
        "must be a list with any of: tensorboard, wandb, swanlab, jsonl",
    ),
    "wrong item of a list": (
        {"runner.logger.logger_backends": ["wandb", "tensorbord"]},
        'runner.logger.logger_backends[1] = "tensorbord"',
        "must be one of: tensorboard, wandb, swanlab, jsonl",
        "did you mean 'tensorboard'?",
    ),
    "value instead of a section": (
        {"actor.optim": 0.1},
        "actor.optim = 0.1",
        "must be a map of keys",
    ),
    "section instead of a value": (
        {"runner.max_steps": {"value": 3}},
        "runner.max_steps = {value: 3}",
        "must be a whole number, at least -1",
        "it has no keys of its own",
    ),
    "key of a node group": (
        {"cluster.node_groups": [{"label": "a", "node_ranks": 0, "ignore_hardwear": True}]},
        "cluster.node_groups[0].ignore_hardwear = true",
        "did you mean 'ignore_hardware'?",
    ),
    "reserved label": (
        {"cluster.node_groups": [{"label": "node", "node_ranks": 0}]},
        "cluster.node_groups[0].label",
        "node",
    ),
    "missing section": (
        {"algorithm": DELETE},
        "algorithm\n",
        "is missing: a map of keys is needed (What is optimised and how)",
    ),
    "missing key": (
        {"env.train.total_num_envs": DELETE},
        "env.train.total_num_envs\n",
        "is missing: a whole number, greater than 0 is needed (Environments in all",
    ),
    "unknown env": (
        {"env.train.env_type": "metawrld"},
        'env.train.env_type = "metawrld"',
        "no env is registered under this name; known: envpool, gymnasium, libero",
        "did you mean 'metaworld'?",
    ),
    "env without its own mandatory key": (
        {"env.eval": {"env_type": "gymnasium", "total_num_envs": 4}},
        "env.eval.id\n",
        "is missing: text is needed (Registered id",
    ),
    "unknown model": (
        {"actor.model.model_type": "mlp_polcy"},
        'actor.model.model_type = "mlp_polcy"',
        "no model is registered under this name; known: cnn_policy, hf_causal_lm",
        "did you mean 'mlp_policy'?",
    ),
    "model of another task": (
        {"actor.model.model_type": "qwen3"},
        'actor.model.model_type = "qwen3"',
        "is a model for reasoning tasks, but runner.task_type needs embodied",
        "use one of: mlp_policy, cnn_policy",
    ),
    "unknown advantage": (
        {"algorithm.adv_type": "gea"},
        'algorithm.adv_type = "gea"',
        "no advantage is registered under this name; known: gae, grpo, raw, reinpp",
        "did you mean 'gae'?",
    ),
    "unknown loss": (
        {"algorithm.loss_type": "actor-critic"},
        'algorithm.loss_type = "actor-critic"',
        "no loss is registered under this name; known: actor, actor_critic",
        "did you mean 'actor_critic'?",
    ),
    "reserved key": (
        {"cluster.tracer": {"enable": True}},
        "cluster.tracer = {enable: true}",
        "known, but not implemented in this version",
        "remove it, or set it to null",
    ),
    "reserved choice": (
        {"actor.training_backend": "megatron"},
        'actor.training_backend = "megatron"',
        "known, but not implemented in this version",
        "use fsdp",
    ),
    "reserved task": (
        {"runner.task_type": "sft"},
        'runner.task_type = "sft"',
        "known, but not implemented in this version",
        "use workers or embodied or",
    ),
    "interval of zero": (
        {"runner.save_interval": 0},
        "runner.save_interval = 0",
        "must be -1 (never) or a whole number of steps, at least 1",
    ),
    "not a checkpoint": (
        {"runner.resume_dir": "/logs/run7"},
        'runner.resume_dir = "/logs/run7"',
        "must be 'auto' or a checkpoint folder whose name ends in global_step_<number>",
    ),
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
    "no end": (
        {"runner.max_steps": -1},
        "runner.max_steps = -1",
        "the run would never end: max_steps and max_epochs are both -1 (no limit)",
    ),
    "envs that do not divide": (
        {
            "env.train.total_num_envs": 18,
            "rollout.pipeline_stage_num": 2,
            "env.eval": DELETE,
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
        "5 / 2 = 2.5 groups per worker and stage",
        "4 or 6 would do",
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
        {"actor.global_batch_size": DELETE, "actor.micro_batch_size": 64},
        "env.train.total_num_envs = 16",
        "16 envs × 100 steps × 1 epoch = 1600 samples, the whole rollout, cannot be divided by"
        " micro_batch_size 64 × 4 actor workers = 256",
        "instead of 1600, 1536 or 1792 would do",
    ),
    "group of one": (
        {"algorithm.adv_type": "grpo", "algorithm.loss_type": "actor"},
        "algorithm.group_size = 1",
        "must be at least 2: grpo compares the samples of a group with one another",
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
    "values that nothing trains": (
        {"algorithm.loss_type": "actor"},
        'algorithm.loss_type = "actor"',
        "gae would use values that nothing trains",
    ),
    "evaluation without envs": (
        {"env.eval": DELETE, "runner.val_check_interval": 5},
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
        {"rollout.model_dir": "/a", "rollout.model.model_path": "/b"},
        'rollout.model_dir = "/a"',
        'rollout.model.model_path says otherwise: "/b"',
    ),
    "bounds in the wrong order": (
        {"algorithm.rewards_lower_bound": 4, "algorithm.rewards_upper_bound": 1},
        "algorithm.rewards_lower_bound = 4.0",
        "must be less than algorithm.rewards_upper_bound, which is 1.0",
    ),
}

REASONING_MISTAKES = {
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
        {"runner.seq_length": DELETE},
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
        {"algorithm.importance_sampling_fix": True, "rollout.return_logprobs": False},
        "algorithm.importance_sampling_fix = true",
        "but rollout.return_logprobs is false",
    ),
    "gae without a critic": (
        {"algorithm.adv_type": "gae"},
        'algorithm.adv_type = "gae"',
        "gae needs values, but there is no critic",
        "set critic.use_critic_model to true",
    ),
    "critic without a model": (
        {"critic.use_critic_model": True},
        "critic.model\n",
        "is missing: critic.use_critic_model is true",
    ),
    "no reward": (
        {"reward.reward_type": DELETE},
        "reward.reward_type\n",
        "a reasoning run needs a reward for its responses",
    ),
    "unknown reward": (
        {"reward.reward_type": "maths"},
        'reward.reward_type = "maths"',
        "did you mean 'math'?",
    ),
    "no prompts": (
        {"data.train_data_paths": DELETE},
        "data.train_data_paths\n",
        "is missing: there are no training prompts",
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


@pytest.mark.parametrize("case", EMBODIED_MISTAKES)
def test_embodied_mistake(embodied, case):
    changes, *expected = EMBODIED_MISTAKES[case]
    message = message_of(change(embodied, changes))
    assert message.startswith("The config has 1 problem:"), message
    for part in expected:
        assert part in message


@pytest.mark.parametrize("case", REASONING_MISTAKES)
def test_reasoning_mistake(reasoning, case):
    changes, *expected = REASONING_MISTAKES[case]
    message = message_of(change(reasoning, changes))
    assert message.startswith("The config has 1 problem:"), message
    for part in expected:
        assert part in message


def test_all_problems_come_at_once(embodied):
    changes = {
        "actor.micro_batch_sise": 4,
        "runner.max_steps": "12a",
        "algorithm.gamma": True,
        "env.train.total_num_envs": 17,
        "env.eval.env_type": "metawrld",
        "cluster.profiling": {"backend": "x"},
        "actor.optim.lr": "${nowhere}",
    }
    with pytest.raises(ConfigError) as caught:
        validate_cfg(OmegaConf.create(change(embodied, changes)))
    problems = {problem.path: problem for problem in caught.value.problems}
    assert set(changes) - {"actor.global_batch_size"} <= set(problems)
    assert "17 envs" in problems["env.train.total_num_envs"].message
    assert problems["actor.micro_batch_sise"].hint == "did you mean 'micro_batch_size'?"
    text = str(caught.value)
    assert text.startswith(f"The config has {len(caught.value.problems)} problems:")
    assert text.count("\n\n") == len(caught.value.problems)


def test_unresolved_interpolations_are_named(embodied, monkeypatch):
    monkeypatch.delenv("MODEL_FOLDER", raising=False)
    changes = {
        "actor.model.model_path": "${oc.env:MODEL_FOLDER}",
        "rollout.model": "${actor.modell}",
        "runner.max_steps": "???",
        "actor.optim.lr": "${actor.optim.lr}",
        "rollout.seed": "${no_such_function:1}",
    }
    message = message_of(OmegaConf.create(change(embodied, changes)))
    assert message.startswith("The config has 5 problems:")
    assert "the environment variable MODEL_FOLDER is not set" in message
    assert "give a default: ${oc.env:MODEL_FOLDER,value}" in message
    assert "refers to 'actor.modell', which is not in the config" in message
    assert "runner.max_steps\n  needs a value: it is marked ??? in the config" in message
    assert "refers to itself" in message
    assert "no_such_function" in message


@pytest.mark.parametrize("config", [None, 3, "x", ["runner"]])
def test_not_a_map(config):
    assert "must be a map of sections" in message_of(config)


def test_an_empty_config():
    message = message_of({})
    assert "runner\n  is missing" in message


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**40),
    st.floats(),
    st.text(max_size=8).filter(lambda text: "${" not in text),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(), max_size=2),
)
PLACES = [
    "cluster",
    "cluster.num_nodes",
    "cluster.component_placement",
    "cluster.node_groups",
    "runner",
    "runner.task_type",
    "runner.resume_dir",
    "algorithm",
    "algorithm.adv_type",
    "algorithm.group_size",
    "env.train",
    "env.train.env_type",
    "env.train.total_num_envs",
    "env.eval.group_size",
    "rollout.model",
    "rollout.pipeline_stage_num",
    "actor.model.model_type",
    "actor.model.num_action_chunks",
    "actor.global_batch_size",
    "actor.optim",
    "nonsense",
]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(changes=st.dictionaries(st.sampled_from(PLACES), VALUES, min_size=1, max_size=3))
def test_whatever_is_wrong_is_a_config_error(embodied, changes):
    config = copy.deepcopy(embodied)
    # Longer paths first, so that a section that is replaced by a value is replaced last.
    for path in sorted(changes, key=len, reverse=True):
        change(config, {path: changes[path]})
    try:
        validate_cfg(config)
    except ConfigError as error:
        assert error.problems
        assert "pydantic" not in str(error)
