"""Tokens come with the probabilities that the logits say, and say how likely they were."""

import pytest
import torch

from rlinf.hybrid_engines.generation.noise import sample_key, uniform
from rlinf.hybrid_engines.generation.sampling import cut, draw, sample
from tests.unit_tests.hybrid_engines.generation.tiny import chi_square_limit

DRAWS = 20_000


def noise(count, seed=0):
    return uniform(torch.tensor([sample_key(seed, 0)]).repeat(count), torch.arange(count))


def drawn(logits, temperature=1.0, top_k=None, top_p=None, count=DRAWS):
    """Tokens and log-probabilities of many draws from the same logits `[V]`."""
    temperatures = torch.full((count,), temperature)
    cuts = {}
    if top_k is not None or top_p is not None:
        cuts["top_k"] = torch.full((count,), top_k or 0)
        cuts["top_p"] = torch.full((count,), top_p or 1.0)
    return sample(logits.expand(count, -1), temperatures, noise(count), **cuts)


def chi_square(tokens, probabilities):
    """Statistic and degrees of freedom; what is expected less than five times is one bin."""
    expected = probabilities * tokens.numel()
    observed = torch.bincount(tokens, minlength=expected.numel()).double()
    rare = expected < 5
    if rare.any():
        expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
        observed = torch.cat((observed[~rare], observed[rare].sum()[None]))
    return ((observed - expected) ** 2 / expected.clamp(min=1e-9)).sum(), expected.numel() - 1


@pytest.mark.parametrize("vocabulary", [7, 64, 1000, 1009, 4096])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_the_distribution_is_the_softmax(vocabulary, temperature):
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 2
    count = DRAWS if vocabulary < 1000 else DRAWS // 8
    tokens, logprobs = drawn(logits, temperature, count=count)
    statistic, freedom = chi_square(tokens, (logits.double() / temperature).softmax(-1))
    assert statistic < chi_square_limit(freedom)
    expected = (logits / temperature).log_softmax(-1)[tokens]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)


def slow_cut(probabilities, top_k, top_p):
    """Keeps the k likeliest tokens, then the fewest of these with a share of p; renormalised."""
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    kept = order[: top_k or len(order)]
    total, chosen, so_far = sum(probabilities[i] for i in kept), [], 0.0
    for i in kept:
        if so_far >= top_p * total:
            break
        chosen.append(i)
        so_far += probabilities[i]
    return [probabilities[i] / so_far if i in chosen else 0.0 for i in range(len(order))]


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.6), (8, 0.7), (1, 1.0), (0, 1e-6)])
def test_cuts_change_what_is_drawn_and_not_its_log_probability(top_k, top_p):
    logits = torch.randn(20, generator=torch.Generator().manual_seed(1)) * 1.5
    tokens, logprobs = drawn(logits, 1.3, top_k, top_p)
    whole = (logits.double() / 1.3).softmax(-1)
    exact = torch.tensor(slow_cut(whole.tolist(), top_k, top_p), dtype=torch.float64)
    assert (exact[tokens] > 0).all()
    kept = exact > 0
    if kept.sum() > 1:
        rank = kept.long().cumsum(0) - 1
        statistic, freedom = chi_square(rank[tokens], exact[kept])
        assert statistic < chi_square_limit(freedom)
    torch.testing.assert_close(logprobs.double(), whole.log()[tokens], atol=1e-5, rtol=0)


def test_rows_of_a_batch_have_settings_of_their_own():
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(2))
    temperatures = torch.tensor([1.0, 0.0, 0.7, 1.0])
    top_k, top_p = torch.tensor([0, 0, 3, 0]), torch.tensor([1.0, 1.0, 1.0, 0.4])
    uniforms = noise(4)
    tokens, logprobs = sample(logits, temperatures, uniforms, top_k, top_p)
    for row in range(4):
        one = slice(row, row + 1)
        alone = sample(logits[one], temperatures[one], uniforms[one], top_k[one], top_p[one])
        assert (tokens[row], logprobs[row]) == (alone[0][0], alone[1][0])


def test_a_temperature_of_zero_takes_the_likeliest():
    logits = torch.tensor([[0.0, 3.0, 3.0, -1.0], [5.0, 1.0, 0.0, 5.5]])
    tokens, logprobs = sample(logits, torch.zeros(2), noise(2))
    assert tokens.tolist() == [1, 3]
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


def test_what_has_no_weight_is_never_drawn():
    weights = torch.zeros(5, 300)
    weights[0, 299], weights[1, 0], weights[2, 128] = 1.0, 1e-30, 3e5
    weights[3, [70, 200]] = torch.tensor([1e-20, 1.0])
    weights[4, :] = 1.0
    edges = torch.tensor([0.0, 2.0**-48, 0.5, 1 - 2.0**-48], dtype=torch.float64)
    for edge in edges:
        tokens, total = draw(weights, edge.repeat(5))
        assert (weights[torch.arange(5), tokens] > 0).all()
        torch.testing.assert_close(total, weights.double().sum(-1))


def test_cut_keeps_all_without_limits():
    weights = torch.rand(3, 50)
    kept = cut(weights, torch.tensor([0, -1, 50]), torch.ones(3))
    assert torch.equal(kept, weights)
