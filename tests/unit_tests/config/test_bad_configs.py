"""What a user sees for each mistake in a single key."""

import pytest
from omegaconf import OmegaConf

from rlinf.config import ConfigError, register_lazy, validate_cfg

# Changes to the embodied config (... deletes), and what the message must contain.
MISTAKES = {
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
        "the key exists as actor.optim.lr",
    ),
    "unknown and far from everything": (
        {"cluster.timeouts.zzz": 1},
        "cluster.timeouts.zzz = 1",
        "allowed here: call, channel, launch, lock, nodes, reconnect, recv",
    ),
    "key of an env that the env does not have": (
        {"env.train.taskk": "reach-v3"},
        'env.train.taskk = "reach-v3"',
        "did you mean 'task'?",
    ),
    "renamed key": (
        {"algorithm.kl_penalty": "kl"},
        'algorithm.kl_penalty = "kl"',
        "it is called algorithm.kl_penalty_type here",
    ),
    "two names of one key": (
        {"algorithm.staleness_threshold": 1, "algorithm.max_policy_age": 2},
        "algorithm.staleness_threshold = 1",
        "it is another name of algorithm.max_policy_age: set one of the two",
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
        "must be one of: workers, embodied, offline, sft, reward_model, reasoning",
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
        {"algorithm": ...},
        "algorithm\n",
        "is missing: a map of keys is needed (What is optimised and how)",
    ),
    "missing key": (
        {"env.train.total_num_envs": ...},
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
        "no model is registered under this name; known: cma, cnn_policy, cnn_reward_model",
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
        "no advantage is registered under this name; known: embodied_sac, gae, grpo, raw,",
        "did you mean 'gae'?",
    ),
    "unknown loss": (
        {"algorithm.loss_type": "actor-critic"},
        'algorithm.loss_type = "actor-critic"',
        "no loss is registered under this name; known: actor, actor_critic",
        "did you mean 'actor_critic'?",
    ),
    "key of a feature that does not exist": (
        {"cluster.tracer": {"enable": True}},
        "cluster.tracer = {enable: true}",
        "unknown key: 'cluster' has no 'tracer'",
        "allowed here: address, component_placement",
    ),
    "only choice of a key that is gone": (
        {"actor.training_backend": "fsdp"},
        'actor.training_backend = "fsdp"',
        "unknown key: 'actor' has no 'training_backend'",
        "remove it: FSDP trains, see actor.fsdp_config",
    ),
    "task that does not exist": (
        {"runner.task_type": "coding"},
        'runner.task_type = "coding"',
        "must be one of: workers, embodied, offline, sft, reward_model, reasoning",
    ),
    "key of another task": (
        {"algorithm.dynamic_sampling": True},
        "algorithm.dynamic_sampling = true",
        "unknown key: a run of task_type embodied has no 'algorithm.dynamic_sampling'",
        "it is a key of task_type reasoning",
    ),
    "engine of another task": (
        {"rollout.rollout_backend": "vllm"},
        'rollout.rollout_backend = "vllm"',
        "a run of task_type embodied has no 'rollout.rollout_backend'",
    ),
    "section of another task": (
        {"data": {"rollout_batch_size": 3}},
        "data = {rollout_batch_size: 3}",
        "unknown key: a run of task_type embodied has no 'data'",
        "it is a key of task_type offline and sft and reward_model and reasoning",
    ),
    "key of training in evaluation": (
        {"env.eval.rollout_epoch": 2},
        "env.eval.rollout_epoch = 2",
        "an evaluation plays runner.eval_episodes episodes",
    ),
    "number of initial states of an env that has its own": (
        {
            "env.train": {
                "env_type": "libero",
                "task_suite_name": "libero_spatial",
                "total_num_envs": 16,
                "max_episode_steps": 100,
                "num_reset_states": 3,
            }
        },
        "unknown key: 'env.train' has no 'num_reset_states'",
    ),
    "argument of a simulator that takes none": (
        {"env.train.init_params": {"x": 1}},
        "unknown key: 'env.train' has no 'init_params'",
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
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(embodied, change, complaint, case):
    changes, *expected = MISTAKES[case]
    message = complaint(change(embodied, changes))
    assert message.startswith("The config has 1 problem:"), message
    for part in expected:
        assert part in message


def test_all_problems_come_at_once(embodied, change):
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
    assert set(changes) <= set(problems)
    assert "17 envs" in problems["env.train.total_num_envs"].message
    assert problems["actor.micro_batch_sise"].hint == "did you mean 'micro_batch_size'?"
    text = str(caught.value)
    assert text.startswith(f"The config has {len(caught.value.problems)} problems:")
    assert text.count("\n\n") == len(caught.value.problems)


# What a section lacks that says which keys it has, wrong keys beside it, and what they are told.
UNDECIDED = {
    "advantage": (
        {"algorithm.adv_type": ..., "algorithm.gama": 0.9, "algorithm.gamma": 7},
        {"algorithm.adv_type", "algorithm.gama", "algorithm.gamma"},
    ),
    "unknown advantage": (
        {"algorithm.adv_type": "gea", "algorithm.gama": 0.9, "algorithm.group_size": "x"},
        {"algorithm.adv_type", "algorithm.gama", "algorithm.group_size"},
    ),
    "advantage that is no name": (
        {"algorithm.adv_type": 3, "algorithm.gama": 0.9},
        {"algorithm.adv_type", "algorithm.gama"},
    ),
    "env": (
        {"env.train.env_type": ..., "env.train.taskk": 1, "env.train.total_num_envs": 17},
        {
            "env.train.env_type",
            "env.train.taskk",
            "env.train.total_num_envs",
            "actor.global_batch_size",
        },
    ),
    "unknown env": (
        {"env.train.env_type": "metawrld", "env.train.id": "x", "env.train.auto_rest": True},
        {"env.train.env_type", "env.train.auto_rest"},
    ),
    "model": (
        {
            "actor.model.model_type": ...,
            "actor.model.hidden_sise": [3],
            "actor.model.hidden_sizes": "x",
            "actor.model.num_action_chunks": 8,
        },
        # The last is told by what it does not fit.
        {
            "actor.model.model_type",
            "actor.model.hidden_sise",
            "actor.model.hidden_sizes",
            "env.train.max_episode_steps",
        },
    ),
    "task": (
        {
            "runner.task_type": ...,
            "runner.sede": 1,
            "runner.max_steps": "x",
            "rollout.rollout_backend": "vllm",
            "rollout.backnd": "vllm",
            "algorithm.dynamic_sampling": True,
            "algorithm.gama": 1,
            "nonsense": {},
        },
        {
            "runner.task_type",
            "runner.sede",
            "runner.max_steps",
            "rollout.backnd",
            "algorithm.gama",
            "nonsense",
        },
    ),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_a_section_of_unknown_kind_is_checked_all_the_same(embodied, change, case):
    changes, expected = UNDECIDED[case]
    with pytest.raises(ConfigError) as caught:
        validate_cfg(change(embodied, changes))
    assert {problem.path for problem in caught.value.problems} == expected
    hints = {problem.path: problem.hint for problem in caught.value.problems}
    for wrong, right in {
        "algorithm.gama": "gamma",
        "env.train.taskk": "task",
        "env.train.auto_rest": "auto_reset",
        "actor.model.hidden_sise": "hidden_sizes",
        "runner.sede": "seed",
    }.items():
        assert f"did you mean '{right}'?" in hints.get(wrong, f"did you mean '{right}'?")


def test_keys_of_plug_ins_that_cannot_be_looked_up_are_not_called_unknown(embodied, change):
    register_lazy("env", "broken", "no_such_module_here")
    changes = {"env.train.env_type": "metawrld", "env.train.of_broken": 1}
    with pytest.raises(ConfigError) as caught:
        validate_cfg(change(embodied, changes))
    assert [problem.path for problem in caught.value.problems] == ["env.train.env_type"]


def test_a_reward_that_is_no_name(reasoning, change):
    changes = {"reward.reward_type": 3, "reward.answer_tag": "a", "reward.answr_tag": "a"}
    with pytest.raises(ConfigError) as caught:
        validate_cfg(change(reasoning, changes))
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"reward.reward_type", "reward.answr_tag"}


def test_unresolved_interpolations_are_named(embodied, change, complaint, monkeypatch):
    monkeypatch.delenv("MODEL_FOLDER", raising=False)
    changes = {
        "actor.model.model_path": "${oc.env:MODEL_FOLDER}",
        "rollout.model": "${actor.modell}",
        "runner.max_steps": "???",
        "actor.optim.lr": "${actor.optim.lr}",
        "rollout.seed": "${no_such_function:1}",
    }
    message = complaint(OmegaConf.create(change(embodied, changes)))
    assert message.startswith("The config has 5 problems:")
    assert "the environment variable MODEL_FOLDER is not set" in message
    assert "give a default: ${oc.env:MODEL_FOLDER,value}" in message
    assert "refers to 'actor.modell', which is not in the config" in message
    assert "runner.max_steps\n  needs a value: it is marked ??? in the config" in message
    assert "refers to itself" in message
    assert "no_such_function" in message


@pytest.mark.parametrize("config", [None, 3, "x", ["runner"]])
def test_not_a_map(config, complaint):
    assert "must be a map of sections" in complaint(config)


def test_an_empty_config(complaint):
    message = complaint({})
    assert "runner\n  is missing" in message


def test_keys_of_the_public_rlinf_say_what_is_used_here(embodied, change, complaint):
    given = {
        "runner.enable_decoupled_mode": True,
        "runner.use_training_pipeline": True,
        "rollout.collect_transitions": True,
        "env.train.data_collection": {"enabled": True},
        "algorithm.rollout_store_size_per_rank": 1,
        "algorithm.on_policy_min_ratio": 0.5,
    }
    said = complaint(change(embodied, given))
    assert said.startswith(f"The config has {len(given)} problems:")
    for text in (
        "max_policy_age: 1 lets envs, policy and learner go on without waiting for a slow one",
        "max_policy_age: 1 lets the learner learn while the next rollout is played",
        "learners from a replay buffer always get the observations that follow",
        "`rlinf collect` writes datasets",
        "an update learns from one whole rollout",
        "algorithm.max_policy_age bounds the age of all samples",
    ):
        assert text in said
