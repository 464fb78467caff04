"""An exported policy acts as ours does, to the last bit, without our code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from rlinf.hybrid_engines.initial_weights import load_weights as load_initial
from rlinf.models.export import PolicyExport, write_export
from rlinf.models.export.rlinf_policy import RLinfPolicy, load_policy
from rlinf.models.settings import complete
from rlinf.models.weights import load_weights
from rlinf.utils.env_spec import EnvSpec
from tests.unit_tests.models.conftest import (
    ACTOR_CRITICS,
    FLOW_IMAGES,
    FLOW_POLICIES,
    SMALL_CNN,
    SPEC,
    build_policy,
    draw_obs,
)

DSRL = {"use_dsrl": True, "add_q_head": True, "add_value_head": False, "action_horizon": 3}
VARIANTS = [
    *ACTOR_CRITICS,
    *FLOW_POLICIES,
    {**FLOW_IMAGES, "use_states": False},
    {"model_type": "flow_policy", "num_action_chunks": 2, **DSRL},
    {"add_q_head": True, "add_value_head": False, "distribution": "squashed_gaussian"},
]
UNBOUNDED = EnvSpec(obs_dim=6, action_dim=3, action_low=[-1, -1, -1], action_high=[1, 1, torch.inf])


def export_of(policy, settings, spec=SPEC) -> PolicyExport:
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(complete(settings, None))
    tensors = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    return PolicyExport(tensors, plain, spec, {"step": 3, "env": "walk"})


def settings_of(variant) -> dict:
    variant = {key: value for key, value in variant.items() if key != "spec"}
    base = SMALL_CNN if variant.get("model_type") == "cnn_policy" else {"model_type": "mlp_policy"}
    return {**base, "add_value_head": True, **variant}


def shake(policy) -> None:
    """Gives the policy weights and statistics that are not those of its beginning."""
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> Path:
    """Exports each policy that there is code for, with what ours does with observations."""
    folder = tmp_path_factory.mktemp("exports")
    unknown = EnvSpec(obs_dim=6, action_dim=3)
    one = EnvSpec(obs_dim=6, action_choices=[4], action_low=[1])
    flow = {"model_type": "flow_policy"}
    specs = [{"spec": UNBOUNDED}, {"spec": unknown}, {"spec": one}]
    specs += [{"spec": UNBOUNDED, **flow}, {"spec": unknown, **flow}]
    for number, variant in enumerate([*VARIANTS, *specs]):
        variant = {"spec": SPEC, **variant}
        policy = build_policy(**variant)
        shake(policy)
        policy.update_normalizer(draw_obs(100, seed=5))
        obs = {key: value for key, value in draw_obs(8).items() if value is not None}
        if variant.get("model_type") != "cnn_policy" and not variant.get("use_images"):
            del obs["main_images"]
        out = write_export(
            export_of(policy, settings_of(variant), variant["spec"]), "hf", folder / f"p{number}"
        )
        actions, _ = policy.predict_action_batch(obs, mode="eval")
        values = policy.predict_values(obs) if policy.value_head is not None else None
        torch.save((obs, actions, values), out / "expected.pt")
        # The weights are ours to load again, too.
        again = build_policy(**variant, seed=9)
        (load_initial if variant.get("add_q_head") else load_weights)(again, str(out))
        assert torch.equal(again.predict_action_batch(obs, mode="eval")[0], actions)
    return folder


def assert_acts_alike(policy, folder) -> None:
    obs, expected, values = torch.load(folder / "expected.pt")
    with torch.no_grad():
        actions = policy(**obs)
        assert torch.equal(actions, expected) and actions.dtype == expected.dtype, folder
        own = policy.values(**obs)
    assert (own is None) == (values is None) and (own is None or torch.equal(own, values)), folder


def test_every_policy_acts_the_same_as_plain_pytorch(exports):
    for folder in exports.iterdir():
        assert_acts_alike(load_policy(folder), folder)


LOAD = """
import sys, torch
sys.modules["rlinf"] = None  # whoever imports it fails
from pathlib import Path
torch.set_num_threads(1)
from transformers import AutoModel
for folder in Path(sys.argv[1]).iterdir():
    policy = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    obs, expected, values = torch.load(folder / "expected.pt")
    with torch.no_grad():
        assert torch.equal(policy(**obs), expected), folder
        own = policy.values(**obs)
    assert (own is None) == (values is None) and (own is None or torch.equal(own, values)), folder
    print("equal")
"""


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_every_policy_acts_the_same_in_transformers(exports, tmp_path):
    environ = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(exports)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == len(VARIANTS) + 5


def test_pictures_of_another_size_are_scaled_as_ours_are(make_policy, make_obs):
    policy = make_policy("cnn_policy", image_size=16, channels=[8])
    shake(policy)
    settings = settings_of({"model_type": "cnn_policy", "image_size": 16, "channels": [8]})
    plain = RLinfPolicy(export_of(policy, settings).config())
    plain.load_state_dict(policy.state_dict())
    obs = {key: value for key, value in make_obs(4).items() if value is not None}
    assert torch.equal(plain(**obs), policy.predict_action_batch(obs, mode="eval")[0])
    with pytest.raises(ValueError, match="needs 'main_images'"):
        plain(states=obs["states"])
    with pytest.raises(ValueError, match="'states' of 6 numbers"):
        plain(**{**obs, "states": obs["states"][:, :4]})


def test_the_readme_of_a_folder_runs(make_policy, tmp_path):
    policy = make_policy("cnn_policy", use_states=True)
    settings = settings_of({"model_type": "cnn_policy"})
    folder = write_export(export_of(policy, settings), "safetensors", tmp_path / "policy")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "rlinf_policy.py",
    ]
    text = (folder / "README.md").read_text()
    assert "step 3, env walk" in text
    code = "import sys\nsys.modules['rlinf'] = None\n"
    code += "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    code += "\nassert actions.shape == (1, 1, 3) and 'log_std' in weights"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=60)
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == "cnn_policy" and config["settings"]["channels"] == [8, 16]
    assert config["action_low"] == [-1, -2, 0] and config["trained"]["step"] == 3


def test_a_model_of_ones_own_is_written_as_tensors_only(tmp_path):
    own = PolicyExport(
        {"w": torch.ones(2)}, {"model_type": "Waves", "waves": 8}, SPEC, {"step": 1, "env": "x"}
    )
    folder = write_export(own, "safetensors", tmp_path / "waves")
    assert not (folder / "rlinf_policy.py").exists()
    assert "The model type `waves` is not one of RLinf's own" in (folder / "README.md").read_text()
    with pytest.raises(ValueError, match="no class for model type 'waves'.*--to safetensors"):
        write_export(own, "hf", tmp_path / "other")
    assert not (tmp_path / "other").exists() and len(list(tmp_path.iterdir())) == 1


def test_settings_of_an_earlier_version_are_refused(make_policy, tmp_path):
    export = export_of(make_policy(), settings_of({}))
    old = {key: value for key, value in export.settings.items() if key != "distribution"}
    with pytest.raises(ValueError, match="do not say which distribution .* save it again"):
        write_export(PolicyExport(export.tensors, old, SPEC, {}), "hf", tmp_path / "old")


def test_what_is_in_the_way(make_policy, tmp_path):
    export = export_of(make_policy(), settings_of({}))
    with pytest.raises(ValueError, match="unknown format 'safetensor'; known: hf, safetens"):
        write_export(export, "safetensor", tmp_path / "a")
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep me")
    with pytest.raises(ValueError, match="full is not an empty folder"):
        write_export(export, "hf", full)
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert (write_export(export, "hf", tmp_path / "empty") / "config.json").exists()
    broken = PolicyExport({"x": torch.ones(1)}, export.settings, SPEC, {})
    with pytest.raises(ValueError, match="missing log_std"):
        write_export(broken, "hf", tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
