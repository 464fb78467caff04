"""Gradients of ranks that each have the whole model are added up, whoever has some."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rlinf.hybrid_engines.fsdp import replicas
from rlinf.scheduler.collective import group_store
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks


def parameters(rank):
    """Five parameters with gradients on both ranks, on one of them, or on none."""
    own = [nn.Parameter(torch.zeros(size)) for size in ((2, 3), (4,), (2,), (3,), (5,))]
    own.append(nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    own[0].grad = torch.arange(6.0).view(2, 3) + 10 * rank
    if rank:
        own[1].grad = torch.ones(4)
    own[3].requires_grad_(False)
    own[4].grad = torch.full((5,), 0.1 + rank)
    own[5].grad = torch.full((2,), 1e-12 * (1 + rank), dtype=torch.float64)
    return own


def on_rank(rank):
    dist.init_process_group("gloo", store=group_store.of_workers(), rank=rank, world_size=2)
    assert os.environ["WORLD_SIZE"] == "2"
    found = {}
    for size in (1 << 20, 24, 1):
        replicas._MESSAGE_BYTES = size
        for dtype in (None, torch.bfloat16):
            own = parameters(rank)
            replicas.add_up_gradients(own, dtype)
            found[size, dtype] = [parameter.grad for parameter in own]
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_two_ranks(on_rank, tmp_path_factory.mktemp("replicas"))


@pytest.mark.parametrize("size", [1 << 20, 24, 1])
def test_gradients_are_sums_over_ranks(ranks, size):
    both = 2 * torch.arange(6.0).view(2, 3) + 10
    expected = [both, torch.ones(4), None, None, torch.full((5,), 1.2)]
    for found in (rank[size, None] for rank in ranks):
        for own, wanted in zip(found[:5], expected, strict=True):
            assert (own is None) == (wanted is None)
            if wanted is not None:
                torch.testing.assert_close(own, wanted)
        # Numbers of 64 bits do not go as 32.
        assert found[5].dtype == torch.float64 and found[5].tolist() == [3e-12, 3e-12]


def test_a_number_format_on_the_way(ranks):
    exact, rounded = (ranks[0][1 << 20, dtype][4] for dtype in (None, torch.bfloat16))
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, rtol=1e-2, atol=0)


def test_all_ranks_have_the_same_bits(ranks):
    for key, gradients in ranks[0].items():
        for one, other in zip(gradients, ranks[1][key], strict=True):
            assert one is other is None or torch.equal(one, other)
