"""Model types and their categories."""

import pickle

import pytest

from rlinf.config import SupportedModel, get_supported_model


def test_the_built_in_types():
    assert SupportedModel.names() == [
        "mlp_policy",
        "cnn_policy",
        "flow_policy",
        "cma",
        "openvla",
        "openvla_oft",
        "smolvla",
        "openpi",
        "gr00t",
        "mlp_reward_model",
        "cnn_reward_model",
        "qwen2.5",
        "qwen3",
        "llama",
        "hf_causal_lm",
    ]
    policies = [
        "mlp_policy",
        "cnn_policy",
        "flow_policy",
        "cma",
        "openvla",
        "openvla_oft",
        "smolvla",
        "openpi",
        "gr00t",
    ]
    assert SupportedModel.names("embodied") == policies
    assert SupportedModel.names("reward") == ["mlp_reward_model", "cnn_reward_model"]
    assert get_supported_model("Qwen3").category == "reasoning"
    assert SupportedModel.find("gpt") is None
    assert pickle.loads(pickle.dumps(get_supported_model("qwen3"))) == SupportedModel.find("qwen3")


def test_types_can_be_added():
    model = SupportedModel.register("My-Model.2", "embodied")
    assert model == SupportedModel.find("my-model.2") and model.value == "my-model.2"
    assert SupportedModel.register("my-model.2", "embodied") == model
    with pytest.raises(ValueError, match="already registered as embodied"):
        SupportedModel.register("my-model.2", "reasoning")
    with pytest.raises(
        ValueError, match="unknown category 'vision'; known: embodied, reward, reasoning"
    ):
        SupportedModel.register("x", "vision")


def test_unknown_types_name_the_near_ones():
    with pytest.raises(ValueError) as caught:
        get_supported_model("mlp_polisy")
    assert "model type 'mlp_polisy' is not supported" in str(caught.value)
    assert "did you mean 'mlp_policy'?" in str(caught.value)
    assert "hf_causal_lm" in str(caught.value)
