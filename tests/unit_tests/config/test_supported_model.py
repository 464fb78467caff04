"""Model types read like an enum."""

import copy
import pickle

import pytest

from rlinf.config import SupportedModel, get_supported_model


def test_it_reads_like_an_enum():
    assert SupportedModel.MLP_POLICY.value == "mlp_policy"
    assert SupportedModel.MLP_POLICY.category == "embodied"
    assert SupportedModel.QWEN2_5.category == "reasoning"
    assert SupportedModel("mlp_policy") is SupportedModel.MLP_POLICY
    assert SupportedModel(SupportedModel.LLAMA) is SupportedModel.LLAMA
    values = [member.value for member in SupportedModel]
    assert values == ["mlp_policy", "cnn_policy", "qwen2.5", "qwen3", "llama", "hf_causal_lm"]
    assert len(SupportedModel) == 6
    assert "qwen3" in SupportedModel
    assert "gpt" not in SupportedModel
    assert isinstance(SupportedModel.QWEN3, SupportedModel)
    assert {SupportedModel.QWEN3: 1}[SupportedModel("qwen3")] == 1


def test_it_can_be_extended():
    member = SupportedModel.register("My-Model.2", "embodied")
    assert member is SupportedModel.MY_MODEL_2
    assert member is SupportedModel("my-model.2")
    assert SupportedModel.register("my-model.2", "embodied") is member
    with pytest.raises(ValueError, match="already registered as embodied"):
        SupportedModel.register("my-model.2", "reasoning")
    with pytest.raises(ValueError, match="unknown category 'vision'; known: embodied, reasoning"):
        SupportedModel.register("x", "vision")


def test_members_are_unique_everywhere():
    for duplicate in (copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
        assert duplicate(SupportedModel.QWEN3) is SupportedModel.QWEN3


def test_unknown_types_name_the_near_ones():
    assert get_supported_model("cnn_policy") is SupportedModel.CNN_POLICY
    with pytest.raises(ValueError) as caught:
        get_supported_model("mlp_polisy")
    assert "model type 'mlp_polisy' is not supported" in str(caught.value)
    assert "did you mean 'mlp_policy'?" in str(caught.value)
    assert "hf_causal_lm" in str(caught.value)
    with pytest.raises(ValueError, match="'gpt' is not a supported model type"):
        SupportedModel("gpt")
