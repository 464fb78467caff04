"""The order of samples, and chunks of actions inside of episodes."""

from __future__ import annotations

import torch

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.sampling import ChunkSamples, SampleOrder
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
