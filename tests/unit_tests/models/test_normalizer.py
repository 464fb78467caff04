"""Observation statistics are part of a policy, and change only between updates."""

import threading

import pytest
import torch

from rlinf.models.embodiment.normalizer import ObsNormalizer


def rows(count=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator) * torch.arange(1, 7) + 10


def test_it_normalises_and_clips():
    normalizer = ObsNormalizer(6, clip=2.0)
    values = rows()
    torch.testing.assert_close(normalizer(values), values.clamp(-2, 2))
    normalizer.update(values)
    exact = (values - values.mean(0)) / values.std(0, unbiased=False)
    torch.testing.assert_close(normalizer(values), exact.clamp(-2, 2), atol=1e-5, rtol=0)
    assert normalizer(values).abs().max() == 2.0


def test_a_constant_dimension_is_zero():
    normalizer = ObsNormalizer(2)
    normalizer.update(torch.tensor([[3.0, 1.0], [3.0, 2.0]]))
    assert normalizer(torch.tensor([[3.0, 1.5]])).tolist() == [[0.0, 0.0]]


def test_statistics_are_frozen_until_committed(make_policy):
    policy = make_policy()
    obs = {"states": rows(8)}
    result = policy.predict_action_batch(obs)[1]
    policy.update_normalizer(result["forward_inputs"], commit=False)
    out = policy(forward_inputs=result["forward_inputs"])
    torch.testing.assert_close(out["logprobs"], result["prev_logprobs"], atol=1e-6, rtol=0)
    # A checkpoint between the two goes on as if nothing had happened.
    other = make_policy(seed=1)
    other.load_state_dict(policy.state_dict())
    again = other(forward_inputs=result["forward_inputs"])
    assert torch.equal(again["logprobs"], out["logprobs"])
    for one in (policy, other):
        one.commit_normalizer()
    changed = policy(forward_inputs=result["forward_inputs"])["logprobs"]
    assert not torch.allclose(changed, out["logprobs"])
    assert torch.equal(other(forward_inputs=result["forward_inputs"])["logprobs"], changed)


def test_acting_and_training_never_change_statistics(make_policy, make_obs):
    policy = make_policy().train()
    before = {name: buffer.clone() for name, buffer in policy.named_buffers()}
    _, result = policy.predict_action_batch(make_obs())
    policy(forward_inputs=result["forward_inputs"])["logprobs"].sum().backward()
    assert all(torch.equal(before[name], buffer) for name, buffer in policy.named_buffers())


@pytest.mark.parametrize("model_type", ["mlp_policy", "cnn_policy"])
def test_ranks_agree_and_masks_count(make_policy, model_type):
    values, mask = rows(40).view(4, 10, 6), torch.ones(4, 10, dtype=torch.bool)
    mask[1:, :3] = False
    values[2, 0] = torch.nan
    whole = make_policy(model_type)
    whole.update_normalizer({"states": values}, mask)
    policies = [make_policy(model_type), make_policy(model_type)]
    barrier, parts = threading.Barrier(2, timeout=20), {}

    def all_reduce(rank):
        def reduce(tensor):
            parts[rank] = tensor.clone()
            barrier.wait()
            tensor.copy_(parts[0] + parts[1])
            barrier.wait()

        return reduce

    def work(rank):
        own = slice(0, 3) if rank == 0 else slice(3, 10)
        states = {"states": values[:, own]}
        policies[rank].update_normalizer(states, mask[:, own], all_reduce(rank))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, expected in whole.normalizer.state_dict().items():
        ours = [policy.normalizer.state_dict()[name] for policy in policies]
        assert torch.equal(*ours)
        torch.testing.assert_close(ours[0], expected, rtol=1e-12, atol=1e-12)
    assert whole.normalizer.count == 31


def test_without_normaliser_the_hooks_do_nothing(make_policy, make_obs):
    policy = make_policy(normalize_obs=False)
    policy.update_normalizer(make_obs())
    policy.commit_normalizer()
    assert policy.normalizer is None


def test_only_the_first_batch_counts_if_it_is_to_be_kept():
    first, later = torch.randn(50, 3) * 2 + 1, torch.randn(50, 3) * 9 - 4
    kept, plain = ObsNormalizer(3, keeps_first=True), ObsNormalizer(3)
    for normalizer in (kept, plain):
        normalizer.update(first)
    assert torch.equal(kept(later), plain(later))
    for normalizer in (kept, plain):
        normalizer.update(later)
    assert not torch.equal(kept(later), plain(later))
    torch.testing.assert_close(kept.mean.float(), first.mean(0))
