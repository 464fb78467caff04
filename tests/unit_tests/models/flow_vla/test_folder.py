"""Folders in the layouts of lerobot and openpi: there and back, and what does not fit."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlinf.models.embodiment.flow_vla.folder import save_folder
from rlinf.models.export import PolicyExport, write_export
from rlinf.models.registry import get_model
from tests.unit_tests.models.flow_vla.policies import LEROBOT_KINDS, SECTIONS, make, section
from tests.unit_tests.models.openvla.policies import SPEC, observe

WEIGHTS = "model.safetensors"
SIZES = (("proprio", 5), ("action", 3))
PREPROCESSOR = "policy_preprocessor_step_5_normalizer_processor.safetensors"


def load(kind, folder, deferred=False, **keys):
    own = section(kind, model_path=str(folder), hf_config={}, words=[]) | keys
    return get_model(own, SPEC, deferred=deferred)


@pytest.fixture(params=LEROBOT_KINDS)
def kind(request):
    return request.param


@pytest.fixture
def saved(kind, tmp_path):
    policy = make(kind, add_value_head=True, noise_method="flow_noise", action_horizon=3)
    policy.update_normalizer({"states": torch.randn(50, 5)})
    save_folder(policy, tmp_path)
    return policy, tmp_path


@pytest.mark.parametrize("deferred", [False, True])
def test_a_policy_that_was_written_comes_back(kind, saved, deferred):
    policy, folder = saved
    # Orthogonal weights, as those of learned noise are, cannot be deferred.
    method = "flow_sde" if deferred else "flow_noise"
    again = load(kind, folder, deferred, add_value_head=True, noise_method=method)
    if deferred:
        from rlinf.models.deferred import assign_parameters, take_deferred

        parts = take_deferred(again).parts(lambda name: None)
        values = {name: torch.nn.Parameter(part.clone()) for name, part in parts}
        assign_parameters(again, values)
    own, other = policy.state_dict(), again.state_dict()
    assert {name for name in own if not (deferred and "noise_net" in name)} == other.keys()
    running = ("normalizer.mean", "normalizer.var", "normalizer.count")
    for name in other.keys() - set(running):
        torch.testing.assert_close(own[name], other[name], atol=0, rtol=1e-6, msg=name)
    obs = observe(cameras=2)
    one, two = (p.predict_action_batch(obs, mode="eval") for p in (policy, again))
    torch.testing.assert_close(one[0], two[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one[1]["prev_values"], two[1]["prev_values"])
    # What is learned from next does not change how states are scaled.
    shift = again.normalizer.shift.clone()
    again.update_normalizer({"states": torch.full((9, 5), 7.0)})
    assert torch.equal(again.normalizer.shift, shift)


def test_an_export_to_hf_has_the_public_layout(kind, tmp_path):
    policy = make(kind)
    export = PolicyExport(policy.state_dict(), section(kind), SPEC, {})
    folder = write_export(export, "hf", tmp_path / "out")
    again = load(kind, folder)
    one, two = (p.predict_action_batch(observe(cameras=2), mode="eval")[0] for p in (policy, again))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    names = load_file(folder / WEIGHTS).keys()
    network = policy.network
    own = {network.renamed.get(name, name) for name in network.state_dict()} | set(network.unused)
    assert names == {f"model.{name}" for name in own}
    config = json.loads((folder / "config.json").read_text())
    assert config["type"] == kind and config["chunk_size"] == 2
    assert config["output_features"] == {"action": {"type": "ACTION", "shape": [3]}}
    statistics = load_file(folder / PREPROCESSOR)
    assert statistics["action.mean"].tolist() == [0, 0, 2]
    assert statistics["action.std"].tolist() == [1, 2, 2]


def test_names_without_a_prefix_are_read_too(kind, saved):
    policy, folder = saved
    tensors = load_file(folder / WEIGHTS)
    save_file({name.removeprefix("model."): t for name, t in tensors.items()}, folder / WEIGHTS)
    again = load(kind, folder).network.state_dict()
    own = policy.network.state_dict()
    assert all(torch.equal(own[name], again[name]) for name in own)


def test_missing_and_unexpected_tensors_are_named(kind, saved):
    _, folder = saved
    tensors = load_file(folder / WEIGHTS)
    tensors["model.action_up_proj.weight"] = tensors.pop("model.action_in_proj.weight")
    tensors["model.action_in_proj.bias"] = torch.zeros(7)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(ValueError) as error:
        load(kind, folder)
    for words in (
        "missing model.action_in_proj.weight",
        "unexpected model.action_up_proj.weight",
        "model.action_in_proj.bias is [7] there and [24] here",
    ):
        assert words in str(error.value)


def test_statistics_are_used_as_the_folder_says(kind, saved):
    _, folder = saved
    file, config = folder / PREPROCESSOR, folder / "config.json"
    low, high = torch.tensor([-1.0, 0, 2, 0, 0]), torch.tensor([1.0, 4, 3, 1, 1])
    quantiles = {"observation.state.q01": low, "observation.state.q99": high}
    quantiles |= {"action.q01": low[:3].clone(), "action.q99": high[:3].clone()}
    save_file(quantiles, file)
    with pytest.raises(ValueError, match="there is no mean and no std"):
        load(kind, folder)
    said = json.loads(config.read_text())
    said["normalization_mapping"] |= {"STATE": "QUANTILES", "ACTION": "QUANTILES"}
    config.write_text(json.dumps(said))
    policy = load(kind, folder)
    actions = policy.scale.to_env(torch.tensor([[-1.0, 0.5, 1.0]]))
    torch.testing.assert_close(actions, torch.tensor([[-1.0, 3.0, 3.0]]))
    states = policy.normalizer(torch.tensor([[-1.0, 3.0, 3.0, 0.5, 0.0]]))
    torch.testing.assert_close(states, torch.tensor([[-1.0, 0.5, 1.0, 0.0, -1.0]]))
    file.unlink()
    with pytest.raises(ValueError, match="no statistics of states and actions"):
        load(kind, folder)
    plain = {"mean": 0, "std": 1, "q01": -1, "q99": 1}
    own = {which: {name: [n] * count for name, n in plain.items()} for which, count in SIZES}
    own["action"]["mean"][2], own["action"]["mask"] = 9, [True, True, False]
    given = folder / "dataset_statistics.json"
    given.write_text(json.dumps({"mine": own}))
    policy = load(kind, folder, statistics_path=str(given))
    assert policy.scale.shift.tolist() == [0, 0, 0] and policy.scale.spread.tolist() == [1, 1, 1]


def test_a_policy_without_statistics_of_states_comes_back(kind, tmp_path):
    policy = make(kind, normalize_obs=False)
    save_folder(policy, tmp_path)
    obs = observe(cameras=2)
    one, two = (p.predict_action_batch(obs, mode="eval")[0] for p in (policy, load(kind, tmp_path)))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_too_few_statistics_are_told(kind, saved):
    _, folder = saved
    file = folder / PREPROCESSOR
    save_file({name: t[:2].clone() for name, t in load_file(file).items()}, file)
    with pytest.raises(ValueError, match="statistics of actions are of 2 numbers, and .* has 3"):
        load(kind, folder)


def test_what_does_not_go_with_a_folder_is_refused(kind, saved, tmp_path):
    _, folder = saved
    with pytest.raises(ValueError, match=r"model.hf_config describes a fresh model"):
        load(kind, folder, hf_config=SECTIONS[kind]["hf_config"])
    with pytest.raises(ValueError, match=r"there is no config.json"):
        load(kind, tmp_path / "nowhere")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"name a folder with it in model.tokenizer_path"):
        load(kind, folder)
    (folder / "config.json").write_text('{"type": "act"}')
    with pytest.raises(ValueError, match="of a model of type 'act', not"):
        load(kind, folder)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_folders_of_openpi_are_read(kind, tmp_path):
    """They have names without a prefix, another config, and statistics as an asset."""
    policy = make(kind)
    save_folder(policy, tmp_path)
    file, config = tmp_path / WEIGHTS, json.loads((tmp_path / "config.json").read_text())
    plain = {name.removeprefix("model."): t for name, t in load_file(file).items()}
    save_file(plain, file)
    own = {"action_dim": 8, "action_horizon": 4, "network_sizes": config["network_sizes"]}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / PREPROCESSOR).unlink()
    numbers = {"mean": [1.0] * 8, "std": [2.0] * 8, "q01": [0.0] * 8, "q99": [8.0] * 8}
    for asset in ("droid", "libero"):
        (tmp_path / "assets" / asset).mkdir(parents=True)
        asset_file = tmp_path / "assets" / asset / "norm_stats.json"
        asset_file.write_text(json.dumps({"norm_stats": {"state": numbers, "actions": numbers}}))
    with pytest.raises(ValueError, match="choose one of them with model.unnorm_key"):
        load(kind, tmp_path)
    again = load(kind, tmp_path, unnorm_key="libero")
    assert again.settings.action_horizon == 4
    shift, spread = (1.0, 2.0) if kind == "pi0" else (4.0, 4.0)
    torch.testing.assert_close(again.scale.shift, torch.full((3,), shift))
    torch.testing.assert_close(again.scale.spread, torch.full((3,), spread))
    torch.testing.assert_close(again.normalizer.scale, torch.full((5,), 1 / spread))
    name = policy.network.token_embedding
    assert torch.equal(again.network.state_dict()[name], policy.network.state_dict()[name])
    other = {"pi0": "pi05", "pi05": "pi0"}[kind]
    with pytest.raises(ValueError, match="missing .*gemma_expert.*input_layernorm"):
        load(kind, tmp_path, unnorm_key="libero", variant=other)
