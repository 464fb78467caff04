"""Categorical distributions against torch.distributions, with different numbers of choices."""

import itertools

import pytest
import torch
from torch import distributions

from rlinf.models.embodiment.action_heads import CategoricalHead
from rlinf.models.embodiment.distributions import Categorical

HEADS = {
    "one": ((5,), 1),
    "one, chunks": ((3,), 4),
    "even": ((3, 3), 2),
    "uneven": ((2, 5, 1), 1),
    "uneven, chunks": ((4, 2, 3), 3),
}


@pytest.fixture(params=HEADS.values(), ids=HEADS)
def case(request):
    """A head, logits for it, and torch's distributions of each number of an action, in order."""
    choices, chunks = request.param
    head = CategoricalHead(choices, chunks)
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(7, head.outputs, generator=generator)
    parts = logits.clone().split(list(choices) * chunks, dim=-1)
    return head, logits, [distributions.Categorical(logits=part) for part in parts]


def actions_of(references, rows=7):
    """Returns samples of torch's distributions."""
    torch.manual_seed(0)
    return torch.stack([reference.sample() for reference in references], dim=-1).view(rows, -1)


def test_log_prob_entropy_and_mode(case):
    head, logits, references = case
    ours, action = head.distribution(logits, None), actions_of(references)
    expected = [ref.log_prob(column) for ref, column in zip(references, action.T, strict=True)]
    torch.testing.assert_close(ours.log_prob(action), torch.stack(expected, -1))
    entropies = [reference.entropy() for reference in references]
    torch.testing.assert_close(ours.entropy(), torch.stack(entropies, -1))
    modes = [reference.probs.argmax(-1) for reference in references]
    assert torch.equal(ours.mode(), torch.stack(modes, -1))
    assert ours.mode().dtype == torch.int64 and not ours.has_rsample


def test_gradients(case):
    head, logits, references = case
    action = actions_of(references)

    def loss(distribution):
        return (distribution.log_prob(action) - 0.3 * distribution.entropy()).square().sum()

    logits.requires_grad_()
    (own,) = torch.autograd.grad(loss(head.distribution(logits, None)), logits)
    counts = [len(reference.probs[0]) for reference in references]
    parts = [distributions.Categorical(logits=part) for part in logits.split(counts, dim=-1)]
    total = sum(
        (part.log_prob(action[:, i]) - 0.3 * part.entropy()).square().sum()
        for i, part in enumerate(parts)
    )
    (theirs,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(own, theirs)


def test_probabilities_of_all_actions_sum_to_one():
    choices = (2, 4, 3)
    head = CategoricalHead(choices, 1)
    logits = torch.randn(1, head.outputs, generator=torch.Generator().manual_seed(1))
    every = torch.tensor(list(itertools.product(*map(range, choices))))
    ours = head.distribution(logits.expand(len(every), -1), None)
    total = ours.log_prob(every).sum(-1).exp().sum()
    assert total.item() == pytest.approx(1.0, abs=1e-6)


def test_samples_are_as_frequent_as_they_are_likely():
    head = CategoricalHead((3, 5), 1)
    logits = torch.tensor([[0.0, 1.0, -2.0, 0.5, -1.0, 0.0, 2.0, -30.0]])
    rows = 200_000
    noise = torch.randn(rows, 2, generator=torch.Generator().manual_seed(2))
    ours = head.distribution(logits.expand(rows, -1), None)
    sample = ours.sample(noise)
    for column, part in enumerate(logits[0].split([3, 5])):
        shares = torch.bincount(sample[:, column], minlength=len(part)) / rows
        torch.testing.assert_close(shares, part.softmax(-1), atol=4e-3, rtol=0)
    assert torch.equal(sample, ours.sample(noise)), "the noise alone decides"
    halves = [
        head.distribution(logits.expand(rows // 2, -1), None).sample(n) for n in noise.chunk(2)
    ]
    assert torch.equal(sample, torch.cat(halves)), "a row does not depend on the others"


def test_noise_far_out_gives_a_choice_that_exists():
    ours = Categorical(torch.tensor([[[0.0, 3.0, -200.0]]]).expand(4, 1, 3))
    noise = torch.tensor([[-40.0], [-7.0], [7.0], [6.5]])
    assert ours.sample(noise).flatten().tolist() == [0, 0, 1, 1]


def test_logits_that_are_not_finite_give_an_index_out_of_range():
    logits = torch.tensor(
        [[[0.0, 1.0]], [[torch.nan, 1.0]], [[torch.inf, 1.0]], [[0.0, torch.nan]]]
    )
    ours = Categorical(logits)
    assert ours.mode().flatten().tolist() == [1, 2, 2, 2]
    sample = ours.sample(torch.zeros(4, 1))
    assert sample.flatten().tolist() == [1, 2, 2, 2]
    assert ours.log_prob(sample).isnan().flatten().tolist() == [False, True, True, True]
    with pytest.raises(NotImplementedError, match="no samples with gradients"):
        ours.rsample(torch.zeros(4, 1))


def test_a_chunk_goes_to_the_env_in_its_own_numbers():
    head = CategoricalHead((2, 3), 2, low=[1, -1])
    action = torch.tensor([[0, 2, 1, 0]])
    assert head.to_env(action).tolist() == [[[1, 1], [2, -1]]]
    assert head.action_range.low == (1, -1) and head.action_range.high == (2, 1)


def test_steps_as_one_are_what_they_are_one_by_one():
    noise = torch.Generator().manual_seed(0)
    steps = [Categorical(torch.randn(5, 2, 3, generator=noise)) for _ in range(4)]
    actions = torch.randint(3, (4, 5, 2), generator=noise)
    one_by_one = [step.log_prob(action) for step, action in zip(steps, actions, strict=True)]
    whole = Categorical.stack(steps)
    assert torch.equal(whole.log_prob(actions), torch.stack(one_by_one))
    assert torch.equal(whole.entropy(), torch.stack([step.entropy() for step in steps]))
