"""Weights to begin with: from wherever they were written, and never from another model."""

import pytest
import torch
from safetensors.torch import save_file

from rlinf.hybrid_engines.initial_weights import load_initial_weights
from tests.unit_tests.workers.actor.learning import make_cfg, make_policy


@pytest.fixture
def trained():
    return make_policy(make_cfg(), seed=5).state_dict()


def begin(path, **changes):
    policy = make_policy(make_cfg(changes))
    load_initial_weights(policy, make_cfg({"runner.ckpt_path": str(path)}))
    return policy.state_dict()


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in other)


def test_a_file(trained, tmp_path):
    assert not same(make_policy(make_cfg()).state_dict(), trained)
    save_file(trained, tmp_path / "weights.safetensors")
    assert same(begin(tmp_path / "weights.safetensors"), trained)
    assert same(begin(tmp_path), trained)
    torch.save(trained, tmp_path / "weights.pt")
    assert same(begin(tmp_path / "weights.pt"), trained)


def test_a_place_below_the_home_of_the_user(trained, tmp_path, monkeypatch):
    save_file(trained, tmp_path / "weights.safetensors")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert same(begin("~/weights.safetensors"), trained)


def test_the_older_name_of_the_key(trained, tmp_path):
    save_file(trained, tmp_path / "w.safetensors")
    path = str(tmp_path / "w.safetensors")
    policy = make_policy(make_cfg())
    load_initial_weights(policy, make_cfg({"actor.checkpoint_load_path": path}))
    assert same(policy.state_dict(), trained)
    both = make_cfg({"actor.checkpoint_load_path": path, "runner.ckpt_path": "/other"})
    with pytest.raises(ValueError, match=r"runner.ckpt_path is /other and .* keep one of them"):
        load_initial_weights(policy, both)


def test_without_a_path_nothing_happens():
    policy = make_policy(make_cfg())
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    load_initial_weights(policy, make_cfg())
    assert same(policy.state_dict(), before)


def test_weights_of_another_model_are_refused(trained, tmp_path):
    name = next(name for name in trained if name.endswith("weight"))
    wrong = dict(trained)
    wrong["further"] = wrong.pop(name)
    save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError) as caught:
        begin(tmp_path / "wrong.safetensors")
    assert f"it lacks {name}" in str(caught.value) and "also has further" in str(caught.value)
    save_file(trained, tmp_path / "wide.safetensors")
    with pytest.raises(ValueError, match=r"is \[16, 5\] there and \[8, 5\] here"):
        begin(tmp_path / "wide.safetensors", **{"actor.model.hidden_sizes": [8]})


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(ValueError, match="there is no such file or folder"):
        begin(tmp_path / "nowhere")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="is not a state dict"):
        begin(tmp_path / "list.pt")


def test_a_value_function_that_was_not_trained_begins_afresh(trained, tmp_path):
    without = {name: tensor for name, tensor in trained.items() if "value_head" not in name}
    save_file(without, tmp_path / "w.safetensors")
    policy = make_policy(make_cfg(), seed=1)
    fresh = {k: v.clone() for k, v in policy.state_dict().items() if "value_head" in k}
    note = load_initial_weights(policy, make_cfg({"runner.ckpt_path": str(tmp_path)}))
    assert note.endswith("has no value_head: begun afresh")
    assert same(policy.state_dict(), without | fresh)


def test_a_value_function_that_nobody_needs_is_left(trained, tmp_path):
    save_file(trained, tmp_path / "w.safetensors")
    cfg = {"actor.model.add_value_head": False, "algorithm.loss_type": "actor"}
    policy = make_policy(make_cfg(cfg))
    assert load_initial_weights(policy, make_cfg({"runner.ckpt_path": str(tmp_path)})) == ""
    assert same(trained, policy.state_dict())


def test_half_a_value_function_is_refused(trained, tmp_path):
    names = [name for name in trained if "value_head" in name]
    save_file({k: v for k, v in trained.items() if k != names[0]}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=f"it lacks {names[0]}"):
        begin(tmp_path)


def test_learned_noise_that_was_not_trained_begins_afresh(tmp_path):
    flow = {"actor.model.model_type": "flow_policy"}
    noisy = {**flow, "actor.model.noise_method": "flow_noise"}
    supervised = make_policy(make_cfg(flow), seed=5).state_dict()
    save_file(supervised, tmp_path / "w.safetensors")
    policy = make_policy(make_cfg(noisy))
    cfg = make_cfg({"runner.ckpt_path": str(tmp_path / "w.safetensors")})
    assert load_initial_weights(policy, cfg).endswith("has no noise_net: begun afresh")
    assert same(policy.state_dict(), supervised)


def test_an_actor_that_steers_a_trained_flow_begins_afresh(tmp_path):
    supervised = make_policy(
        make_cfg({"actor.model": {"model_type": "flow_policy"}, "algorithm.loss_type": "actor"}),
        seed=5,
    ).state_dict()
    save_file(supervised, tmp_path / "w.safetensors")
    steered = {
        "algorithm": {"adv_type": "embodied_sac", "loss_type": "embodied_sac"},
        "actor.global_batch_size": 16,
        "actor.model": {"model_type": "flow_policy", "use_dsrl": True, "add_q_head": True},
    }
    policy = make_policy(make_cfg(steered))
    cfg = make_cfg({"runner.ckpt_path": str(tmp_path / "w.safetensors")})
    said = load_initial_weights(policy, cfg)
    assert said.endswith("has no q_head, steering: begun afresh")
    assert same(policy.state_dict(), supervised)
