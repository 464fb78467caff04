"""The loss, its gradient and its metrics do not depend on micro-batches, ranks or padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.metrics import merge_metrics, reduce_metrics
from rlinf.algorithms.registry import policy_loss

D = torch.float64
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LOSSES = [
    "actor",
    "actor_critic",
    "decoupled_actor_critic",
    "actor/gspo",
    "decoupled_actor/gspo",
    "actor/cispo",
    "actor_critic/cispo",
]
"""Loss types, and surrogates other than that of PPO."""


class Policy(torch.nn.Module):
    """A small network whose outputs feed every term of a loss."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=D))

    def forward(self, x):
        return {
            "logprobs": x["old_logprobs"] + x["feature"] * self.weight[0] + self.weight[3],
            "entropy": (x["feature"] * self.weight[1]).exp(),
            "values": x["old_values"] + (x["value_feature"] * self.weight[2]).tanh(),
        }


def batch_of(seed, shape, mask_shape, value_shape):
    g = torch.Generator().manual_seed(seed)

    def draw(size):
        return torch.randn(*size, generator=g, dtype=D)

    return {
        "feature": draw(shape),
        "value_feature": draw(value_shape),
        "old_logprobs": draw(shape) - 2,
        "ref_logprobs": draw(shape) - 2,
        "advantages": draw(mask_shape),
        "returns": draw(value_shape),
        "old_values": draw(value_shape),
        "versions": torch.randint(0, 9, (shape[0],), generator=g),
        "loss_mask": torch.rand(*mask_shape, generator=g) < 0.6,
        "loss_mask_sum": torch.randint(3, 20, mask_shape, generator=g),
    }


def learn(parts, loss_type, mode, norm):
    """Accumulates the gradient over micro-batches."""
    policy = Policy()
    losses, metrics = [], []
    loss_type, _, surrogate = loss_type.partition("/")
    for part in parts:
        arguments = {k: v for k, v in part.items() if not k.endswith("feature")}
        loss, metric = policy_loss(
            loss_type=loss_type,
            loss_agg_func=mode,
            loss_length=11,
            norm=norm,
            entropy_bonus=0.05,
            kl_beta=0.1,
            policy_loss=surrogate or "ppo",
            # Those of GSPO would clip all.
            clip_ratio_low=0.3,
            clip_ratio_high=0.4,
            clip_ratio_c=None if surrogate == "cispo" else 3.0,
            behave_weight_threshold=1.5,
            current_version=10,
            **arguments,
            **policy(part),
        )
        loss.backward()
        losses.append(loss.item())
        metrics.append(metric)
    return sum(losses), policy.weight.grad, merge_metrics(metrics)


def cut(batch, sizes):
    shards = [tensor.split(sizes) for tensor in batch.values()]
    return [dict(zip(batch, part, strict=True)) for part in zip(*shards, strict=True)]


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * other.abs().max().item())


SHAPES = {
    "tokens": ((12, 9), (12, 9), (12, 9)),
    "token_level": ((12, 3, 4), (12, 3), (12, 3)),
    "chunk_reward": ((12, 3, 4), (12, 1), (12, 1)),
    "chunk_level": ((12,), (12, 1), (12, 1)),
    "coarse_ratio": ((12,), (12, 3), (12, 3)),
}


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(0, 5), max_size=4))
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_any_split_into_micro_batches_gives_the_same_gradient(shapes, mode, seed, sizes):
    batch = batch_of(seed, *SHAPES[shapes])
    if shapes == "tokens":
        batch["loss_mask_sum"] = batch["loss_mask"].sum(1, keepdim=True).expand(12, 9)
    loss_type = LOSSES[seed % len(LOSSES)]
    norm = LossNorm.count(batch["loss_mask"], loss_mask_sum=batch["loss_mask_sum"])
    whole = learn([batch], loss_type, mode, None)
    total = 0
    kept = [total := total + size for size in sizes if total + size <= 12]
    bounds = [0, *kept, 12]
    parts = cut(batch, [b - a for a, b in zip(bounds, bounds[1:], strict=False)])
    loss, gradient, metrics = learn(parts, loss_type, mode, norm)
    assert loss == pytest.approx(whole[0], rel=1e-5, abs=1e-6)
    close(gradient, whole[1])
    shown, expected = reduce_metrics(metrics), reduce_metrics(whole[2])
    assert shown == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_any_split_over_ranks_gives_the_same_gradient(on_ranks, loss_type, mode):
    batch = batch_of(1, *SHAPES["tokens"])
    del batch["loss_mask_sum"]
    ranks = cut(batch, [2, 7, 3])

    def count(shard, all_reduce):
        return LossNorm.count(shard["loss_mask"], all_reduce=all_reduce)

    # In the first pass nothing is reduced, and the counts are those of one rank.
    norms = on_ranks(count, ranks)
    assert norms == [LossNorm.count(batch["loss_mask"])] * 3
    results = [
        learn(cut(rank, [1] * len(rank["returns"])), loss_type, mode, norms[0]) for rank in ranks
    ]
    whole = learn([batch], loss_type, mode, None)
    assert sum(result[0] for result in results) == pytest.approx(whole[0], rel=1e-5)
    close(sum(result[1] for result in results), whole[1])
    shown = reduce_over([result[2] for result in results])
    assert shown == pytest.approx(reduce_metrics(whole[2]), rel=1e-5)


def reduce_over(metrics):
    """Reduces the metrics of several ranks as collectives would."""
    sent = {"sum": [], "max": []}
    for metric in metrics:
        reduce_metrics(
            metric,
            lambda x: sent["sum"].append(x.clone()),
            lambda x: sent["max"].append(x.clone()),
        )
    total, greatest = sum(sent["sum"]), torch.stack(sent["max"]).amax(0)
    return reduce_metrics(metrics[-1], lambda x: total, lambda x: greatest)


@pytest.mark.parametrize("mode", MODES)
def test_padding_rows_and_columns_change_nothing(mode):
    batch = batch_of(2, *SHAPES["tokens"])
    del batch["loss_mask_sum"]
    padded = {}
    for name, tensor in batch.items():
        width = (0, 4, 0, 3) if tensor.ndim == 2 else (0, 3)
        padded[name] = torch.nn.functional.pad(tensor, width)
    for loss_type in LOSSES:
        one = learn([batch], loss_type, mode, None)
        other = learn([padded], loss_type, mode, None)
        assert one[0] == pytest.approx(other[0], rel=1e-5)
        close(one[1], other[1])


def test_chunks_of_one_action_are_plain_steps():
    batch = batch_of(3, (12, 1, 1), (12, 1), (12, 1))
    flat = {name: tensor.reshape(12) for name, tensor in batch.items()}
    for loss_type in (name for name in LOSSES if "gspo" not in name):
        one = learn([batch], loss_type, "token-mean", None)
        other = learn([flat], loss_type, "token-mean", None)
        assert one[0] == pytest.approx(other[0], rel=1e-6)
        close(one[1], other[1])


@pytest.mark.parametrize("shapes", sorted(set(SHAPES) - {"coarse_ratio"}))
def test_masks_broadcast_as_if_they_had_been_repeated(shapes):
    batch = batch_of(4, *SHAPES[shapes])
    finest = torch.broadcast_shapes(
        *(t.reshape(*t.shape, *(1,) * (3 - t.ndim)).shape for t in batch.values())
    )

    def repeat(tensor):
        return tensor.reshape(*tensor.shape, *(1,) * (3 - tensor.ndim)).expand(finest)

    repeated = {name: repeat(tensor) for name, tensor in batch.items() if name != "loss_mask_sum"}
    del batch["loss_mask_sum"]
    one = learn([batch], "actor_critic", "token-mean", None)
    other = learn([repeated], "actor_critic", "token-mean", None)
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    close(one[1], other[1])


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_without_a_mask_everything_counts(shapes, mode):
    batch = batch_of(5, *SHAPES[shapes])
    del batch["loss_mask_sum"]
    batch["loss_mask"] = torch.ones_like(batch["loss_mask"])
    bare = {name: tensor for name, tensor in batch.items() if name != "loss_mask"}
    one = learn([batch], "actor_critic", mode, None)
    other = learn([bare], "actor_critic", mode, None)
    assert one[0] == pytest.approx(other[0], rel=1e-6)
    close(one[1], other[1])
    assert reduce_metrics(one[2]) == pytest.approx(reduce_metrics(other[2]))
