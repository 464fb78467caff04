"""Folders in the layout of OpenVLA: names and shapes, there and back, and what does not fit."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlinf.models.embodiment.openvla.folder import save_folder, towers_in
from rlinf.models.embodiment.openvla.vision import DINOV2, SIGLIP
from rlinf.models.export import PolicyExport, write_export
from rlinf.models.registry import get_model
from tests.unit_tests.models.openvla.policies import LLM, SPEC, TOWERS, make, observe, section

SECTION = {"prompt": "{task}", "max_prompt_length": 6, "num_action_chunks": 2}
CAMERAS = {"num_images_in_input": 2}
SCALED = "network.proprio_projector.fc1.weight"


def load(folder, kind="openvla_oft", **keys):
    section = {"model_type": kind, "model_path": str(folder)} | SECTION | CAMERAS | keys
    return get_model(section, SPEC)


@pytest.fixture
def saved(tmp_path):
    policy = make(vision_towers=TOWERS, **CAMERAS, add_value_head=True)
    policy.update_normalizer({"states": torch.randn(50, 5)})
    save_folder(policy, tmp_path)
    return policy, tmp_path


def tower_shapes(prefix, size, depth, mlp, patches, registers):
    """What the layout says of a tower, by name."""
    shapes = {
        "patch_embed.proj.weight": (size, 3, 4, 4),
        "patch_embed.proj.bias": (size,),
        "pos_embed": (1, patches, size),
        "norm.weight": (size,),
        "norm.bias": (size,),
    }
    if registers:
        shapes |= {"cls_token": (1, 1, size), "reg_token": (1, registers, size)}
    for n in range(depth):
        block = {
            "attn.qkv": (3 * size, size),
            "attn.proj": (size, size),
            "mlp.fc1": (mlp, size),
            "mlp.fc2": (size, mlp),
            "norm1": (size,),
            "norm2": (size,),
        }
        for name, shape in block.items():
            shapes |= {f"blocks.{n}.{name}.weight": shape, f"blocks.{n}.{name}.bias": shape[:1]}
        if registers:
            shapes |= {f"blocks.{n}.ls{i}.scale_factor": (size,) for i in (1, 2)}
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def test_names_and_shapes_are_those_of_the_public_layout(saved):
    _, folder = saved
    found = {name: tuple(t.shape) for name, t in load_file(folder / "model.safetensors").items()}
    dino = tower_shapes("vision_backbone.featurizer", 16, 3, 24, 4, 2)
    siglip = tower_shapes("vision_backbone.fused_featurizer", 12, 3, 20, 4, 0)
    pool = {name for name in found if ".attn_pool." in name}
    assert all(name.startswith("vision_backbone.fused_featurizer.") for name in pool)
    kinds = {name.split("attn_pool.")[1].split(".")[0] for name in pool}
    assert kinds == {"latent", "q", "kv", "proj", "norm", "mlp"}
    # 28 channels of both towers; four times as many, then the hidden size of the language model.
    projector = {
        "projector.fc1.weight": (112, 28),
        "projector.fc1.bias": (112,),
        "projector.fc2.weight": (32, 112),
        "projector.fc2.bias": (32,),
        "projector.fc3.weight": (32, 32),
        "projector.fc3.bias": (32,),
    }
    rows = 3 + 5 + 16 + 64
    llama = {
        "language_model.model.embed_tokens.weight": (rows, 32),
        "language_model.lm_head.weight": (rows, 32),
        "language_model.model.norm.weight": (32,),
    }
    for n in range(2):
        layer = {
            "self_attn.q_proj": (32, 32),
            "self_attn.k_proj": (16, 32),
            "self_attn.v_proj": (16, 32),
            "self_attn.o_proj": (32, 32),
            "mlp.gate_proj": (48, 32),
            "mlp.up_proj": (48, 32),
            "mlp.down_proj": (32, 48),
            "input_layernorm": (32,),
            "post_attention_layernorm": (32,),
        }
        prefix = f"language_model.model.layers.{n}"
        llama |= {f"{prefix}.{name}.weight": shape for name, shape in layer.items()}
    expected = dino | siglip | projector | llama
    assert {n: s for n, s in found.items() if n not in pool} == expected
    proprio = torch.load(folder / "proprio_projector--latest_checkpoint.pt", weights_only=True)
    assert {name: tuple(t.shape) for name, t in proprio.items()} == {
        "fc1.weight": (32, 5),
        "fc1.bias": (32,),
        "fc2.weight": (32, 32),
        "fc2.bias": (32,),
    }
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "openvla" and config["n_action_bins"] == 16
    assert config["text_config"]["vocab_size"] == rows and config["pad_to_multiple_of"] == 64
    statistics = json.loads((folder / "dataset_statistics.json").read_text())
    assert statistics["rlinf"]["action"]["q99"] == [1, 2, 4]
    assert (folder / "tokenizer.json").is_file()


def test_sizes_of_the_published_towers():
    config = {
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"]
    }
    assert towers_in(config) == [DINOV2, SIGLIP]
    assert DINOV2.patches == SIGLIP.patches == 256
    assert DINOV2.embed_dim + SIGLIP.embed_dim == 2176
    with pytest.raises(ValueError, match=r"tower resnet is not known; known: vit_large"):
        towers_in({"timm_model_ids": ["resnet"]})


@pytest.mark.parametrize("deferred", [False, True])
def test_a_policy_that_was_written_comes_back(saved, deferred):
    policy, folder = saved
    keys = {"model_type": "openvla_oft", "model_path": str(folder), "add_value_head": True}
    again = get_model(keys | SECTION | CAMERAS, SPEC, deferred=deferred)
    if deferred:
        from rlinf.models.deferred import assign_parameters, take_deferred

        parts = take_deferred(again).parts(lambda name: None)
        values = {name: torch.nn.Parameter(part.clone()) for name, part in parts}
        assign_parameters(again, values)
    own, other = policy.state_dict(), again.state_dict()
    assert own.keys() == other.keys()
    # States are scaled to [-1, 1] there, and the projector takes the factor.
    changed = {name for name in own if not torch.equal(own[name], other[name])}
    assert all(name.startswith("normalizer.") for name in changed - {SCALED}), changed
    torch.testing.assert_close(own[SCALED] * policy.normalizer.clip, other[SCALED])
    obs = observe(cameras=2)
    obs["states"][0] = 1e4
    one, two = (p.predict_action_batch(obs, mode="eval") for p in (policy, again))
    assert torch.equal(one[0], two[0])
    torch.testing.assert_close(one[1]["prev_values"], two[1]["prev_values"])


def test_a_public_folder_goes_there_and_back_and_there(saved, tmp_path):
    """Quantiles, the name of the dataset and all tensors are what they were."""
    _, folder = saved
    file = folder / "dataset_statistics.json"
    found = json.loads(file.read_text())["rlinf"]
    found["proprio"] = {"q01": [-1.0, -2.0, 0.0, 0.5, 3.0], "q99": [1.0, 2.0, 4.0, 0.5, 4.0]}
    file.write_text(json.dumps({"libero_no_noops": found, "other": found | {"proprio": {}}}))
    first = load(folder, unnorm_key="libero")
    save_folder(first, tmp_path / "again")
    written = json.loads((tmp_path / "again" / file.name).read_text())
    assert list(written) == ["libero_no_noops"]
    assert written["libero_no_noops"]["proprio"] == {
        name: pytest.approx(values, abs=1e-6) for name, values in found["proprio"].items()
    }
    again = load(tmp_path / "again", unnorm_key="libero")
    own, other = first.state_dict(), again.state_dict()
    assert all(torch.allclose(own[name], other[name], rtol=1e-5) for name in own)
    # Beyond the quantiles states are clipped, as they were.
    states = torch.tensor([[9.0, -9.0, 9.0, 9.0, -9.0]])
    expected = torch.tensor([[1.0, -1.0, 1.0, 1.0, -1.0]])
    assert torch.equal(again.normalizer(states), expected)
    assert torch.equal(first.normalizer(states), expected)


def test_a_policy_that_saw_no_state_yet_gets_its_statistics_from_the_first_batch(tmp_path):
    fresh = make(vision_towers=TOWERS, **CAMERAS)
    save_folder(fresh, tmp_path)
    again = load(tmp_path)
    own, other = fresh.state_dict(), again.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)
    states = 3.0 + 5.0 * torch.randn(50, 5)
    for policy in (fresh, again):
        policy.update_normalizer({"states": states})
    assert torch.equal(again.normalizer(states), fresh.normalizer(states))
    assert again.normalizer(states).abs().max() > 1.0


def test_what_is_done_to_pictures_is_written_down(saved):
    _, folder = saved
    found = json.loads((folder / "preprocessor_config.json").read_text())
    assert found["input_sizes"] == [[3, 8, 8], [3, 8, 8]] and found["use_fused_vision_backbone"]
    assert found["means"] == [[0.484375, 0.455078125, 0.40625], [0.5, 0.5, 0.5]]
    assert found["interpolations"] == ["bicubic", "bicubic"]


@pytest.mark.parametrize(("before", "after"), [(32, 8), (20, 8), (6, 8)])
def test_pictures_are_resized_as_the_image_processor_does(before, after):
    from PIL import Image

    policy = make(vision_towers=TOWERS, **CAMERAS)
    obs = observe(cameras=2, size=before)
    found = policy.policy_inputs(obs)["images"]
    assert found.shape[2:4] == (after, after)
    picture = Image.fromarray(obs["main_images"][0].numpy())
    expected = torch.tensor(np.array(picture.resize((after, after), Image.Resampling.BICUBIC)))
    # Pillow rounds once more in between.
    assert (found[0, 0].float() - expected.float()).abs().mean() < 0.6


def test_an_export_to_hf_has_the_public_layout(tmp_path):
    policy = make()
    export = PolicyExport(policy.state_dict(), section(), SPEC, {})
    folder = write_export(export, "hf", tmp_path / "out")
    again = load(folder, num_images_in_input=0)
    one, two = (p.predict_action_batch(observe(), mode="eval")[0] for p in (policy, again))
    assert torch.equal(one, two)


def test_the_same_folder_serves_the_policy_that_decodes_one_token_after_the_other(saved):
    policy, folder = saved
    one = load(folder, "openvla")
    two = make("openvla", vision_towers=TOWERS, **CAMERAS)
    two.load_state_dict({n: t for n, t in policy.state_dict().items() if "value_head" not in n})
    assert one.normalizer.clip == 1.0 and two.normalizer.clip == 10.0
    obs = observe(cameras=2)
    results = [p.predict_action_batch(obs, mode="eval")[0] for p in (one, two)]
    assert torch.equal(*results)


def test_missing_and_unexpected_tensors_are_named(saved):
    _, folder = saved
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["projector.fc4.weight"] = tensors.pop("projector.fc3.weight")
    tensors["projector.fc3.bias"] = torch.zeros(7)
    save_file(tensors, file)
    with pytest.raises(ValueError) as error:
        load(folder)
    for words in (
        "missing projector.fc3.weight",
        "unexpected projector.fc4.weight",
        "projector.fc3.bias is [7] there and [32] here",
    ):
        assert words in str(error.value)


def test_files_of_parts_may_be_numbered_and_wrapped(saved):
    policy, folder = saved
    file = folder / "proprio_projector--latest_checkpoint.pt"
    state = torch.load(file, weights_only=True)
    file.unlink()
    torch.save(
        {f"module.{k}": v * 0 for k, v in state.items()},
        folder / file.name.replace("latest", "500"),
    )
    torch.save(
        {f"module.{k}": v for k, v in state.items()}, folder / file.name.replace("latest", "1500")
    )
    again = load(folder).network.proprio_projector
    assert torch.equal(again.fc1.weight, state["fc1.weight"])
    assert torch.equal(again.fc2.weight, policy.network.proprio_projector.fc2.weight)


def test_states_are_scaled_by_the_quantiles_of_a_public_folder(saved):
    _, folder = saved
    file = folder / "dataset_statistics.json"
    statistics = json.loads(file.read_text())
    del statistics["rlinf"]["proprio"]
    file.write_text(json.dumps(statistics))
    with pytest.raises(ValueError, match="no q01 and q99 of proprio"):
        load(folder)
    statistics["rlinf"]["proprio"] = {"q01": [-1, -2, 0, 0, 0], "q99": [1, 2, 4, 1, 1]}
    statistics["other"] = statistics["rlinf"]
    file.write_text(json.dumps(statistics))
    with pytest.raises(ValueError, match=r"statistics of other, rlinf: choose one of them"):
        load(folder)
    policy = load(folder, unnorm_key="rlinf")
    states = torch.tensor([[-1.0, 2.0, 3.0, 0.5, 9.0]])
    expected = torch.tensor([[-1.0, 1.0, 0.5, 0.0, 1.0]])
    torch.testing.assert_close(policy.normalizer(states), expected)
    policy.update_normalizer({"states": torch.zeros(10, 5)})
    torch.testing.assert_close(policy.normalizer(states), expected)


def test_what_does_not_go_with_a_folder_is_refused(saved, tmp_path):
    _, folder = saved
    with pytest.raises(ValueError, match=r"model.hf_config describes a fresh model"):
        load(folder, hf_config=LLM)
    with pytest.raises(ValueError, match="cameras and towers come together"):
        load(folder, num_images_in_input=0)
    with pytest.raises(ValueError, match=r"use_film is true.* has no vision_backbone--latest"):
        load(folder, use_film=True)
    (folder / "proprio_projector--latest_checkpoint.pt").unlink()
    with pytest.raises(ValueError, match="set model.use_proprio to false"):
        load(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="of type 'llama', not of 'openvla'"):
        load(folder)
    with pytest.raises(ValueError, match=r"there is no config.json"):
        load(tmp_path / "nowhere")
