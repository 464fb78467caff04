"""What a user of a flow policy sees when keys do not fit one another."""

import copy

import pytest

from rlinf.config import validate_cfg

FLOW = {
    "algorithm": {"adv_type": "grpo", "loss_type": "actor", "group_size": 4},
    "env.train.auto_reset": False,
    "actor.model": {"model_type": "flow_policy", "num_action_chunks": 4, "action_horizon": 8},
}
WRONG = {
    "no chance": (
        {"actor.model.noise_method": "flow_ode"},
        "has no noise, so that there are no log-probabilities to learn from",
    ),
    "a plan that is too short": (
        {"actor.model.action_horizon": 3},
        "actor.model.action_horizon = 3",
        "is below num_action_chunks, 4",
    ),
    "plans that do not overlap": (
        {"actor.model.action_horizon": None, "actor.model.rtc": {"delay": 0}},
        "actor.model.rtc.delay = 0",
        "set actor.model.action_horizon above num_action_chunks",
    ),
    "more decided than two plans share": (
        {"actor.model.action_horizon": 6, "actor.model.rtc": {"delay": 3}},
        "actor.model.rtc.delay = 3",
        "must be at most 2: 4 actions of a plan are carried out, and 2 are part of the next one",
    ),
    "rollouts without the delay that they are to have": (
        {"actor.model.rtc": {"delay": 0, "rollouts": "delayed"}},
        'actor.model.rtc.rollouts = "delayed"',
        "has no effect: actor.model.rtc.delay is 0",
    ),
    "evaluations of other plans than those that learn": (
        {"actor.model.rtc": {"rollouts": "delayed"}},
        "actor.model.rtc.max_guidance = 5.0",
        "evaluations would measure other plans than those that are trained",
        "set it to 0",
    ),
    "plans that go on, of a policy without plans": (
        {"actor.model": {"model_type": "mlp_policy", "rtc": {"delay": 1}}},
        "unknown key: 'actor.model' has no 'rtc'",
    ),
    "velocities of plans that are made ahead of time": (
        {"algorithm.loss_type": "embodied_nft", "actor.model.rtc": {"rollouts": "delayed"}},
        "does not go with algorithm.loss_type embodied_nft",
        "set it to anew",
    ),
}
NFT = {"algorithm.loss_type": "embodied_nft"}
WRONG_FOR_NFT = {
    "no velocities": (
        {"actor.model": {"model_type": "mlp_policy"}},
        'actor.model.model_type = "mlp_policy"',
        "set it to flow_policy",
    ),
    "values that nobody learns": (
        {"actor.model.add_value_head": True},
        "must be false: loss_type embodied_nft trains no value function",
    ),
    "advantages of values": (
        {"algorithm.adv_type": "gae"},
        "needs values, and loss_type embodied_nft trains none",
    ),
    "a divergence of probabilities": (
        {"algorithm.kl_beta": 0.1},
        "algorithm.kl_beta = 0.1",
        "has no effect: loss_type embodied_nft computes no log-probabilities",
    ),
    "rollouts of older policies": (
        {"algorithm.max_policy_age": 1},
        "must be 0: loss_type embodied_nft takes the policy before the update",
    ),
}
DSRL = {
    "algorithm": {"adv_type": "embodied_sac", "loss_type": "embodied_sac"},
    "actor.global_batch_size": 256,
    "actor.micro_batch_size": ...,
    "actor.model": {"model_type": "flow_policy", "use_dsrl": True, "add_q_head": True},
}
WRONG_FOR_DSRL = {
    "a flow that would be trained": (
        {"algorithm": {"adv_type": "grpo", "loss_type": "embodied_nft"}},
        "actor.model.use_dsrl = true",
        "freezes the flow, which algorithm.loss_type embodied_nft would train",
    ),
    "densities of a flow": (
        {"actor.model.use_dsrl": False},
        "must be true: a flow has no densities of actions for loss_type embodied_sac",
    ),
    "no critics": (
        {"actor.model.add_q_head": False},
        "must be true: algorithm.loss_type embodied_sac trains Q-functions",
    ),
    "values": (
        {"actor.model.add_value_head": True},
        "must be false: use_dsrl learns from Q-functions",
    ),
    "plans that go on": (
        {"actor.model.action_horizon": 2, "actor.model.rtc": {"delay": 0}},
        "does not go with use_dsrl, which makes each plan anew",
    ),
    "demonstrations": (
        {"algorithm.demo_buffer": {"load_path": "demos"}},
        "has actions, and use_dsrl learns from noises",
    ),
    "adapters of a model that stays": (
        {
            "actor.model": {
                "model_type": "smolvla",
                "model_path": "folder",
                "use_dsrl": True,
                "add_q_head": True,
                "is_lora": True,
            }
        },
        "does not go with use_dsrl, which leaves the model as it is",
    ),
    "parts of a model that stays": (
        {
            "actor.model": {
                "model_type": "smolvla",
                "model_path": "folder",
                "use_dsrl": True,
                "add_q_head": True,
                "train_expert_only": True,
            }
        },
        "actor.model.train_expert_only = true",
        "does not go with use_dsrl, which leaves the model as it is",
    ),
    "more heads than there are": (
        {"algorithm.critic_subsample_size": 11},
        "must not exceed actor.model.num_q_heads, 10",
    ),
}


def test_half_of_a_plan_may_be_decided(embodied, change):
    model = validate_cfg(change(embodied, FLOW | {"actor.model.rtc": {"delay": 4}})).actor.model
    assert model.rtc.delay == 4 and model.rtc.max_guidance == 5.0


def test_evaluations_of_a_policy_that_plans_ahead_are_guided_alone_or_not_at_all(embodied, change):
    rtc = {"delay": 2, "max_guidance": 0, "rollouts": "delayed"}
    flow = change(embodied, copy.deepcopy(FLOW))
    ahead = validate_cfg(change(flow, {"actor.model.rtc": rtc}))
    assert ahead.actor.model.rtc.max_guidance == 0
    guided = {"actor.model.rtc.max_guidance": 5.0, "runner.only_eval": True}
    assert validate_cfg(change(flow, guided)).actor.model.rtc.max_guidance == 5.0


def test_the_folder_of_a_model_says_how_long_plans_are(embodied, change, complaint):
    model = {"model_type": "smolvla", "num_action_chunks": 4, "rtc": {"delay": 4}}
    fresh = {**model, "hf_config": {"scale_factor": 2}}
    said = complaint(change(embodied, FLOW | {"actor.model": fresh}))
    assert "needs plans that overlap" in said
    loaded = validate_cfg(change(embodied, FLOW | {"actor.model": {**model, "model_path": "x"}}))
    assert loaded.actor.model.rtc.delay == 4


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(embodied, change, complaint, name):
    changes, *expected = WRONG[name]
    said = complaint(change(change(embodied, copy.deepcopy(FLOW)), changes))
    for text in expected:
        assert text in said


def test_nft_needs_no_noise_in_its_steps(embodied, change):
    own = FLOW | NFT | {"actor.model.noise_method": "flow_ode"}
    assert validate_cfg(change(embodied, own)).algorithm.nft.beta == 1.0


@pytest.mark.parametrize("name", WRONG_FOR_NFT)
def test_what_does_not_fit_nft_is_named(embodied, change, complaint, name):
    changes, *expected = WRONG_FOR_NFT[name]
    said = complaint(change(change(embodied, copy.deepcopy(FLOW | NFT)), changes))
    for text in expected:
        assert text in said


def test_dsrl_has_ten_critics(embodied, change):
    assert validate_cfg(change(embodied, DSRL)).actor.model.num_q_heads == 10


@pytest.mark.parametrize("name", WRONG_FOR_DSRL)
def test_what_does_not_fit_dsrl_is_named(embodied, change, complaint, name):
    changes, *expected = WRONG_FOR_DSRL[name]
    said = complaint(change(change(embodied, copy.deepcopy(DSRL)), changes))
    for text in expected:
        assert text in said
