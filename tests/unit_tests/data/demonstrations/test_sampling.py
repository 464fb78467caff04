"""The order of samples, and chunks of actions inside of episodes."""

from __future__ import annotations

import torch

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.sampling import (
    ChunkSamples,
    MixtureOrder,
    SampleOrder,
    sample_noise,
    whole_shares,
)
from tests.unit_tests.data.demonstrations.datasets import write_dataset


def test_each_pass_has_every_sample_once_in_an_order_of_its_own():
    rows = SampleOrder(10, seed=1).rows(0, 30).view(3, 10)
    assert all(sorted(row) == list(range(10)) for row in rows.tolist())
    assert len({tuple(row) for row in rows.tolist()}) == 3


def test_the_order_depends_on_the_position_alone():
    whole = SampleOrder(7, seed=2).rows(0, 40)
    later = SampleOrder(7, seed=2)
    assert torch.equal(later.rows(13, 9), whole[13:22])
    assert torch.equal(later.rows(2, 9), whole[2:11])
    assert not torch.equal(SampleOrder(7, seed=3).rows(0, 40), whole)


def test_chunks_end_with_their_episode(tmp_path):
    demos = DemonstrationFolders([write_dataset(tmp_path / "d", (4, 2))]).load()
    samples = ChunkSamples(demos, chunks=3)
    rows = torch.tensor([0, 2, 3, 4])
    obs, actions = samples.take(rows)
    assert torch.equal(obs["states"], demos.obs["states"][rows])
    assert samples.valid(rows).tolist() == [
        [True, True, True],
        [True, True, False],
        [True, False, False],
        [True, True, False],
    ]
    assert torch.equal(actions[0], demos.actions[:3])
    assert torch.equal(actions[3], demos.actions[[4, 5, 5]])


def test_a_mixture_gives_each_set_its_share_and_all_of_its_samples():
    sets = [torch.arange(4), torch.arange(4, 16)]
    order = MixtureOrder(sets, [1.0, 1.0], seed=1)
    passes = order.rows(0, 6 * 16).view(6, 16)
    assert [(rows < 4).sum().item() for rows in passes] == [8] * 6
    # Two passes over the small set in each, and three over the large one in all six.
    assert passes.flatten().bincount().tolist() == [12] * 4 + [4] * 12
    again = MixtureOrder(sets, [1.0, 1.0], seed=1)
    assert torch.equal(again.rows(37, 20), passes.flatten()[37:57])


def test_shares_are_whole_and_add_up():
    assert whole_shares(10, [1, 1, 1]) == [4, 3, 3]
    assert whole_shares(7, [0.5, 3]) == [1, 6]


def test_noise_belongs_to_a_position():
    own = sample_noise(3, 100, 8, 5)
    assert own.shape == (8, 5) and torch.equal(own, sample_noise(3, 100, 8, 5))
    assert not torch.equal(own, sample_noise(3, 108, 8, 5))
    assert not torch.equal(own, sample_noise(4, 100, 8, 5))
