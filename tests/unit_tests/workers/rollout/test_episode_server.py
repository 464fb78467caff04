"""A rollout worker's part in an evaluation: equal actions for equal observations, whatever else."""

import pytest
import torch

from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.rollout.episode_server import Clients, act_in_blocks

torch.set_num_threads(1)


@pytest.mark.parametrize("batch", [1, 8, 24])
@pytest.mark.parametrize("model_type", ["mlp_policy", "cnn_policy"])
@pytest.mark.parametrize("sizes", [(39, 4), (11, 3)])
def test_an_action_does_not_depend_on_the_others(model_type, sizes, batch):
    spec = EnvSpec(obs_dim=sizes[0], action_dim=sizes[1], action_low=-1.0, action_high=1.0)
    small = {"image_size": 24, "channels": [8, 16]} if model_type == "cnn_policy" else {}
    torch.manual_seed(0)
    policy = get_model({"model_type": model_type, "orthogonal_init": False, **small}, spec)
    obs = {"states": torch.randn(37, sizes[0])}
    if small:
        obs["main_images"] = torch.randint(0, 256, (37, 24, 24, 3), dtype=torch.uint8)

    def act(rows):
        assert len(rows["states"]) == batch
        return (policy.predict_action_batch(rows, mode="eval")[0],)

    def act_on(numbers):
        """The observation of episode n is row n."""
        actions = torch.full((len(numbers), 1, sizes[1]), 7.0)
        index = torch.tensor(numbers).clamp(min=0)
        rows = {key: value[index] for key, value in obs.items()}
        act_in_blocks(act, batch, rows, numbers, actions)
        return actions

    whole = act_on(list(range(37)))
    plain = policy.predict_action_batch(obs, mode="eval")[0]
    torch.testing.assert_close(whole, plain, rtol=1e-4, atol=1e-5)
    order = torch.randperm(37).tolist()
    for size in (1, 2, 3, 5, 8, 9, 20, 30):
        for begin in range(0, 37, size):
            rows = order[begin : begin + size]
            assert torch.equal(act_on(rows), whole[rows]), size
    # Envs without an episode are not acted for.
    mixed = act_on([-1, 5, -1, 13])
    assert torch.equal(mixed[[1, 3]], whole[[5, 13]]) and (mixed[[0, 2]] == 7).all()
    assert (act_on([-1, -1]) == 7).all()


@pytest.mark.parametrize("batch, blocks", [(8, 3), (20, 1), (64, 1), (3, 7)])
def test_few_blocks_are_needed(batch, blocks):
    calls = []
    obs = {"states": torch.zeros(20, 2)}
    act = lambda rows: (calls.append(1), torch.zeros(batch, 1, 1))[1:]  # noqa: E731
    act_in_blocks(act, batch, obs, list(range(100, 120)), torch.zeros(20, 1, 1))
    assert len(calls) == blocks


def test_clients_that_ended_are_not_waited_for():
    clients = Clients([(2, 3), (3, 1), (5, 2)], [6, 7, 8, 9, 15, 16])
    assert clients.ranks == [2, 3, 5] and clients.env_ids == [6, 7, 8, 9, 15, 16]
    assert clients.drop(torch.zeros(6, dtype=torch.bool)).tolist() == list(range(6))
    over = torch.tensor([False] * 3 + [True] + [False] * 2)
    assert clients.drop(over).tolist() == [0, 1, 2, 4, 5]
    assert clients.ranks == [2, 5] and clients.env_ids == [6, 7, 8, 15, 16]
    assert clients.drop(torch.tensor([True] * 3 + [False] * 2)).tolist() == [3, 4]
    assert clients.drop(torch.ones(2, dtype=torch.bool)).tolist() == []
    assert clients.ranks == []
