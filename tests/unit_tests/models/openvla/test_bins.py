"""Actions as tokens: edges, centres, scaling and masks."""

import numpy as np
import pytest
import torch

from rlinf.models.embodiment.openvla.bins import ActionBins


def slow_tokens(actions, q01, q99, mask, count, vocabulary):
    """OpenVLA's own arithmetic, one number at a time: token ids, and the actions they stand for."""
    edges = np.linspace(-1, 1, count)
    centers = (edges[:-1] + edges[1:]) / 2
    ids, decoded = [], []
    for row in actions:
        for a, low, high, scaled in zip(row, q01, q99, mask, strict=True):
            x = 2 * (a - low) / (high - low) - 1 if scaled else a
            x = min(max(x, -1), 1)
            token = vocabulary - int(np.digitize(x, edges))
            center = centers[min(max(vocabulary - token - 1, 0), count - 2)]
            ids.append(token)
            decoded.append((center + 1) / 2 * (high - low) + low if scaled else center)
    return np.array(ids), np.array(decoded)


@pytest.mark.parametrize("count", [256, 7])
def test_tokens_are_those_of_openvla(count):
    q01, q99, mask = [-0.5, 0.0, -1.0], [0.5, 2.0, 1.0], [True, True, False]
    bins = ActionBins(count, q01, q99, mask)
    actions = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    actions[0], actions[1] = q01, q99
    ids, decoded = slow_tokens(actions, q01, q99, mask, count, 32000)
    index = bins.encode(torch.from_numpy(actions)[:, None])
    assert np.array_equal(32000 - 1 - index.flatten().numpy(), ids)
    assert index.min() == 0 and index.max() == count - 1
    np.testing.assert_allclose(bins.decode(index).flatten().numpy(), decoded, atol=1e-6)


def test_an_action_comes_back_to_within_half_a_bin():
    bins = ActionBins(256, [-1.0, 0.0], [1.0, 10.0])
    actions = torch.rand(20, 4, 2) * torch.tensor([2.0, 10.0]) - torch.tensor([1.0, 0.0])
    back = bins.decode(bins.encode(actions))
    assert ((back - actions).abs() <= torch.tensor([2.0, 10.0]) / 255 / 2 + 1e-6).all()


def test_what_cannot_vary_is_its_bound():
    bins = ActionBins(256, [3.0], [3.0])
    assert bins.normalize(torch.tensor([[[3.0]], [[9.0]]])).tolist() == [[[0.0]], [[0.0]]]
    assert bins.decode(torch.tensor([[127]])).tolist() == [[[3.0]]]


def test_an_index_out_of_range_is_no_action():
    # A row of logits with a NaN has no choice, and its index is N.
    assert ActionBins(16, [-1.0], [1.0]).decode(torch.tensor([[16]])).isnan().all()


def test_bounds_are_saved_with_the_weights_and_are_not_rounded():
    bins = ActionBins(256, [-0.123456789], [0.3]).to(torch.bfloat16)
    assert bins.low.dtype == torch.float32 and bins.state_dict().keys() == {"low", "high", "mask"}
