"""Folders in the layout of Isaac-GR00T: there and back, and what does not fit."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlinf.models.embodiment.flow_vla.groot import folder as groot_folder
from rlinf.models.embodiment.flow_vla.groot.folder import save_folder
from rlinf.models.export import PolicyExport, write_export
from rlinf.models.registry import get_model
from tests.unit_tests.models.flow_vla.policies import SECTIONS, make, section
from tests.unit_tests.models.openvla.policies import SPEC, observe

WEIGHTS, METADATA = "model.safetensors", "experiment_cfg/metadata.json"
EMBEDDING = "backbone.eagle_model.language_model.model.embed_tokens.weight"
LM_HEAD = "backbone.eagle_model.language_model.lm_head.weight"
POOLING = "backbone.eagle_model.vision_model.vision_model.head.probe"


def load(folder, deferred=False, **keys):
    own = section("gr00t", model_path=str(folder), hf_config={}, words=[]) | keys
    return get_model(own, SPEC, deferred=deferred)


def act(policy):
    return policy.predict_action_batch(observe(cameras=2), mode="eval")


@pytest.fixture
def saved(tmp_path):
    policy = make("gr00t", add_value_head=True, noise_method="flow_noise", action_horizon=3)
    policy.update_normalizer({"states": torch.randn(50, 5)})
    save_folder(policy, tmp_path)
    return policy, tmp_path


@pytest.mark.parametrize("deferred", [False, True])
def test_a_policy_that_was_written_comes_back(saved, deferred):
    policy, folder = saved
    # Orthogonal weights, as those of learned noise are, cannot be deferred.
    method = "flow_sde" if deferred else "flow_noise"
    again = load(folder, deferred, add_value_head=True, noise_method=method)
    if deferred:
        from rlinf.models.deferred import assign_parameters, take_deferred

        parts = take_deferred(again).parts(lambda name: None)
        assign_parameters(again, {name: torch.nn.Parameter(part.clone()) for name, part in parts})
    assert again.settings.action_horizon == 3
    own, other = policy.network.state_dict(), again.network.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    one, two = act(policy), act(again)
    torch.testing.assert_close(one[0], two[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one[1]["prev_values"], two[1]["prev_values"], atol=1e-5, rtol=1e-5)


def test_an_export_to_hf_has_the_public_layout(tmp_path):
    policy = make("gr00t")
    export = PolicyExport(policy.state_dict(), section("gr00t"), SPEC, {})
    folder = write_export(export, "hf", tmp_path / "out")
    assert load_file(folder / WEIGHTS).keys() == policy.network.state_dict().keys()
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "gr00t_n1_5" and config["action_horizon"] == 2
    assert config["backbone_cfg"]["select_layer"] == 2
    head = config["action_head_cfg"]
    assert head["diffusion_model_cfg"]["num_layers"] == 4 and head["max_num_embodiments"] == 32
    metadata = json.loads((folder / METADATA).read_text())["new_embodiment"]
    action = metadata["statistics"]["action"]["action"]
    assert action["min"] == [-1, -2, 0] and action["max"] == [1, 2, 4]
    assert metadata["modalities"]["state"]["state"]["shape"] == [5]
    torch.testing.assert_close(act(policy)[0], act(load(folder))[0], atol=1e-5, rtol=1e-5)


def test_weights_in_several_files_are_written_and_read(tmp_path, monkeypatch):
    monkeypatch.setattr(groot_folder, "_SHARD_SIZE", "50KB")
    policy = make("gr00t")
    save_folder(policy, tmp_path)
    assert not (tmp_path / WEIGHTS).exists() and len(list(tmp_path.glob("model-*"))) > 2
    torch.testing.assert_close(act(policy)[0], act(load(tmp_path))[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prefix", ["", "_groot_model."])
def test_names_of_lerobot_tied_heads_and_pooling_are_read(saved, prefix):
    policy, folder = saved
    tensors = load_file(folder / WEIGHTS)
    tensors[LM_HEAD] = tensors.pop(EMBEDDING)
    tensors[POOLING] = torch.zeros(1, 1, 16)
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, folder / WEIGHTS)
    torch.testing.assert_close(act(policy)[0], act(load(folder))[0], atol=1e-5, rtol=1e-5)


def test_a_config_of_lerobot_says_the_type_and_the_chunk(saved):
    policy, folder = saved
    file = folder / "config.json"
    own = {"type": "groot", "chunk_size": 4}
    own["network_sizes"] = json.loads(file.read_text())["network_sizes"]
    file.write_text(json.dumps(own))
    again = load(folder)
    assert again.settings.action_horizon == 4
    assert again.network.state_dict().keys() == policy.network.state_dict().keys()


def test_missing_and_unexpected_tensors_are_named(saved):
    _, folder = saved
    tensors = load_file(folder / WEIGHTS)
    tensors["action_head.up.weight"] = tensors.pop("action_head.future_tokens.weight")
    tensors["action_head.state_encoder.layer1.b"] = torch.zeros(31, 20)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(ValueError) as error:
        load(folder)
    for words in (
        "missing action_head.future_tokens.weight",
        "unexpected action_head.up.weight",
        "action_head.state_encoder.layer1.b is [31, 20] there and [32, 20] here",
    ):
        assert words in str(error.value)


def test_statistics_are_those_of_the_robot_part_by_part(saved):
    _, folder = saved
    file = folder / METADATA

    def numbers(low, high):
        return {"min": low, "max": high, "mean": low, "std": high, "q01": low, "q99": high}

    state = {"arm": numbers([-1, 0, 2], [1, 4, 3]), "hand": numbers([0, 0], [1, 2])}
    action = {"grip": numbers([0], [1]), "arm": numbers([-2, -4], [2, 4])}
    statistics = {"state": state, "action": action}
    file.write_text(json.dumps({"gr1": {"statistics": statistics, "embodiment_tag": "gr1"}}))
    with pytest.raises(ValueError, match=r"statistics of gr1, and none of 'new_embodiment'"):
        load(folder)
    policy = load(folder, embodiment_tag="gr1")
    states = policy.normalizer(torch.tensor([[-1.0, 3.0, 3.0, 0.5, 2.0]]))
    torch.testing.assert_close(states, torch.tensor([[-1.0, 0.5, 1.0, 0.0, 1.0]]))
    assert policy.scale.to_env(torch.tensor([-1.0, 1.0, 0.5])).tolist() == [0.0, 2.0, 2.0]
    turned = load(folder, embodiment_tag="gr1", action_keys=["arm", "grip"])
    assert turned.scale.to_env(torch.tensor([1.0, 0.5, -1.0])).tolist() == [2.0, 2.0, 0.0]
    with pytest.raises(ValueError, match=r"parts arm, hand, and no leg: mend model.state_keys"):
        load(folder, embodiment_tag="gr1", state_keys=["arm", "leg"])
    with pytest.raises(ValueError, match=r"statistics of actions are of 1 numbers, and .* has 3"):
        load(folder, embodiment_tag="gr1", action_keys=["grip"])
    file.unlink()
    with pytest.raises(ValueError, match=r"no statistics .* in experiment_cfg/metadata.json"):
        load(folder)
    given = folder / "dataset_statistics.json"
    own = {"proprio": numbers([-1] * 5, [1] * 5), "action": numbers([-3] * 3, [3] * 3)}
    given.write_text(json.dumps({"mine": own}))
    assert load(folder, statistics_path=str(given)).scale.spread.tolist() == [3, 3, 3]


def test_what_does_not_go_with_a_folder_is_refused(saved, tmp_path):
    _, folder = saved
    with pytest.raises(ValueError, match=r"model.hf_config describes a fresh model"):
        load(folder, hf_config=SECTIONS["gr00t"]["hf_config"])
    with pytest.raises(ValueError, match=r"there is no config.json"):
        load(tmp_path / "nowhere")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"name a folder with it in model.tokenizer_path"):
        load(folder)
    (folder / "config.json").write_text('{"model_type": "Gr00tN1d6"}')
    with pytest.raises(ValueError, match="of a model of type 'Gr00tN1d6', not 'gr00t_n1_5'"):
        load(folder)
