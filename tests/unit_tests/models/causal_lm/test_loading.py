"""Models from folders and from sizes, with what the trainer makes of them."""

import pytest
import torch

from rlinf.models import get_model
from rlinf.models.causal_lm.load import check_logits, without_dropout
from rlinf.models.causal_lm.quick_norm import quicken_norms
from tests.unit_tests.models.causal_lm.small import QWEN3, SIZES, ask, examples, make

UNTIED = {"hf_config": SIZES | {"tie_word_embeddings": False}}


@pytest.mark.parametrize("keys", [{}, UNTIED], ids=["tied", "untied"])
def test_a_folder_that_was_written_is_the_model_that_wrote_it(tmp_path, keys):
    model = make(keys)
    tensors = dict(model.policy_tensors(lambda tensor: tensor))
    assert ("lm_head.weight" in tensors) == bool(keys), "what is tied goes once"
    model.save_folder(tmp_path, tensors)
    for kind in ("qwen3", "hf_causal_lm"):
        again = get_model({"model_type": kind, "model_path": str(tmp_path)})
        one, other = (ask(m, examples())["logprobs"] for m in (model, again))
        assert torch.equal(one, other)


def test_a_fresh_model_is_that_of_its_seed():
    one, same, other = make(), make(), make(seed=1)
    assert torch.equal(one.plain.lm_head.weight, same.plain.lm_head.weight)
    assert not torch.equal(one.plain.lm_head.weight, other.plain.lm_head.weight)
    assert one.plain.config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"hf_config": {}}, "neither model_path nor hf_config"),
        ({"model_type": "hf_causal_lm"}, "nor hf_config.model_type"),
        (
            {"hf_config": SIZES | {"hiden_size": 3}},
            "hf_config.hiden_size.*did you mean 'hidden_size'",
        ),
        ({"hf_config": {}, "model_path": "/nowhere"}, "'/nowhere', where there is no config.json"),
        ({"is_lora": True, "lora_path": "/nowhere"}, "there is no adapter_config.json"),
        ({"is_lora": True, "lora_target_modules": ["lm_head"]}, "names the last layer"),
    ],
)
def test_mistakes_are_named(keys, complaint):
    with pytest.raises(ValueError, match=complaint):
        get_model({**QWEN3, **keys})


def test_a_folder_must_hold_what_the_config_says(tmp_path):
    model = make()
    model.save_folder(tmp_path, dict(model.policy_tensors(lambda tensor: tensor)))
    with pytest.raises(ValueError, match="model_type is llama, but the folder .* holds a qwen3"):
        get_model({"model_type": "llama", "model_path": str(tmp_path)})
    with pytest.raises(ValueError, match="keep one of the two"):
        get_model({**QWEN3, "model_path": str(tmp_path)})


def test_architectures_that_change_their_logits_are_refused():
    config = make().plain.config
    check_logits(config)
    config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="change their logits by final_logit_softcapping 30"):
        check_logits(config)


def test_there_is_no_dropout():
    keys = {"hf_config": SIZES | {"attention_dropout": 0.5}, "sequence_layout": "padded"}
    model = make(keys)
    assert model.training
    one, other = (ask(model, examples())["logprobs"] for _ in range(2))
    assert torch.equal(one, other)
    module = torch.nn.Sequential(torch.nn.Dropout(0.3))
    without_dropout(module)
    assert module[0].p == 0.0


class Odd(torch.nn.Module):
    """A norm that adds one to its weight, as some architectures do."""

    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(4)), 1e-6

    def forward(self, x):
        return (1 + self.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def test_quick_norms_are_those_of_the_model():
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    slow, quick = Qwen3RMSNorm(8), Qwen3RMSNorm(8)
    torch.nn.init.normal_(slow.weight)
    quick.load_state_dict(slow.state_dict())
    assert quicken_norms(quick) == 1 and quicken_norms(quick) == 0
    x = torch.randn(3, 5, 8)
    grads = []
    for norm in (slow, quick):
        own = x.clone().requires_grad_()
        out = norm(own)
        out.backward(torch.linspace(-1, 1, 120).view(3, 5, 8))
        grads.append((out, own.grad, norm.weight.grad))
    assert torch.equal(grads[0][0], grads[1][0])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
    double = quick.double()
    assert double(x.double()).dtype is torch.float64
    assert quicken_norms(Odd()) == 0
    assert quicken_norms(make().plain) == 0, "the builder has done it"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_quick_norms_are_those_of_the_model_on_a_gpu():
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    slow, quick = Qwen3RMSNorm(64), Qwen3RMSNorm(64)
    quicken_norms(quick)
    x = torch.randn(3, 5, 64, device="cuda")
    grads = []
    for norm in (slow.cuda(), quick.cuda()):
        own = x.clone().requires_grad_()
        norm(own).square().sum().backward()
        grads.append((norm(own), own.grad, norm.weight.grad))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
