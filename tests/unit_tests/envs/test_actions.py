"""Actions of a policy become actions of an env by what both declare."""

import numpy as np
import pytest
import torch

from rlinf.envs import ActionConvention, ActionSpec, prepare_actions
from rlinf.envs.action_utils import Gripper, policy_spec, restore_actions

ARM = ActionSpec.box([-1, -1, -1, -1], [1, 1, 1, 1], gripper=Gripper(3, opened=-1, closed=1))


def test_env_units_pass_and_are_clipped():
    actions = torch.tensor([[[0.1, -0.2, 3.0, -4.0]]], dtype=torch.bfloat16)
    result = prepare_actions(actions, ARM)
    assert result.dtype == np.float32
    assert result[0, 0, 2:].tolist() == [1, -1]
    free = ActionSpec.box([-1] * 4, [1] * 4, clip=False)
    assert prepare_actions(actions, free)[0, 0, 2] == 3


def test_unit_actions_are_stretched_to_the_bounds():
    unit = ActionConvention(units="unit")
    spec = ActionSpec.box([0, -2, -np.inf], [10, 2, np.inf])
    result = prepare_actions(np.array([[[-1, 0.5, 0.3], [1, 2, -7]]]), spec, unit)
    assert result[0].tolist() == [[0, 1, np.float32(0.3)], [10, 2, -7]]
    same = np.random.default_rng(0).uniform(-1, 1, (5, 2, 4)).astype(np.float32)
    assert np.array_equal(prepare_actions(same, ARM, unit), same)


def test_a_choice_is_rounded_or_cut_into_equal_parts():
    spec = ActionSpec.choice(4)
    assert prepare_actions(np.array([[[2.4]], [[9.0]], [[-1]]]), spec).ravel().tolist() == [2, 3, 0]
    unit = ActionConvention(units="unit")
    values = np.array([-1, -0.51, -0.49, 0.1, 0.9, 1.0]).reshape(6, 1, 1)
    assert prepare_actions(values, spec, unit).ravel().tolist() == [0, 0, 1, 2, 3, 3]
    several = ActionSpec.choice([2, 3], start=[0, 5])
    result = prepare_actions(np.array([[[-0.9, 0.9]]]), several, unit)
    assert result.dtype == np.int64 and result.ravel().tolist() == [0, 7]


def test_flat_actions_are_cut_into_chunks():
    flat = np.arange(16).reshape(2, 8) / 100
    assert prepare_actions(flat, ARM, num_action_chunks=2).shape == (2, 2, 4)
    assert prepare_actions(flat[:, :4], ARM).shape == (2, 1, 4)
    with pytest.raises(ValueError, match="8 entries per env cannot be cut into 3 actions"):
        prepare_actions(flat, ARM, num_action_chunks=3)


def test_layout_and_gripper_of_an_arm_with_rotation():
    policy = ActionConvention(
        layout=(0, 1, 2, 6), gripper=Gripper(-1, opened=1.0, closed=0.0, binary=True)
    )
    raw = np.array([[[0.1, 0.2, 0.3, 9, 9, 9, 0.9], [0.1, 0.2, 0.3, 9, 9, 9, 0.2]]])
    result = prepare_actions(raw, ARM, policy)
    assert result.shape == (1, 2, 4)
    assert result[0, :, 3].tolist() == [-1, 1]
    smooth = ActionConvention(layout=(0, 1, 2, 6), gripper=Gripper(3, opened=1, closed=0))
    assert prepare_actions(raw, ARM, smooth)[0, :, 3].tolist() == pytest.approx([-0.8, 0.6])


def test_sizes_that_do_not_fit_say_what_to_do():
    with pytest.raises(ValueError, match="gives actions of 7 entries, the env takes 4: set actor"):
        prepare_actions(np.zeros((2, 1, 7)), ARM)
    with pytest.raises(ValueError, match="allowed: env, unit"):
        ActionConvention(units="degrees")


def test_samples_lie_in_the_bounds():
    rng = np.random.default_rng(0)
    spec = ActionSpec.box([0, -np.inf], [5, np.inf])
    sample = spec.sample(rng, 100, 3)
    assert sample.shape == (100, 3, 2)
    assert (sample[..., 0] >= 0).all() and sample[..., 0].max() > 4
    assert set(ActionSpec.choice(3).sample(rng, 50).ravel()) == {0, 1, 2}
    several = ActionSpec.choice([2, 3], start=[0, 5]).sample(rng, 50, 4)
    assert several.shape == (50, 4, 2) and several.dtype == np.int64
    assert [set(several[..., i].ravel()) for i in (0, 1)] == [{0, 1}, {5, 6, 7}]


@pytest.mark.parametrize("units", ["env", "unit"])
def test_actions_of_an_expert_become_those_of_the_policy_and_come_back(units):
    gripper = {"index": 3, "opened": 1.0, "closed": 0.0}
    cfg = {"units": units, "layout": [0, 1, 2, 6], "gripper": gripper, "dim": 7}
    convention = ActionConvention.from_cfg(cfg)
    arm = ActionSpec.box([-2, -1, 0, -1], [2, 1, 4, 1], gripper=Gripper(3, opened=-1, closed=1))
    actions = arm.sample(np.random.default_rng(0), 5, 3)
    own = restore_actions(actions, arm, convention)
    assert own.shape == (5, 3, 7) and (own[..., 3:6] == 0).all()
    np.testing.assert_allclose(own[..., 6], (1 - actions[..., 3]) / 2, atol=1e-6)
    np.testing.assert_allclose(prepare_actions(own, arm, convention), actions, atol=1e-6)
    spec = policy_spec(arm, convention)
    assert (own >= spec.low - 1e-6).all() and (own <= spec.high + 1e-6).all()
    wide = [2, 1, 4] if units == "env" else [1, 1, 1]
    assert spec.high.tolist() == [*wide, 1, 1, 1, 1] and spec.low[6] == 0
    assert ActionConvention.from_cfg(None) is None and policy_spec(arm, None) is arm


def test_choices_there_and_back():
    spec, unit = ActionSpec.choice([4], start=2), ActionConvention(units="unit")
    choices = np.arange(2, 6).reshape(4, 1, 1)
    assert np.array_equal(
        prepare_actions(restore_actions(choices, spec, unit), spec, unit), choices
    )
