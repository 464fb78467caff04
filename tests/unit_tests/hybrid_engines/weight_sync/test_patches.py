"""Differences of weights are exact, small where little has changed, and not used where not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rlinf.hybrid_engines.weight_sync.patches import difference, patched
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch, WeightReceiver
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from tests.unit_tests.hybrid_engines.weight_sync.bus import Bus
from tests.unit_tests.hybrid_engines.weight_sync.test_shards import ACTOR, ROLLOUT, cfg

FORMATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8]


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8)
    )


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(FORMATS),
    shape=st.lists(st.integers(0, 9), max_size=3),
    part=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_a_patch_gives_the_new_tensor_bit_for_bit(dtype, shape, part, seed):
    g = torch.Generator().manual_seed(seed)
    old, new = (torch.randint(0, 250, shape, generator=g).to(dtype) for _ in range(2))
    new = torch.where(torch.rand(shape, generator=g) < part, new, old)
    if dtype.is_floating_point and new.numel():
        new.view(-1)[0] = torch.nan
    patch = difference(old, new)
    if patch is None:
        return
    assert patch.nbytes < new.nbytes
    assert same_bits(patched(old, patch), new)


def test_an_optimiser_step_is_a_fraction_of_the_weights():
    torch.manual_seed(0)
    weights = torch.randn(256, 512) * 0.05
    # What a step of Adam with a learning rate of 1e-6 does.
    later = weights + 1e-6 * torch.randn_like(weights).sign()
    patch = difference(weights.bfloat16(), later.bfloat16())
    assert patch.nbytes < 0.05 * 2 * weights.numel()
    assert same_bits(patched(weights.bfloat16(), patch), later.bfloat16())
    noise = [torch.randint(-(1 << 31), (1 << 31) - 1, (64, 64), dtype=torch.int32) for _ in "12"]
    assert difference(*noise) is None
    with pytest.raises(ValueError, match="does not fit"):
        patched(weights, patch)


class Run:
    """An actor and rollouts that go through one version after the other.

    Args:
        far: whether they are on two nodes.
        dtype: number format of the rollouts' weights.
    """

    def __init__(self, far=True, dtype=torch.bfloat16, receivers=2):
        torch.manual_seed(0)
        self.actor = nn.Linear(64, 64)
        self.models = [nn.Linear(64, 64).to(dtype) for _ in range(receivers)]
        self._bus = Bus({ACTOR: 1, ROLLOUT: receivers}, {ROLLOUT: int(far)})
        self._config = cfg(limit=5000, kind="patch")
        self._ends = {}
        self._version = 0

    def sync(self):
        """Send the weights; returns the bytes that a receiver got."""
        self._version += 1
        self._bus.bytes.clear()

        def work(worker):
            key = worker.group_name, worker.rank
            if worker.group_name == ACTOR:
                end = self._ends.setdefault(key, WeightSender(worker, self._config))
                shards = self.actor.state_dict().items
                return end.send(lambda: iter(shards()), self._version, torch.bfloat16)
            end = self._ends.setdefault(key, WeightReceiver(worker, self._config))
            return end.receive(self.models[worker.rank])

        found = self._bus.run(work)
        assert found[ROLLOUT, 0] == self._version
        for model in self.models:
            for name, tensor in self.actor.state_dict().items():
                assert torch.equal(model.state_dict()[name].bfloat16(), tensor.bfloat16())
        size = self._bus.bytes[(ACTOR, 0), (ROLLOUT, 0)]
        assert size == found[ACTOR, 0]
        return size

    def step(self, size=1e-6):
        with torch.no_grad():
            for parameter in self.actor.parameters():
                parameter.add_(size * torch.randn_like(parameter).sign())

    def forget(self, rank):
        self._ends[ROLLOUT, rank].forget()


WHOLE = 2 * (64 * 64 + 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_hosts_get_what_has_changed(dtype):
    run = Run(dtype=dtype)
    assert run.sync() == WHOLE, "there is nothing to compare with"
    for _ in range(3):
        run.step()
        assert run.sync() < 0.2 * WHOLE
    run.step(size=1e3)
    assert 0.5 * WHOLE < run.sync() <= WHOLE
    run.step()
    assert run.sync() < 0.2 * WHOLE


def test_the_same_host_gets_the_weights():
    run = Run(far=False)
    for _ in range(2):
        assert run.sync() == WHOLE
        run.step()


def test_who_has_lost_the_last_version_gets_all_of_the_next():
    run = Run()
    run.sync()
    with torch.no_grad():
        run.models[1].weight.zero_()
    run.forget(1)
    assert run.sync() == WHOLE
    assert run.sync() < 0.02 * WHOLE


def test_formats_that_lose_bits_cannot_be_patched():
    run = Run(dtype=torch.float16)
    with torch.no_grad():
        for parameter in run.actor.parameters():
            parameter.copy_(parameter.half().bfloat16().half())
    assert run.sync() == run.sync() == WHOLE


def test_weights_that_somebody_changed_unsaid_are_found():
    run = Run()
    run.sync()
    with torch.no_grad():
        run.models[0].weight[3, 4] += 1
    with pytest.raises(WeightMismatch, match="'weight' arrived changed"):
        run.sync()
