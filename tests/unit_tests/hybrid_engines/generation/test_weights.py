"""All weights lie in one buffer, and the module's parameters are views of it."""

import pytest
import torch

from rlinf.hybrid_engines.generation.hf.lean import fused_groups
from rlinf.hybrid_engines.generation.hf.weights import WeightArena
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch
from tests.unit_tests.hybrid_engines.generation.tiny import tiny

CPU = torch.device("cpu")
QKV = [f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv"]


def arena(model, dtype=torch.float32):
    return WeightArena(model, CPU, dtype, fused_groups(model))


def copies(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_moving_changes_no_value():
    model = tiny("qwen2 tied")
    before = copies(model)
    arena(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_group_is_one_tensor_and_shares_memory():
    model = tiny("llama with biases")
    weights = arena(model)
    parts = [model.state_dict()[name] for name in QKV]
    assert torch.equal(weights.fused(QKV), torch.cat(parts))
    model.model.layers[1].self_attn.k_proj.weight.data.fill_(7.0)
    assert (weights.fused(QKV)[32:48] == 7).all()
    biases = [name.replace("weight", "bias") for name in QKV]
    assert weights.fused(biases).shape == (64,)


def test_loading_is_in_place():
    model, other = tiny(seed=0), tiny(seed=1)
    weights = arena(model)
    fused = weights.fused(QKV)
    weights.load(iter(other.state_dict().items()))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    assert torch.equal(fused, torch.cat([other.state_dict()[name] for name in QKV]))


def test_weights_are_cast():
    model, other = tiny(seed=0), tiny(seed=1)
    weights = arena(model, torch.bfloat16)
    weights.load(other.state_dict())
    expected = other.state_dict()[QKV[0]].bfloat16()
    assert torch.equal(model.state_dict()[QKV[0]], expected)
    assert weights.nbytes < 2.2 * sum(p.numel() for p in other.parameters())


def test_of_tied_weights_one_is_enough():
    model, other = tiny("qwen3 tied", seed=0), tiny("qwen3 tied", seed=1)
    weights = arena(model)
    named = other.state_dict()
    del named["lm_head.weight"]
    weights.load(named)
    assert torch.equal(model.lm_head.weight, other.lm_head.weight)
    named["lm_head.weight"] = other.lm_head.weight + 1
    with pytest.raises(WeightMismatch, match="'lm_head.weight' is tied to a weight"):
        weights.load(named)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda named: named.pop("model.norm.weight"), "no weights arrived for model.norm.weight"),
        (lambda named: named.update(more=torch.ones(2)), "'more' arrived, which this model does"),
        (
            lambda named: named.update({"model.norm.weight": torch.ones(3)}),
            r"'model.norm.weight' arrived as \(3,\) and is \(32,\) here",
        ),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    model = tiny()
    weights = arena(model)
    named = copies(model)
    change(named)
    with pytest.raises(WeightMismatch, match=message):
        weights.load(named)


@pytest.mark.parametrize("keep", [True, False])
def test_memory_can_be_given_away_and_taken_back(keep):
    model = tiny()
    before = copies(model)
    weights = arena(model)
    fused = weights.fused(QKV)
    weights.release(keep)
    assert fused.untyped_storage().nbytes() == 0
    weights.restore()
    if not keep:
        weights.load(before)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert torch.equal(fused, torch.cat([before[name] for name in QKV]))
