"""The spec of an env brings what it is given into one form, and refuses what does not fit."""

import numpy as np
import pytest

from rlinf.utils.env_spec import EnvSpec


def test_bounds_may_be_numbers_or_arrays():
    spec = EnvSpec(39, 4, -1, np.ones(4, dtype=np.float32), np.array([84, 84, 3]))
    assert spec.action_low == (-1.0,) * 4 and spec.action_high == (1.0,) * 4
    assert spec.image_shape == (84, 84, 3)
    assert EnvSpec(action_low=[-1, 0], action_high=[1, 1]).action_dim == 2
    assert spec == EnvSpec(39, 4, [-1] * 4, [1] * 4, (84, 84, 3)) and hash(spec)


def test_choices_have_bounds():
    spec = EnvSpec(4, action_choices=np.array([2, 3]), action_low=[0, -1])
    assert spec.action_choices == (2, 3) and spec.action_dim == 2
    assert spec.action_low == (0, -1) and spec.action_high == (1, 1)
    assert EnvSpec(4, 1, [0], [0], action_choices=[1]).action_high == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action_low": -1.0}, "both of action_low and action_high"),
        ({"action_low": -1.0, "action_high": 1.0}, "needs action_dim"),
        ({"action_dim": 3, "action_low": [0, 0], "action_high": 1.0}, "2 numbers, but action_dim"),
        ({"action_low": [0, 1], "action_high": [1, 1]}, r"not so in \{1: \(1.0, 1.0\)\}"),
        ({"action_low": [float("nan")], "action_high": [1]}, "holds NaN"),
        ({"image_shape": (84, 84)}, "height, width, channels"),
        ({"action_choices": [2, 0]}, "counts from 1"),
        ({"action_choices": [2], "action_dim": 2}, "1 numbers, but action_dim is 2"),
        ({"action_choices": [2], "action_low": 0, "action_high": 5}, r"last choices are \(1.0,\)"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        EnvSpec(**arguments)
