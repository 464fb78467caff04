"""Seeds belong to names, and a deterministic process draws the same whenever it starts."""

import os
import random

import numpy as np
import pytest
import torch

from rlinf.utils.determinism import be_deterministic, named_seed


def test_seeds_follow_from_seed_and_names():
    assert named_seed(3, "actor", "shuffle", 0) == named_seed(3, "actor", "shuffle", 0)
    names = [("actor", 0), ("actor", 1), ("env", 0), ("env", 10), ("env1", 0), ("actor",)]
    seeds = {named_seed(seed, *name) for seed in range(50) for name in names}
    assert len(seeds) == 50 * len(names)
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert named_seed(1, "a", "b") != named_seed(1, "ab")


@pytest.fixture
def own_state(monkeypatch):
    """Puts this process back to what it was."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    mode, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.set_deterministic_debug_mode("error" if mode else "default")
    torch.backends.cudnn.benchmark = benchmark
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_a_deterministic_process_draws_the_same_and_uses_deterministic_kernels(own_state):
    def draw(*names):
        be_deterministic(5, *names)
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    one = draw("env", 0)
    assert draw("env", 0) == one
    assert all(a != b for a, b in zip(one, draw("env", 1), strict=True))
    assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
