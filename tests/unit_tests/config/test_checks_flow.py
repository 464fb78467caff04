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
}


def test_half_of_a_plan_may_be_decided(embodied, change):
    model = validate_cfg(change(embodied, FLOW | {"actor.model.rtc": {"delay": 4}})).actor.model
    assert model.rtc.delay == 4 and model.rtc.max_guidance == 5.0


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(embodied, change, complaint, name):
    changes, *expected = WRONG[name]
    said = complaint(change(change(embodied, copy.deepcopy(FLOW)), changes))
    for text in expected:
        assert text in said
