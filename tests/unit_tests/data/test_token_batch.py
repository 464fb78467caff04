"""Groups of samples as flat tensors, and parts of them."""

import dataclasses

import pytest
import torch

from rlinf.data.reasoning import Prompt, Sample, SampleGroup
from rlinf.data.token_batch import TokenBatch, pad_ragged, ragged_index, valid_entries


def group(index, *responses):
    prompt = Prompt(index, [7, index], "", None, "test", {})
    samples = [
        Sample(
            prompt_index=index,
            sample_index=i,
            prompt_ids=list(prompt.token_ids),
            response_ids=list(response),
            logprobs=[-0.1 * token for token in response],
            versions=[index] * len(response),
            finish_reason="length" if i else "stop",
            reward=float(i),
        )
        for i, response in enumerate(responses)
    ]
    return SampleGroup(prompt, samples)


GROUPS = [group(3, [1, 2, 3], [4]), group(1, [], [5, 6])]


def test_sequences_lie_end_to_end():
    batch = TokenBatch.of(GROUPS)
    assert batch.tokens.tolist() == [7, 3, 1, 2, 3, 7, 3, 4, 7, 1, 7, 1, 5, 6]
    assert batch.prompts.tolist() == [2, 2, 2, 2] and batch.responses.tolist() == [3, 1, 0, 2]
    assert batch.lengths.tolist() == [5, 3, 2, 4]
    assert batch.versions.tolist() == [3, 3, 3, 3, 1, 1]
    torch.testing.assert_close(batch.logprobs, -0.1 * torch.tensor([1.0, 2, 3, 4, 5, 6]))
    assert batch.rewards.tolist() == [0, 1, 0, 1] and batch.indices.tolist() == [3, 3, 1, 1]
    assert batch.truncated.tolist() == [False, True, False, True]
    assert batch.sequence_ids().tolist() == [0, 0, 0, 1, 3, 3]


def assert_equal(one, other):
    for name, tensor in vars(other).items():
        own = getattr(one, name)
        assert own is tensor is None or torch.equal(own, tensor), name


def test_parts_are_whole_sequences_in_any_order():
    batch = TokenBatch.of(GROUPS)
    part = batch.select(torch.tensor([3, 2, 0]))
    one, two = GROUPS[0].samples, GROUPS[1].samples
    expected = TokenBatch.of(
        [SampleGroup(GROUPS[1].prompt, [two[1], two[0]]), SampleGroup(GROUPS[0].prompt, [one[0]])]
    )
    assert_equal(part, expected)
    joined = TokenBatch.join(
        [batch.select(torch.tensor([0, 1])), batch.select(torch.tensor([2, 3]))]
    )
    assert_equal(joined, batch)
    given = dataclasses.replace(batch, values=torch.arange(float(len(batch.logprobs))))
    back = given.select(torch.tensor([1, 0])).select(torch.tensor([1, 0]))
    assert torch.equal(back.values, given.select(torch.tensor([0, 1])).values)
    assert batch.select(torch.arange(0)).num_sequences == 0


def test_rows_of_flat_entries():
    lengths = torch.tensor([2, 0, 3])
    assert ragged_index(lengths, torch.tensor([2, 0])).tolist() == [2, 3, 4, 0, 1]
    flat = torch.arange(1.0, 6.0)
    assert pad_ragged(flat, lengths).tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert torch.equal(pad_ragged(flat, lengths)[valid_entries(lengths)], flat)
    assert pad_ragged(torch.zeros(0), torch.zeros(2, dtype=torch.int64)).shape == (2, 1)


def test_an_engine_may_give_no_log_probabilities():
    quiet = group(0, [1, 2])
    quiet.samples[0] = dataclasses.replace(quiet.samples[0], logprobs=[])
    assert TokenBatch.of([quiet]).logprobs.isnan().all()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"reward": None}, "sample 1 of prompt 3 has no reward"),
        ({"finish_reason": "abort"}, "sample 1 of prompt 3 was aborted"),
        ({"prompt_ids": []}, "has an empty prompt"),
        ({"logprobs": [0.0, 0.0]}, "has 1 response tokens, but 2 logprobs"),
        ({"versions": []}, "has 1 response tokens, but 0 versions"),
        ({"loss_mask": [True, False]}, "has 1 response tokens, but 2 entries in loss_mask"),
    ],
)
def test_samples_that_cannot_be_trained_on_are_named(change, complaint):
    bad = group(3, [1, 2, 3], [4])
    bad.samples[1] = dataclasses.replace(bad.samples[1], **change)
    with pytest.raises(ValueError, match=complaint):
        TokenBatch.of([bad])


def test_groups_have_any_number_of_samples_but_none():
    uneven = TokenBatch.of([group(3, [1, 2, 3], [4]), group(1, [5]), group(2, [6], [7], [8])])
    assert uneven.indices.tolist() == [3, 3, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="the group of prompt 4 has no samples"):
        TokenBatch.of([group(4)])


def test_tokens_of_others_are_masked():
    mixed = group(3, [1, 2, 3], [4])
    mixed.samples[0].loss_mask = [True, False, True]
    mixed.samples[0].logprobs[1] = float("nan")
    batch = TokenBatch.of([mixed])
    assert batch.loss_mask.tolist() == [True, False, True, True]
    assert batch.logprobs[1] == 0.0 and batch.count(batch.loss_mask).tolist() == [2, 1]
    part = batch.select(torch.tensor([1, 0]))
    assert part.loss_mask.tolist() == [True, True, False, True]


def test_examples_are_prompts_and_the_responses_to_learn():
    batch = TokenBatch.of_examples([([1, 2], [3]), ([4], [5, 6])])
    assert batch.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.prompts.tolist() == [2, 1] and batch.responses.tolist() == [1, 2]
    with pytest.raises(ValueError, match="example 1 has an empty prompt"):
        TokenBatch.of_examples([([1], [2]), ([], [3])])
