"""Tensors of a rollout are put one after the other, and copied only where they are not so yet."""

import pytest
import torch

from rlinf.workers.rollout.trajectory_recorder import stack_steps

BLOCK = torch.arange(240.0).reshape(10, 4, 6)


@pytest.mark.parametrize("steps", [BLOCK.unbind(), BLOCK[3:].unbind(), BLOCK[::3].unbind()])
def test_rows_of_one_tensor_are_not_copied(steps):
    whole = stack_steps(steps)
    assert torch.equal(whole, torch.stack(steps))
    assert whole.data_ptr() == steps[0].data_ptr() and whole[-1].data_ptr() == steps[-1].data_ptr()


@pytest.mark.parametrize(
    "steps",
    [
        [BLOCK[0].clone(), BLOCK[1].clone()],
        [BLOCK[0]],
        [BLOCK[0], BLOCK[0]],
        [BLOCK[2], BLOCK[1], BLOCK[0]],
        [BLOCK[0], BLOCK[1], BLOCK[3]],
        [BLOCK[0], BLOCK[1], BLOCK[2].clone()],
        [BLOCK[0, :3], BLOCK[0, 1:]],
        [BLOCK[0].T, BLOCK[1].T],
        [torch.zeros(4, 0), torch.zeros(4, 0)],
    ],
    ids=[
        "apart",
        "one",
        "the same",
        "backwards",
        "a gap",
        "one apart",
        "overlap",
        "turned",
        "empty",
    ],
)
def test_others_are_copied(steps):
    whole = stack_steps(steps)
    assert torch.equal(whole, torch.stack(steps))
    if whole.numel():
        assert whole.data_ptr() != steps[0].data_ptr()
