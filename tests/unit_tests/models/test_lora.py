"""Adapters: what is trained, merged, sent and received."""

import pytest
import torch

from rlinf.models.lora import AdapterStore
from tests.unit_tests.models.causal_lm.small import ask, examples, gradients, make

LORA = {"is_lora": True, "lora_rank": 4, "lora_alpha": 12}


def same(tensor):
    return tensor


def learnt(keys=None):
    """A model whose adapters are not zero any more."""
    model = make(LORA | (keys or {}))
    g = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=g)
    return model


def plain_model(tensors):
    model = make()
    missing = model.plain.load_state_dict(tensors, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys
    return model


@pytest.mark.parametrize("keys", [{}, {"lora_target_modules": ["q_proj", "down_proj"]}])
def test_merged_weights_are_base_and_adapters(keys):
    model = learnt(keys)
    merged = plain_model(dict(model.policy_tensors(same)))
    sequences = examples()
    own, other = (ask(m, sequences)["logprobs"] for m in (model, merged))
    torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    base = ask(model, sequences, use_adapters=False)["logprobs"]
    assert (own - base).abs().max() > 0.1


def test_only_adapters_are_trained():
    model = learnt()
    grads = gradients(model, ask(model, examples())["logprobs"].sum())
    assert grads and all(".lora_" in name for name in grads)
    assert model.has_adapters and not make().has_adapters


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_reach_adapters_through_checkpoints(reentrant):
    model = learnt()
    expected = gradients(model, ask(model, examples())["logprobs"].sum())
    model.enable_gradient_checkpointing(reentrant)
    for name, gradient in gradients(model, ask(model, examples())["logprobs"].sum()).items():
        torch.testing.assert_close(gradient, expected[name])


def test_without_adapters_the_model_is_its_base():
    model, base = learnt(), make()
    plain = base.plain.state_dict()
    for name, tensor in model.plain.state_dict().items():
        if ".lora_" not in name:
            plain[name.replace(".base_layer.", ".")].copy_(tensor)
    sequences = examples()
    expected = ask(base, sequences)["logprobs"]
    assert torch.equal(ask(model, sequences, use_adapters=False)["logprobs"], expected)
    assert not torch.equal(ask(model, sequences)["logprobs"], expected)


def test_the_rollout_merges_the_adapters_it_receives():
    model = learnt()
    engine = make()
    state = engine.plain.state_dict()
    for name, tensor in model.plain.state_dict().items():
        if ".lora_" not in name:
            state[name.replace(".base_layer.", ".")].copy_(tensor)
    cfg = type("Section", (), {**LORA, "lora_path": None, "lora_target_modules": []})
    store = AdapterStore(engine.plain, cfg)
    for round in range(2):
        if round:
            for name, parameter in model.named_parameters():
                if ".lora_" in name:
                    parameter.data.mul_(1.1)
        sent = dict(model.policy_tensors(same, adapters=True))
        own = store.state_dict()
        assert set(own) == set(sent)
        for name, tensor in sent.items():
            own[name].copy_(tensor)
        assert torch.equal(
            dict(store.merged())["model.layers.0.mlp.up_proj.weight"],
            dict(model.policy_tensors(same))["model.layers.0.mlp.up_proj.weight"],
        )
        store.merge()
        merged = dict(model.policy_tensors(same))
        for name, tensor in engine.plain.state_dict().items():
            if name in merged:
                assert torch.equal(tensor, merged[name]), name
    size = sum(tensor.nbytes for tensor in sent.values())
    assert size < sum(tensor.nbytes for tensor in merged.values()) / 2


def test_adapters_go_on_from_a_folder(tmp_path):
    model = learnt()
    model.lm.save_pretrained(tmp_path)
    again = make(LORA | {"lora_path": str(tmp_path), "lora_rank": 9}, seed=0)
    saved = dict(model.policy_tensors(same, adapters=True))
    loaded = dict(again.policy_tensors(same, adapters=True))
    assert set(loaded) == set(saved)
    # What `make` does to fresh weights it does to these.
    for name, tensor in saved.items():
        torch.testing.assert_close(loaded[name], 3 * tensor)
    assert any(parameter.requires_grad for parameter in again.parameters())
