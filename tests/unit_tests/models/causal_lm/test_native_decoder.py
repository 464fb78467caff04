"""Layers in C give what those of transformers give, and so do their gradients."""

import copy

import pytest
import torch

from rlinf.models.causal_lm import native_decoder
from rlinf.models.causal_lm.layout import Sequences
from rlinf.models.causal_lm.native_decoder import SharedPrompts, why_not_native
from rlinf.utils import native
from tests.unit_tests.models.causal_lm.small import SIZES, ask, gradients, make, slowly

CPU = torch.device("cpu")
HEADS = SIZES | {"head_dim": 16}
QWEN2 = {key: size for key, size in SIZES.items() if key != "head_dim"}
FAMILIES = {
    "qwen3": {"hf_config": HEADS},
    "qwen3, a key head per head": {"hf_config": HEADS | {"num_key_value_heads": 4}},
    "llama": {"model_type": "hf_causal_lm", "hf_config": HEADS | {"model_type": "llama"}},
    "qwen2, with biases": {
        "model_type": "hf_causal_lm",
        "hf_config": QWEN2 | {"model_type": "qwen2", "hidden_size": 64},
    },
}

try:
    native_decoder._library(16)
except native.NoNativeKernels as error:
    pytestmark = pytest.mark.skip(reason=str(error))


def made(family="qwen3", seed=0):
    """A model of which no weight is what it is by default."""
    model = make(FAMILIES[family], seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    assert model.layout_on(CPU) == "native"
    return model


def groups(seed=0, count=9):
    """Prompts with one to four responses each, some of them empty or long."""
    g = torch.Generator().manual_seed(seed)

    def draw(length):
        return torch.randint(0, 19, (length,), generator=g).tolist()

    sequences = []
    for number in range(count):
        prompt = draw(1 + number % 7)
        sequences += [(prompt, draw((7 * number + 11 * i) % 37)) for i in range(1 + number % 4)]
    return sequences


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_responses_are_each_alone_with_their_prompt(family, threads, monkeypatch):
    model, sequences = made(family), groups()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    out = ask(model, sequences, temperature=0.7, compute_entropy=True)
    monkeypatch.undo()
    expected = slowly(model, sequences, 0.7)
    weights = torch.linspace(-1, 2, len(out["logprobs"]))
    grads = []
    for result in (out, expected):
        loss = (weights * result["logprobs"]).sum() + result["entropy"].square().sum()
        grads.append(gradients(model, loss))
    for key in ("logprobs", "entropy"):
        torch.testing.assert_close(out[key], expected[key], rtol=1e-5, atol=2e-5)
    assert grads[0].keys() == grads[1].keys()
    for key, gradient in grads[1].items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(grads[0][key], gradient, rtol=1e-4, atol=1e-5 * (1 + scale))


def test_several_chunks_and_threads_add_up_to_the_same():
    model, sequences = made(), groups(1, 90)
    whole = gradients(model, ask(model, sequences)["logprobs"].sum())
    assert len(SharedPrompts.of(flat(sequences)).tokens) > 3 * 256
    torch.set_num_threads(3)
    try:
        shared = gradients(model, ask(model, sequences)["logprobs"].sum())
    finally:
        torch.set_num_threads(1)
    parts = [gradients(model, ask(model, sequences[i::2])["logprobs"].sum()) for i in (0, 1)]
    for key, gradient in whole.items():
        scale = float(gradient.abs().max())
        close = {"rtol": 1e-4, "atol": 1e-5 * (1 + scale)}
        torch.testing.assert_close(shared[key], gradient, **close)
        torch.testing.assert_close(parts[0][key] + parts[1][key], gradient, **close)


def test_groups_without_a_gradient_add_nothing():
    model = made()
    some, others = groups(2, 12), groups(3, 12)
    expected = gradients(model, ask(model, some)["logprobs"].sum())
    out = ask(model, [*some[:15], *others, *some[15:]])["logprobs"]
    first = sum(len(response) for _, response in some[:15])
    last = len(out) - sum(len(response) for _, response in some[15:])
    found = gradients(model, out[:first].sum() + out[last:].sum())
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-4)
    nothing = gradients(model, 0.0 * ask(model, some)["logprobs"].sum())
    assert all((gradient == 0).all() for gradient in nothing.values())


def test_a_gradient_that_is_not_finite_is_not_left_out():
    model, sequences = made(), groups(4, 3)
    found = gradients(model, float("nan") * ask(model, sequences)["logprobs"].sum())
    assert all(not gradient.isfinite().all() for gradient in found.values())


def test_without_gradients_the_same_comes_out():
    model, sequences = made(), groups(5)
    out = ask(model, sequences)["logprobs"]
    with torch.no_grad():
        again = ask(model, sequences)["logprobs"]
    torch.testing.assert_close(again, out.detach(), rtol=0, atol=0)
    frozen = copy.deepcopy(model).requires_grad_(False)
    assert torch.equal(ask(frozen, sequences)["logprobs"], again)


def test_gradients_can_be_asked_for_twice_and_late():
    model, sequences = made(), groups(6)
    first = ask(model, sequences)["logprobs"].sum()
    others = ask(model, groups(7))["logprobs"].sum()
    expected = gradients(model, ask(model, sequences)["logprobs"].sum())
    others.backward()
    model.zero_grad()
    for _ in range(2):
        model.zero_grad()
        first.backward(retain_graph=True)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=0)


def test_memory_is_used_again_when_nobody_needs_it(monkeypatch):
    monkeypatch.setattr(native_decoder._Memory, "_spare", [])
    one, two = native_decoder._Memory(10), native_decoder._Memory(10)
    places = {one.address, two.address}
    assert len(places) == 2
    del one, two
    assert native_decoder._Memory(9).address in places
    assert len(native_decoder._Memory._spare) == 2
    for size in (20, 30, 40, 50):
        native_decoder._Memory(size)
    sizes = [tensor.numel() for tensor in native_decoder._Memory._spare]
    assert len(sizes) == native_decoder._Memory._MOST and max(sizes) == 50


def flat(sequences):
    tokens = torch.tensor([token for pair in sequences for part in pair for token in part])
    prompts, responses = zip(*((len(p), len(r)) for p, r in sequences), strict=True)
    return Sequences(tokens, torch.tensor(prompts), torch.tensor(responses))


def test_neighbours_share_their_prompt(monkeypatch):
    same = [1, 2, 3]
    sequences = [(same, [4, 5]), (same, []), (same, [6]), ([1, 2], [3, 7]), (same, [8, 9])]
    shared = SharedPrompts.of(flat(sequences))
    assert shared.tokens.tolist() == [1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 8]
    assert shared.segments.tolist() == [
        *([0, 3, 0], [3, 1, 3], [4, 0, 3], [4, 0, 3]),
        *([4, 2, 0], [6, 1, 2]),
        *([7, 3, 0], [10, 1, 3]),
    ]
    assert shared.units.tolist() == [0, 4, 6, 8]
    assert shared.largest == 4
    assert shared.places.tolist() == [2, 3, 2, 5, 6, 9, 10]
    assert shared.targets.tolist() == [4, 5, 6, 3, 7, 8, 9]
    monkeypatch.setattr(native_decoder, "UNIT_TOKENS", 4)
    cut = SharedPrompts.of(flat([(same, [4] * n) for n in (3, 1, 2, 9)]))
    assert cut.units.tolist() == [0, 3, 5, 7], "none is long, unless one response is"


def test_models_that_it_is_not_for(monkeypatch):
    def reason(**sizes):
        kind = sizes.pop("model_type", "llama")
        keys = {"model_type": "hf_causal_lm", "hf_config": HEADS | {"model_type": kind} | sizes}
        return why_not_native(make(keys).plain)

    assert "not a multiple of 16" in reason(head_dim=8)
    assert "silu" in reason(hidden_act="gelu")
    assert "biases" in reason(mlp_bias=True)
    assert "biases" in reason(attention_bias=True)
    assert "drops out" in reason(attention_dropout=0.1)
    assert "sliding" in reason(model_type="mistral", sliding_window=3)
    monkeypatch.setattr(native_decoder, "MOST_WEIGHTS", 1000)
    assert "more than 1000 weights" in reason()


def test_states_that_it_is_not_for():
    model, sequences = made(), groups(8)
    expected = ask(model, sequences)["logprobs"].detach()
    with torch.autocast("cpu", torch.bfloat16):
        assert model.layout_on(CPU) == "padded"
    assert copy.deepcopy(model).double().layout_on(CPU) == "padded"
    assert model.layout_on(torch.device("cuda")) == "packed"
    model.enable_gradient_checkpointing()
    assert model.layout_on(CPU) == "padded"
    torch.testing.assert_close(ask(model, sequences)["logprobs"], expected, rtol=1e-5, atol=2e-5)
    assert make(FAMILIES["qwen3"] | {"sequence_layout": "packed"}).layout_on(CPU) == "packed"
    assert make(FAMILIES["qwen3"] | {"attn_implementation": "eager"}).layout_on(CPU) == "padded"
    assert make(FAMILIES["qwen3"] | {"is_lora": True}).layout_on(CPU) == "padded"


def test_without_a_compiler_transformers_takes_over(monkeypatch):
    native_model, sequences = made(), groups(9)
    caches = native.compiled, native_decoder._library
    monkeypatch.setenv("CC", "/no/such/compiler")
    try:
        for cache in caches:
            cache.cache_clear()
        model = make(FAMILIES["qwen3"])
        assert "no C compiler" in why_not_native(model.plain)
        assert model.layout_on(CPU) == "padded"
    finally:
        for cache in caches:
            cache.cache_clear()
    model.load_state_dict(native_model.state_dict())
    monkeypatch.undo()
    expected = ask(native_model, sequences)["logprobs"]
    torch.testing.assert_close(ask(model, sequences)["logprobs"], expected, rtol=1e-5, atol=2e-5)
