"""Noise is what its definition says, wherever and with whomever it is computed."""

import torch

from rlinf.hybrid_engines.generation.noise import sample_key, sample_keys, uniform

MASK = (1 << 64) - 1


def slow(key, counter):
    """Splitmix64, with Python's numbers."""
    x = (key + counter * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return ((x ^ (x >> 31)) >> 16) / 2**48


def test_it_is_splitmix64():
    keys = [sample_key(seed, index) for seed in (0, 1, 2**63, -5, 2**70) for index in range(5)]
    counters = [0, 1, 2, 77, 10**6]
    for counter in counters:
        found = uniform(torch.tensor(keys), torch.full((len(keys),), counter)).tolist()
        assert found == [slow(key, counter) for key in keys]


def test_keys_of_many_are_the_keys_of_each():
    seeds, indices = [0, 1, 2**63, -5, 2**70 + 3], [0, 3, 1, 0, 9]
    expected = [sample_key(seed, index) for seed, index in zip(seeds, indices, strict=True)]
    assert sample_keys(seeds, indices).tolist() == expected


def test_samples_and_seeds_have_noise_of_their_own():
    keys = {sample_key(seed, index) for seed in range(200) for index in range(50)}
    assert len(keys) == 200 * 50


def test_it_is_uniform_and_independent():
    count = 200_000
    keys = torch.tensor([sample_key(3, 4)]).repeat(count)
    x = uniform(keys, torch.arange(count))
    other = uniform(torch.tensor([sample_key(3, 5)]).repeat(count), torch.arange(count))
    assert x.dtype == torch.float64 and x.min() >= 0 and x.max() < 1
    # Standard errors: 0.29 / sqrt(n) for the mean, 1 / sqrt(n) for correlations.
    assert abs(x.mean() - 0.5) < 4 * 0.29 / count**0.5
    assert abs(x.var() - 1 / 12) < 4 * 0.075 / count**0.5
    for pair in (torch.stack((x[1:], x[:-1])), torch.stack((x, other))):
        assert abs(torch.corrcoef(pair)[0, 1]) < 4 / count**0.5
