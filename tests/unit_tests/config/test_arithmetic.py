"""The arithmetic of a batch in words."""

from rlinf.config import batch_arithmetic, reads, validate_cfg


def test_the_default_job(embodied):
    lines = batch_arithmetic(validate_cfg(embodied), {"actor": 4, "env": 2, "rollout": 2})
    assert lines == [
        "the policy acts in 2 rollout workers",
        "16 envs / (2 env workers × 1 pipeline stage) = 8 envs each",
        "16 envs × 100 steps × 1 epoch = 1600 samples → 4 minibatches of 400"
        " → × 10 update epochs = 40 updates",
        "each minibatch: 400 samples / 4 actor workers = 100 per worker → 2 micro-batches of 50",
    ]
    assert reads() == set()


def test_where_the_policy_acts(embodied):
    placed = embodied["cluster"]["component_placement"]
    placed["rollout"] = placed["env"]
    lines = batch_arithmetic(validate_cfg(embodied), {})
    assert lines[0] == "the policy acts inside of the env processes"


def test_chunks_groups_and_whole_rollouts(embodied):
    embodied["actor"]["model"] = {"model_type": "mlp_policy", "num_action_chunks": 5}
    embodied["algorithm"] = {"adv_type": "grpo", "loss_type": "actor", "group_size": 4}
    embodied["actor"].update(global_batch_size=None, micro_batch_size=None)
    embodied["rollout"]["pipeline_stage_num"] = 2
    embodied["env"]["train"]["auto_reset"] = False
    embodied["cluster"]["component_placement"]["actor"] = "0-1"
    lines = batch_arithmetic(validate_cfg(embodied), {"env": 2})
    assert lines[1:] == [
        "16 envs / (2 env workers × 2 pipeline stages) = 4 envs each = 1 group of 4",
        "16 envs × 20 chunks of 5 steps × 1 epoch = 320 samples → 1 minibatch of 320"
        " → × 1 update epoch = 1 update",
    ]


def test_an_env_that_knows_its_own_length(embodied):
    del embodied["env"]["train"]["max_episode_steps"]
    lines = batch_arithmetic(validate_cfg(embodied), {})
    assert lines[1:] == ["samples per step: known when the env says how long an episode is"]


def test_reasoning(reasoning):
    cfg = validate_cfg(reasoning)
    assert batch_arithmetic(cfg, {"actor": 4}) == [
        "32 prompts × 8 samples = 256 sequences → 4 minibatches of 64"
        " → × 1 update epoch = 4 updates",
        "each minibatch: 64 samples / 4 actor workers = 16 per worker → 4 micro-batches of 4",
    ]
    reasoning["runner"].update(enable_dynamic_batch_size=True, max_tokens_per_mbs=4096)
    lines = batch_arithmetic(validate_cfg(reasoning), {"actor": 4})
    assert lines[1] == "micro-batches of at most 4096 tokens"


def test_tasks_that_do_not_train(workers):
    assert batch_arithmetic(validate_cfg(workers), {}) == []
