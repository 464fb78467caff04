"""Which steps count."""

import pytest
import torch

from rlinf.algorithms.masks import (
    episode_lengths,
    last_valid,
    until_done_in_chunk,
    until_first_done,
)


def column(*values):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def test_steps_count_until_the_first_done_inclusive():
    dones = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
    assert until_first_done(dones).int().tolist() == [[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("mask", "last"),
    [
        ((1, 1, 0), (0, 1, 0)),
        ((0, 1, 1), (0, 0, 1)),
        ((0, 1, 0), (0, 1, 0)),
        ((1, 0, 1), (0, 0, 1)),
        ((0, 0, 0), (0, 0, 0)),
    ],
)
def test_the_last_valid_entry_is_found_wherever_it_is(mask, last):
    assert torch.equal(last_valid(column(*mask)), column(*last))


def test_the_rest_of_a_chunk_in_which_an_episode_ends_is_not_carried_out():
    dones = torch.zeros(3, 2, 4, dtype=torch.bool)
    dones[1, 0, 1] = dones[2, 0, 3] = True
    mask = until_done_in_chunk(dones)
    assert mask[:, 0].int().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert mask[:, 1].all()


def test_lengths_are_those_of_each_steps_episode():
    dones = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0], [1, 0]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1], [0, 1]]).bool()
    lengths = episode_lengths(mask, dones)
    assert lengths.T.tolist() == [[2, 2, 2, 2, 2], [4, 4, 4, 4, 4]]
    dones[3, 0] = 1
    assert episode_lengths(mask, dones)[:, 0].tolist() == [2, 2, 2, 2, 0]
