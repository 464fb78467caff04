"""Adapters of policies: what learns, what they begin with, and what becomes of them in folders."""

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import fully_shard

from rlinf.hybrid_engines.fsdp.fill import fill
from rlinf.hybrid_engines.fsdp.memory import TrainingBytes
from rlinf.hybrid_engines.initial_weights import load_weights
from rlinf.models.deferred import assign_parameters, take_deferred
from rlinf.models.embodiment.adapters import merged_state
from rlinf.models.embodiment.flow_vla.folder import save_folder as save_flow
from rlinf.models.embodiment.flow_vla.groot.folder import save_folder as save_groot
from rlinf.models.embodiment.openvla.folder import save_folder as save_tokens
from rlinf.models.export import PolicyExport, write_export
from rlinf.models.registry import get_model
from rlinf.utils.shards import cut, own_part, own_rows
from tests.unit_tests.models.flow_vla import policies as flow
from tests.unit_tests.models.openvla import policies as tokens

LORA = {"is_lora": True, "lora_rank": 4, "lora_alpha": 8}
TOKENS = ("openvla", "openvla_oft")
KINDS = (*TOKENS, "smolvla", "pi0", "pi05", "gr00t")
CAMERAS = {"num_images_in_input": 2}


def base(kind, **keys):
    """Make a policy without adapters."""
    if kind in TOKENS:
        return tokens.make(kind, vision_towers=tokens.TOWERS, **CAMERAS, **keys)
    return flow.make(kind, **keys)


def from_folder(kind, folder, deferred=False, **keys):
    """Load a policy of these kinds from a folder."""
    own = tokens.section(kind, **CAMERAS) if kind in TOKENS else flow.section(kind)
    own |= {"hf_config": {}, "words": [], "model_path": str(folder)}
    return get_model(own | keys, tokens.SPEC, deferred=deferred)


def save(policy, kind, folder):
    """Write a policy into a folder in the public layout."""
    writers = {"gr00t": save_groot} | dict.fromkeys(TOKENS, save_tokens)
    writers.get(kind, save_flow)(policy, folder)
    return folder


def learn(policy, seed=7):
    """Give adapters weights that are not zero."""
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=rng)
    return policy


def filled(policy):
    """Fill in the weights that were left out while a policy was built."""
    parts = take_deferred(policy).parts(lambda name: None)
    assign_parameters(policy, {name: torch.nn.Parameter(part.clone()) for name, part in parts})
    return policy


def see():
    return tokens.observe(cameras=2, size=8)


def act(policy, seed=3):
    """Return actions, log-probabilities and values of a rollout step with given noise."""
    noise = torch.randn(4, policy.noise_width, generator=torch.Generator().manual_seed(seed))
    actions, result = policy.predict_action_batch(see(), noise=noise)
    return actions, result


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tmp_path):
    policy = base(kind)
    policy.update_normalizer({"states": torch.randn(50, 5)})
    return save(policy, kind, tmp_path / "base")


def test_fresh_adapters_change_nothing(kind, folder):
    plain, adapted = from_folder(kind, folder), from_folder(kind, folder, **LORA)
    (one, told), (two, other) = act(plain), act(adapted)
    assert torch.equal(one, two)
    assert torch.equal(told["prev_logprobs"], other["prev_logprobs"])
    assert any(".lora_A." in name for name in adapted.state_dict())


def test_only_adapters_and_heads_learn(kind, folder):
    more = {} if kind in TOKENS else {"noise_method": "flow_noise", "joint_logprob": True}
    policy = learn(from_folder(kind, folder, add_value_head=True, **LORA, **more))
    inputs = act(policy)[1]["forward_inputs"]
    out = policy(forward_inputs=inputs, compute_values=True)
    (out["logprobs"].sum() + out["values"].sum()).backward()
    found = {n for n, p in policy.named_parameters() if p.grad is not None and p.grad.abs().sum()}
    assert all(".lora_" in name for name in found if policy.network.is_base(name[8:]))
    heads = {name.split(".")[0] for name in found} | {
        name.split(".")[1] for name in found if ".lora_" not in name
    }
    expected = {"value_head", "network", "proprio_projector" if kind in TOKENS else "noise_net"}
    trained = {"action_in_proj", "action_out_proj"} if kind not in TOKENS else set()
    expected |= {"action_head"} if kind == "gr00t" else trained
    assert expected <= heads
    places = ("vision", "language_model" if kind in (*TOKENS, "gr00t") else "expert")
    assert all(any(place in n for n in found if ".lora_B." in n) for place in places)
    for name, parameter in policy.named_parameters():
        assert parameter.grad is None or parameter.requires_grad, name


def test_the_learner_agrees_with_the_rollout(kind, folder):
    learner = learn(from_folder(kind, folder, **LORA))
    rollout = from_folder(kind, folder, **LORA)
    # As weights are sent: all of them, by name.
    rollout.load_state_dict(learner.state_dict())
    fresh = from_folder(kind, folder, **LORA)
    result = act(rollout)[1]
    again = learner(forward_inputs=result["forward_inputs"])["logprobs"]
    torch.testing.assert_close(again, result["prev_logprobs"], atol=2e-4, rtol=1e-4)
    base = fresh(forward_inputs=result["forward_inputs"])["logprobs"]
    assert (again - base).abs().max() > 0.01


def test_a_folder_has_the_adapters_merged(kind, folder, tmp_path):
    policy = learn(from_folder(kind, folder, **LORA))
    again = from_folder(kind, save(policy, kind, tmp_path / "merged"))
    assert not any(".lora_" in name for name in again.state_dict())
    (one, told), (two, other) = act(policy), act(again)
    torch.testing.assert_close(one, two, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(told["prev_logprobs"], other["prev_logprobs"], atol=1e-3, rtol=1e-3)
    # Slowly, for one layer.
    end = "fc2" if kind in TOKENS else "layers.0.mlp.up_proj"
    adapted = ((n, m) for n, m in policy.network.named_modules() if hasattr(m, "lora_A"))
    name, layer = next((n, m) for n, m in adapted if n.endswith(end))
    a, b = (getattr(layer, f"lora_{which}")["default"].weight for which in "AB")
    expected = layer.base_layer.weight + 2.0 * b @ a
    torch.testing.assert_close(merged_state(policy.network)[f"{name}.weight"], expected)


def test_an_export_builds_the_policy_from_its_folder(kind, folder, tmp_path):
    policy = learn(from_folder(kind, folder, **LORA))
    own = tokens.section(kind, **CAMERAS) if kind in TOKENS else flow.section(kind)
    own |= {"hf_config": {}, "words": [], "model_path": str(folder), **LORA}
    export = PolicyExport(policy.state_dict(), own, tokens.SPEC, {})
    again = from_folder(kind, write_export(export, "hf", tmp_path / "out"))
    torch.testing.assert_close(act(policy)[0], act(again)[0], atol=2e-4, rtol=1e-4)


def test_weights_left_out_while_building_are_the_same(kind, folder):
    torch.manual_seed(5)
    whole = from_folder(kind, folder, add_value_head=True, **LORA)
    torch.manual_seed(5)
    later = from_folder(kind, folder, deferred=True, add_value_head=True, **LORA)
    assert all(p.is_meta for p in later.parameters())
    learns = {name: p.requires_grad for name, p in later.named_parameters()}
    assert learns == {name: p.requires_grad for name, p in whole.named_parameters()}
    own, _ = whole.state_dict(), filled(later)
    assert own.keys() == later.state_dict().keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in later.state_dict().items())


def peft_folder(policy, folder, prefix="base_model.model."):
    """Write the adapters of a policy as peft does."""
    adapters = {n: t for n, t in policy.network.state_dict().items() if ".lora_" in n}
    policy.network.peft_config["default"].save_pretrained(folder)
    found = {prefix + n.replace(".default.", "."): t.contiguous() for n, t in adapters.items()}
    save_file(found, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("kind", "prefix"), [("openvla_oft", "base_model.model."), ("pi0", "base_model.model.model.")]
)
@pytest.mark.parametrize("deferred", [False, True])
def test_adapters_go_on_from_a_folder(kind, folder, tmp_path, prefix, deferred):
    policy = learn(from_folder(kind, folder, **LORA))
    path = peft_folder(policy, tmp_path / "adapters", prefix)
    # Rank and factor are those of the folder.
    again = from_folder(kind, folder, deferred, is_lora=True, lora_path=str(path), lora_rank=9)
    assert torch.equal(act(policy)[0], act(filled(again) if deferred else again)[0])


def test_a_folder_of_other_adapters_is_refused(tmp_path):
    policy = base("openvla_oft", **LORA)
    path = peft_folder(policy, tmp_path)
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "base_model.model.action_head.weight": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="unexpected base_model.model.action_head.weight"):
        base("openvla_oft", **LORA, lora_path=str(path))
    file.unlink()
    with pytest.raises(ValueError, match="no adapter_model.safetensors"):
        base("openvla_oft", **LORA, lora_path=str(path))


def test_frozen_parts_get_no_adapters(kind):
    policy = base(kind, freeze_vision_encoder=True, **LORA)
    adapted = {n.partition(".lora_")[0] for n in policy.state_dict() if ".lora_" in n}
    vision = ("vision_backbone",) if kind in TOKENS else policy.network.vision_parts
    assert adapted and not any(name[8:].startswith(vision) for name in adapted)
    if kind == "gr00t":
        # Its expert is trained in full.
        with pytest.raises(ValueError, match="all layers that could have adapters are frozen"):
            base(kind, train_expert_only=True, **LORA)
    elif kind not in TOKENS:
        expert = base(kind, train_expert_only=True, **LORA)
        own = {n for n in expert.state_dict() if ".lora_" in n}
        assert own and all("expert." in name for name in own)


def test_named_modules_get_adapters(kind):
    policy = base(kind, **LORA, lora_target_modules=["q_proj"])
    adapted = {n.partition(".lora_")[0] for n in policy.state_dict() if ".lora_" in n}
    assert adapted and all(name.endswith("q_proj") for name in adapted)
    with pytest.raises(ValueError, match=r"names 'querry', and no layer .*q_proj"):
        base(kind, **LORA, lora_target_modules=["querry"])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="names 'lm_head', and no layer"):
        base("openvla", **LORA, lora_target_modules=["lm_head"])
    frozen = {"freeze_vision_encoder": True, "freeze_language_model": True}
    keys = {"lora_target_modules": ["q_proj"], **LORA, **frozen}
    with pytest.raises(ValueError, match="names 'q_proj', and no layer"):
        base("openvla", **keys)
    with pytest.raises(ValueError, match="no vision towers to freeze"):
        tokens.make(freeze_vision_encoder=True)
    with pytest.raises(ValueError, match="all layers that could have adapters are frozen"):
        tokens.make(freeze_language_model=True, **LORA)


@pytest.mark.parametrize("key", ["freeze_vision_encoder", "freeze_language_model"])
def test_frozen_parts_of_token_policies_do_not_learn(key):
    policy = tokens.make(vision_towers=tokens.TOWERS, use_film=True, **CAMERAS, **{key: True})
    policy("sft", observations=see(), actions=torch.zeros(4, 2, 3))["logprobs"].sum().backward()
    part = "vision_backbone" if key == "freeze_vision_encoder" else "language_model"
    found = {name for name, p in policy.network.named_parameters() if p.grad is not None}
    film = {name for name in found if ".scale." in name or ".shift." in name}
    assert film and not any(name.startswith(part) for name in found - film)
    assert any(name.startswith("proprio_projector") for name in found)


def test_film_is_trained_in_full():
    policy = tokens.make(vision_towers=tokens.TOWERS, use_film=True, **CAMERAS, **LORA)
    film = {n: p for n, p in policy.named_parameters() if ".scale." in n or ".shift." in n}
    # The last block of a tower is never run.
    used = {n: p.requires_grad for n, p in film.items() if ".blocks.2." not in n}
    assert used and all(used.values()) and not any(".lora_" in name for name in film)


@pytest.mark.parametrize("kind", [*TOKENS, "smolvla", "pi0"])
def test_the_prediction_of_memory_counts_what_learns(kind):
    own = tokens.section(kind) if kind in TOKENS else flow.section(kind)
    with torch.device("meta"):
        plain, adapted = (get_model(own | keys, tokens.SPEC) for keys in ({}, LORA))
    one, two = TrainingBytes.of(plain), TrainingBytes.of(adapted)
    assert two.parameters > one.parameters and two.gradients < one.gradients / 2
    learns = sum(p.nbytes for p in adapted.parameters() if p.requires_grad)
    assert two.gradients == learns


def test_gradients_are_the_same_through_recomputation(kind, folder):
    grads = []
    for recompute in (False, True):
        torch.manual_seed(0)
        policy = learn(from_folder(kind, folder, **LORA))
        if recompute:
            policy.enable_gradient_checkpointing()
        inputs = act(policy)[1]["forward_inputs"]
        policy(forward_inputs=inputs)["logprobs"].sum().backward()
        grads.append({n: p.grad for n, p in policy.named_parameters() if p.grad is not None})
    assert grads[0] and grads[0].keys() == grads[1].keys()
    for name, gradient in grads[0].items():
        torch.testing.assert_close(gradient, grads[1][name])


def test_adapters_begin_beside_the_weights_of_a_run_without_them(kind, tmp_path):
    own = tokens.section(kind) if kind in TOKENS else flow.section(kind)
    torch.manual_seed(1)
    trained = get_model(own, tokens.SPEC)
    file = tmp_path / "weights.safetensors"
    save_file({n: t.contiguous() for n, t in trained.state_dict().items()}, file)
    found = []
    for deferred in (False, True):
        torch.manual_seed(2)
        keys = {"add_value_head": True, **LORA}
        policy = get_model(own | keys, tokens.SPEC, deferred=deferred)
        note = load_weights(policy, str(file))
        assert note.endswith("has no value_head: begun afresh")
        found.append(filled(policy) if deferred else policy)
    assert torch.equal(act(trained)[0], act(found[0])[0])
    one, two = (policy.state_dict() for policy in found)
    assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


@pytest.fixture
def second_of_two():
    """Be the second of two ranks; the first is not there, and nobody may ask it anything."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["openvla_oft", "pi05", "gr00t"])
def test_a_rank_reads_its_own_rows(kind, folder, second_of_two):
    keys = {"add_value_head": True, **LORA}
    torch.manual_seed(5)
    whole = from_folder(kind, folder, **keys).state_dict()
    torch.manual_seed(5)
    policy = from_folder(kind, folder, deferred=True, **keys)
    weights = take_deferred(policy)
    for module in reversed(list(policy.modules())):
        if type(module).__name__ in policy._no_split_modules:
            fully_shard(module)
    fully_shard(policy)
    fill(policy, weights.parts, torch.device("cpu"))
    for name, parameter in policy.named_parameters():
        part = cut(whole[name], own_rows(parameter))
        assert len(part) <= (len(whole[name]) + 1) // 2
        assert torch.equal(own_part(parameter), part), name
