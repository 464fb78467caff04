"""A model that was built without weights gets those that it would have had."""

import pytest
import torch
from torch import nn

from rlinf.hybrid_engines.fsdp.fill import fill
from rlinf.models import get_model
from rlinf.models.deferred import CannotDefer, deferring, take_deferred
from tests.unit_tests.models.causal_lm.small import QWEN3, SIZES, ask, examples, make

CPU = torch.device("cpu")
UNTIED = {"hf_config": SIZES | {"tie_word_embeddings": False}}
KINDS = {
    "tied": {},
    "untied": UNTIED,
    "value head": {"add_value_head": True},
    "adapters": {"is_lora": True, "add_value_head": True},
    "qwen2": {
        "model_type": "qwen2.5",
        "hf_config": {name: size for name, size in SIZES.items() if name != "head_dim"},
    },
    "llama": {"model_type": "llama"},
    "gpt2": {
        "model_type": "hf_causal_lm",
        "hf_config": {
            "model_type": "gpt2",
            "vocab_size": 19,
            "n_positions": 32,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": 1,
            "eos_token_id": 1,
        },
    },
}


def both(section, seed=3):
    """The model as it is built at once, and built without weights and filled."""
    models, random = [], []
    for deferred in (False, True):
        torch.manual_seed(seed)
        model = get_model(section, dtype=torch.float32, deferred=deferred)
        if deferred:
            assert all(parameter.is_meta for parameter in model.parameters())
            assert not any(buffer.is_meta for buffer in model.buffers())
            fill(model, take_deferred(model).parts, CPU)
        models.append(model)
        random.append(torch.get_rng_state())
    assert torch.equal(*random), "whoever draws next gets the same numbers"
    return models


def equal(one, other):
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    assert [p.requires_grad for p in one.parameters()] == [
        p.requires_grad for p in other.parameters()
    ]
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_model_has_the_same_weights(kind):
    whole, filled = both({**QWEN3, **KINDS[kind]})
    assert equal(whole, filled)
    one, other = (ask(model, examples())["logprobs"] for model in (whole, filled))
    assert torch.equal(one, other)
    assert len(list(whole.parameters())) == len(list(filled.parameters())), "what is tied stays so"


@pytest.mark.parametrize("keys", [{}, UNTIED], ids=["tied", "untied"])
def test_a_folder_is_read(tmp_path, keys):
    made = make(keys)
    made.save_folder(tmp_path, dict(made.policy_tensors(lambda tensor: tensor)))
    whole, filled = both({"model_type": "qwen3", "model_path": str(tmp_path)})
    assert equal(whole, filled) and equal(made, filled)
    further = {"is_lora": True, "lora_rank": 4, "add_value_head": True}
    whole, filled = both({"model_type": "qwen3", "model_path": str(tmp_path), **further})
    assert equal(whole, filled)


def test_adapters_are_read(tmp_path):
    made = make({"is_lora": True})
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1)
    made.lm.save_pretrained(tmp_path)
    whole, filled = both({**QWEN3, "is_lora": True, "lora_path": str(tmp_path)})
    assert equal(whole, filled)


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.scale = float(self.weight.sum())


class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(2.0 * torch.randn(3))


class Keeps(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("noise", torch.randn(3))


class Aside(nn.Module):
    def __init__(self):
        super().__init__()
        weight = nn.Parameter(torch.empty(3))
        self.weight = weight
        nn.init.normal_(weight)


class Unwritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))


class OwnGenerator(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        nn.init.trunc_normal_(self.weight, generator=torch.Generator())


@pytest.mark.parametrize("kind", [Reads, Draws, Keeps, Aside, Unwritten, OwnGenerator])
def test_a_model_that_needs_its_weights_at_once_says_so(kind):
    with pytest.raises(CannotDefer), deferring() as deferral:
        deferral.finish(kind())
    assert not kind().weight.is_meta, "afterwards all is as before"


class Odd(nn.Module):
    """Writes weights in all ways that can be written down."""

    def __init__(self):
        super().__init__()
        self.given = nn.Parameter(torch.zeros(4, 3))
        self.ones = nn.Parameter(torch.ones(2))
        self.embedding = nn.Embedding(5, 3, padding_idx=2)
        self.twice = nn.Linear(3, 4)
        self.chain = nn.Parameter(torch.empty(6))
        nn.init.normal_(self.chain)
        nn.init.uniform_(self.twice.weight)
        with torch.no_grad():
            self.twice.weight.mul_(2.0)
            self.chain.clamp_(-0.5, 0.5)
            self.twice.weight[1:].add_(torch.ones(3))
            self.given.copy_(torch.arange(12.0).view(4, 3))
        self.after = nn.Linear(2, 2)
        self.rejected = nn.Linear(40, 30)
        nn.init.trunc_normal_(self.rejected.weight, std=0.7, a=-0.5, b=0.9)
        nn.init.trunc_normal_(self.rejected.weight[:3], mean=-0.2, a=-0.3, b=0.1)
        self.orthogonal = nn.Linear(9, 5)
        nn.init.orthogonal_(self.orthogonal.weight, 1.5)
        nn.init.sparse_(self.orthogonal.weight, 0.4)
        self.drawn = nn.Parameter(torch.randn(2, 5))
        self.scaled = nn.Parameter(torch.rand(7))
        nn.init.xavier_uniform_(self.drawn)
        with torch.no_grad():
            self.scaled.mul_(3.0)
        self.register_buffer("frequencies", torch.arange(4.0))


def test_all_ways_to_write_are_replayed():
    torch.manual_seed(0)
    whole = Odd()
    then = torch.rand(3)
    torch.manual_seed(0)
    with deferring() as deferral:
        model = Odd()
        deferral.finish(model)
    fill(model, take_deferred(model).parts, CPU)
    assert equal(whole, model)
    assert torch.equal(torch.rand(3), then)


def test_who_has_drawn_since_goes_on_from_there():
    torch.manual_seed(0)
    with deferring() as deferral:
        deferral.finish(model := nn.Linear(4, 4))
    expected = torch.manual_seed(7), torch.rand(2)
    torch.manual_seed(7)
    fill(model, take_deferred(model).parts, CPU)
    assert torch.equal(torch.rand(2), expected[1])
    torch.manual_seed(0)
    assert equal(nn.Linear(4, 4), model)
