"""Sequences that lie end to end are as if each were alone."""

import pytest
import torch

from rlinf.models.causal_lm import attention
from rlinf.models.causal_lm.layout import layout_on
from tests.unit_tests.models.causal_lm.small import ask, examples, gradients, make, slowly

LLAMA = {
    "model_type": "hf_causal_lm",
    "hf_config": {
        "model_type": "llama",
        "vocab_size": 19,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
}
WINDOW = {
    "model_type": "hf_causal_lm",
    "hf_config": LLAMA["hf_config"] | {"model_type": "mistral", "sliding_window": 3},
}
PACKED = {"sequence_layout": "packed"}
MODELS = {
    "packed": PACKED,
    "padded": {"sequence_layout": "padded"},
    "eager": {"attn_implementation": "eager"},
    "chunks": {"logits_chunk_tokens": 3},
    "llama": LLAMA | PACKED,
    "sliding window": WINDOW | PACKED,
    "padded sliding window": WINDOW,
}


@pytest.mark.parametrize("name", MODELS)
def test_packed_is_each_sequence_alone(name):
    model, sequences = make(MODELS[name]), examples()
    out = ask(model, sequences, temperature=0.7, compute_entropy=True)
    expected = slowly(model, sequences, 0.7)
    weights = torch.linspace(-1, 2, len(out["logprobs"]))
    grads = []
    for result in (out, expected):
        loss = (weights * result["logprobs"]).sum() + result["entropy"].square().sum()
        grads.append(gradients(model, loss))
    for key in ("logprobs", "entropy"):
        torch.testing.assert_close(out[key], expected[key], rtol=1e-5, atol=1e-5)
    for key, gradient in grads[1].items():
        torch.testing.assert_close(grads[0][key], gradient, rtol=1e-4, atol=1e-4)


def test_sequences_of_equal_length_need_no_padding():
    model = make(PACKED)
    sequences = [([1, 2, 3], [4, 5]), ([5, 6], [7, 8, 9])]
    out, expected = ask(model, sequences), slowly(model, sequences)
    torch.testing.assert_close(out["logprobs"], expected["logprobs"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_neighbours_do_not_matter(layout):
    model = make({"sequence_layout": layout})
    one, others = examples(1, 1), examples(2, 5)
    alone = ask(model, one)["logprobs"]
    among = ask(model, [*others[:3], *one, *others[3:]])["logprobs"]
    begin = sum(len(response) for _, response in others[:3])
    torch.testing.assert_close(among[begin : begin + len(alone)], alone)


def test_values_are_of_the_state_before_each_token():
    model = make({"add_value_head": True})
    sequences = examples(3)
    assert (ask(model, sequences, compute_values=True)["values"] == 0).all(), "it begins as zero"
    torch.nn.init.normal_(model.value_head.weight)
    values = ask(model, sequences, compute_logprobs=False, compute_values=True)
    assert set(values) == {"values"}
    changed = [(prompt, [*response[:-1], 0] if response else []) for prompt, response in sequences]
    same = ask(model, changed, compute_values=True)["values"]
    torch.testing.assert_close(same, values["values"])
    with pytest.raises(ValueError, match="without a value head"):
        ask(make(), sequences, compute_values=True)


def test_gradient_checkpointing_changes_memory_and_nothing_else():
    model, sequences = make(), examples(4)
    plain = gradients(model, ask(model, sequences)["logprobs"].sum())
    calls = []
    layer = model.plain.model.layers[0]
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    model.enable_gradient_checkpointing()
    again = gradients(model, ask(model, sequences)["logprobs"].sum())
    assert len(calls) == 2, "once forward, once again backward"
    for key, gradient in plain.items():
        torch.testing.assert_close(again[key], gradient)


def test_a_device_has_the_layout_that_is_quicker_on_it():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [layout_on(d, "auto", "sdpa") for d in (cpu, gpu)] == ["padded", "packed"]
    assert layout_on(gpu, "packed", "eager") == "padded"
    assert layout_on(cpu, "packed", "sdpa") == "packed"
    model = make()
    ask(model, examples())
    assert model.plain.config._attn_implementation == "sdpa"


def test_what_packed_attention_does_not_know_is_refused():
    model = make(PACKED)
    ask(model, examples())
    with pytest.raises(ValueError, match="set model.sequence_layout to padded"):
        model.plain(input_ids=torch.tensor([[1, 2, 3]]))
    layer = torch.nn.Identity()
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="Identity wants softcap"):
        attention.packed_attention(layer, q, q, q, None, packed=object(), softcap=30.0)
    with pytest.raises(ValueError, match="Identity drops out"):
        attention.packed_attention(layer, q, q, q, None, packed=object(), dropout=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    "keys",
    [{}, WINDOW, {"sequence_layout": "padded"}],
    ids=["full", "sliding window", "padded"],
)
def test_the_kernel_of_the_gpu_is_each_sequence_alone(keys):
    sequences = examples(5, 8, 40)
    model = make(keys)
    expected = slowly(model, sequences)["logprobs"].detach()
    model = model.to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = ask(model, sequences)["logprobs"]
    out.sum().backward()
    assert (out.detach().cpu() - expected).abs().mean() < 0.05
    single = ask(model, sequences)["logprobs"]
    torch.testing.assert_close(single.detach().cpu(), expected, rtol=1e-4, atol=1e-4)


def older(q, k, v, bounds, _, longest, __, *, scale=None, window_size=(-1, -1)):
    """The kernel of torch 2.11, slowly: as many heads of keys as of the query."""
    assert q.shape[1] == k.shape[1] and window_size[1] == 0
    out = []
    for begin, end in zip(bounds.tolist(), bounds[1:].tolist(), strict=False):
        parts = (x[begin:end].transpose(0, 1) for x in (q, k, v))
        one = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, scale=scale)
        out.append(one.transpose(0, 1))
    return torch.cat(out)


def newer(q, k, v, *bounds, enable_gqa=False, **keys):
    """The kernel of torch 2.13, slowly."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return older(q, k, v, *bounds, **keys)


@pytest.mark.parametrize("kernel", [older, newer])
def test_kernels_of_several_versions_of_torch(kernel, monkeypatch):
    model, sequences = make(PACKED), examples()
    expected = ask(model, sequences)["logprobs"]
    monkeypatch.setattr(attention, "_varlen_kernel", lambda _: kernel)
    assert torch.allclose(ask(model, sequences)["logprobs"], expected, atol=1e-5)
