"""Folders of models with FiLM, whose towers have a file of their own with adapters in it."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlinf.models.deferred import assign_parameters, take_deferred
from rlinf.models.embodiment.openvla.folder import save_folder
from rlinf.models.registry import get_model
from tests.unit_tests.models.openvla.policies import SPEC, TOWERS, make, observe

OF_STATES = ("normalizer.", "network.proprio_projector.fc1.weight")
"""What the layout holds in its own scale."""
KEYS = {"num_images_in_input": 2, "use_film": True}
SECTION = {"prompt": "{task}", "max_prompt_length": 6, "num_action_chunks": 2}
FILE = "vision_backbone--latest_checkpoint.pt"
DINO, SIGLIP = "vision_backbone.featurizer", "vision_backbone.fused_featurizer"
RANK = 4


def load(folder, kind="openvla_oft", deferred=False, **keys):
    section = {"model_type": kind, "model_path": str(folder)} | SECTION | keys
    return get_model(section, SPEC, deferred=deferred)


@pytest.fixture
def saved(tmp_path):
    policy = make(vision_towers=TOWERS, **KEYS)
    # With FiLM as it begins, an instruction changes little.
    with torch.no_grad():
        for name, parameter in policy.network.named_parameters():
            if ".scale." in name or ".shift." in name:
                parameter.normal_()
    policy.update_normalizer({"states": torch.randn(50, 5)})
    save_folder(policy, tmp_path)
    return policy, tmp_path


def film_shapes(rank):
    """What the layout says is in the file, by name; biases besides."""
    shapes = {}
    for tower, size, mlp in ((DINO, 16, 24), (SIGLIP, 12, 20)):
        linear = {}
        for n in range(3):
            block = f"{tower}.blocks.{n}"
            linear |= {
                f"{block}.block.attn.qkv": (3 * size, size),
                f"{block}.block.attn.proj": (size, size),
                f"{block}.block.mlp.fc1": (mlp, size),
                f"{block}.block.mlp.fc2": (size, mlp),
            }
            for which in ("scale", "shift"):
                shapes |= {f"{block}.{which}.weight": (size, 32), f"{block}.{which}.bias": (size,)}
            for which in ("norm1", "norm2"):
                shapes |= {f"{block}.block.{which}.{k}": (size,) for k in ("weight", "bias")}
            if tower == DINO:
                shapes |= {f"{block}.block.ls{i}.scale_factor": (size,) for i in (1, 2)}
        shapes |= {
            f"{tower}.patch_embed.proj.weight": (size, 3, 4, 4),
            f"{tower}.patch_embed.proj.bias": (size,),
            f"{tower}.pos_embed": (1, 4, size),
            f"{tower}.norm.weight": (size,),
            f"{tower}.norm.bias": (size,),
        }
        if tower == DINO:
            shapes |= {f"{tower}.cls_token": (1, 1, 16), f"{tower}.reg_token": (1, 2, 16)}
        else:
            pool = f"{tower}.attn_pool"
            shapes |= {f"{pool}.latent": (1, 1, 12)}
            shapes |= {f"{pool}.norm.weight": (12,), f"{pool}.norm.bias": (12,)}
            linear |= {f"{pool}.q": (12, 12), f"{pool}.kv": (24, 12), f"{pool}.proj": (12, 12)}
            linear |= {f"{pool}.mlp.fc1": (20, 12), f"{pool}.mlp.fc2": (12, 20)}
        for name, (outputs, inputs) in linear.items():
            shapes |= {
                f"{name}.base_layer.weight": (outputs, inputs),
                f"{name}.base_layer.bias": (outputs,),
                f"{name}.lora_A.default.weight": (rank, inputs),
                f"{name}.lora_B.default.weight": (outputs, rank),
            }
    return shapes


def test_names_and_shapes_are_those_of_the_public_layout(saved):
    _, folder = saved
    file = torch.load(folder / FILE, weights_only=True)
    assert {name: tuple(t.shape) for name, t in file.items()} == film_shapes(rank=32)
    # The other file is that of a model without FiLM.
    main = load_file(folder / "model.safetensors")
    assert f"{DINO}.blocks.0.attn.qkv.weight" in main
    assert not any(".scale." in name or ".shift." in name for name in main)
    # Adapters can go on learning there, and change nothing before they do.
    assert all(not t.any() for name, t in file.items() if ".lora_B." in name)
    assert all(t.any() for name, t in file.items() if ".lora_A." in name)


@pytest.mark.parametrize("is_lora", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
def test_a_policy_that_was_written_comes_back(tmp_path, saved, deferred, is_lora):
    policy, folder = saved
    if is_lora:
        policy = load(folder, is_lora=True, lora_rank=2, **KEYS)
        with torch.no_grad():
            for name, parameter in policy.network.named_parameters():
                if ".lora_B." in name:
                    parameter.normal_()
        folder = tmp_path / "adapted"
        save_folder(policy, folder)
    again = load(folder, deferred=deferred, **KEYS)
    if deferred:
        parts = take_deferred(again).parts(lambda name: None)
        values = {name: torch.nn.Parameter(part.clone()) for name, part in parts}
        assign_parameters(again, values)
    obs = observe(cameras=2)
    one, two = (
        p.predict_action_batch(obs, mode="eval")[1]["prev_logprobs"] for p in (policy, again)
    )
    torch.testing.assert_close(one, two, atol=1e-5 if is_lora else 1e-6, rtol=0.0)
    if not is_lora:
        own, other = policy.state_dict(), again.state_dict()
        assert own.keys() == other.keys()
        assert all(torch.equal(own[n], other[n]) for n in own if not n.startswith(OF_STATES))


def public_file(folder, seed=1):
    """Write a file as OpenVLA-OFT's finetuning leaves it; return it with its adapters applied."""
    rng = torch.Generator().manual_seed(seed)
    drawn = {n: torch.randn(s, generator=rng) for n, s in film_shapes(RANK).items()}
    (folder / FILE).unlink(missing_ok=True)
    wrapped = {f"module.{name}": tensor for name, tensor in drawn.items()}
    torch.save(wrapped, folder / "vision_backbone--1500_checkpoint.pt")
    expected = {}
    for name, tensor in drawn.items():
        plain = name.replace(".block.", ".").replace(".base_layer", "")
        if ".base_layer.weight" in name:
            a, b = (drawn[name.replace("base_layer", f"lora_{w}.default")] for w in "AB")
            # alpha is 4 at rank 4: it is the rank, but at most 16.
            expected[plain] = tensor + b @ a
        elif ".lora_" not in name:
            expected[plain] = tensor
    return expected


def test_a_public_file_is_read_with_its_adapters(saved):
    _, folder = saved
    expected = public_file(folder)
    # Towers of the safetensors files do not count beside it.
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if "vision" not in n}, folder / "model.safetensors")
    policy = load(folder, **KEYS)
    own = {n: t for n, t in policy.network.state_dict().items() if n.startswith("vision")}
    assert own.keys() == expected.keys()
    for name, tensor in own.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-5)
    # A rank reads its own rows only.
    deferred = load(folder, deferred=True, **KEYS)
    names = [f"network.{DINO}.blocks.1.attn.qkv.weight", f"network.{SIGLIP}.blocks.0.scale.bias"]
    parts = dict(take_deferred(deferred).parts(lambda name: (3, 7)))
    for name in names:
        torch.testing.assert_close(parts[name], expected[name.removeprefix("network.")][3:7])


def test_adapters_of_a_high_rank_count_less(saved):
    _, folder = saved
    file = torch.load(folder / FILE, weights_only=True)
    name = f"{DINO}.blocks.0.block.mlp.fc2"
    file[f"{name}.lora_B.default.weight"].fill_(1.0)
    torch.save(file, folder / FILE)
    change = file[f"{name}.lora_A.default.weight"].sum(0).expand(16, -1)
    expected = file[f"{name}.base_layer.weight"] + 0.5 * change
    policy = load(folder, **KEYS)
    found = policy.network.vision_backbone.featurizer.blocks[0].mlp.fc2.weight
    torch.testing.assert_close(found.detach(), expected)


def test_missing_and_unexpected_tensors_are_named(saved):
    _, folder = saved
    file = torch.load(folder / FILE, weights_only=True)
    first = f"{DINO}.blocks.1"
    wrong = dict(file)
    wrong[f"{first}.gate.weight"] = wrong.pop(f"{first}.scale.weight")
    wrong[f"{first}.shift.bias"] = torch.zeros(7)
    torch.save(wrong, folder / FILE)
    with pytest.raises(ValueError) as error:
        load(folder, **KEYS)
    for words in (
        FILE,
        f"missing {first}.scale.weight",
        f"unexpected {first}.gate.weight",
        f"{first}.shift.bias is [7] there and [16] here",
    ):
        assert words in str(error.value)
    half = f"{first}.block.attn.proj.lora_B.default.weight"
    torch.save({name: t for name, t in file.items() if name != half}, folder / FILE)
    with pytest.raises(ValueError, match=f"misses {half}"):
        load(folder, **KEYS)


def test_film_and_folder_come_together(saved):
    _, folder = saved
    with pytest.raises(ValueError, match=r"vision_backbone--latest.*set .*use_film: true"):
        load(folder, num_images_in_input=2)
    with pytest.raises(ValueError, match=r"vision_backbone--latest.*openvla_oft"):
        load(folder, "openvla", num_images_in_input=2)


def test_a_policy_without_film_takes_the_place_of_one_with_it(saved):
    _, folder = saved
    torch.save({}, folder / "vision_backbone--1500_checkpoint.pt")
    keys = {name: value for name, value in KEYS.items() if name != "use_film"}
    plain = make(vision_towers=TOWERS, **keys)
    save_folder(plain, folder)
    own, other = plain.state_dict(), load(folder, **keys).state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[n], other[n]) for n in own if not n.startswith(OF_STATES))
