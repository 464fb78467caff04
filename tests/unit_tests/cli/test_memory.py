"""What is predicted for a worker is what its tensors take."""

import json

import pytest
import torch

from rlinf.cli import main
from rlinf.cli.env_sizes import env_sizes
from rlinf.cli.memory import activation_bytes, predict_memory, readable
from rlinf.cli.memory_parts import CannotPredict
from rlinf.config import build_config, validate_cfg
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.fsdp.memory import TrainingBytes, saved_bytes
from rlinf.models import get_model
from rlinf.models.embodiment.openvla.folder import save_folder
from rlinf.utils.env_spec import EnvSpec
from tests.unit_tests.workers.actor.learning import make_cfg, make_learner, rollout

SPEC = EnvSpec(obs_dim=39, action_dim=4, action_low=[-1] * 4, action_high=[1] * 4)
MODELS = {
    "mlp": {"model_type": "mlp_policy"},
    "mlp, shared": {"model_type": "mlp_policy", "share_trunk": True, "num_action_chunks": 2},
    "cnn": {"model_type": "cnn_policy", "image_size": 48, "channels": [16, 32]},
    "cnn, where": {
        "model_type": "cnn_policy",
        "image_size": 32,
        "channels": [8],
        "pooling": "spatial_softmax",
    },
}


def build(name, device="cpu"):
    with torch.device(device):
        return get_model({**MODELS[name], "add_value_head": True}, SPEC, torch.float32)


def observations(name, rows):
    size = MODELS[name].get("image_size", 8)
    images = torch.randint(0, 256, (rows, size, size, 3), dtype=torch.uint8)
    return {"states": torch.randn(rows, 39), "main_images": images}


@pytest.mark.parametrize("name", MODELS)
def test_training_takes_what_was_predicted_on_the_meta_device(name):
    predicted = TrainingBytes.of(build(name, "meta"))
    model = build(name)
    engine = TrainEngine(model, make_cfg().actor, torch.device("cpu"), 1, 10)
    inputs = model.predict_action_batch(observations(name, 3))[1]["forward_inputs"]
    out = engine.forward(forward_type="default", forward_inputs=inputs, compute_values=True)
    engine.backward(out["logprobs"].sum() + out["values"].sum(), last=True)
    assert predicted.parameters == sum(p.nbytes for p in model.parameters())
    assert predicted.buffers == sum(buffer.nbytes for buffer in model.buffers())
    assert predicted.gradients == sum(p.grad.nbytes for p in model.parameters())
    engine.step()
    states = [value for state in engine.optimizer.state.values() for value in state.values()]
    assert predicted.optimizer == sum(value.nbytes for value in states)


def test_what_is_not_trained_has_no_gradient():
    model = build("mlp", "meta")
    model.value_head.requires_grad_(False)
    head = sum(p.nbytes for p in model.value_head.parameters())
    own, whole = TrainingBytes.of(model), TrainingBytes.of(build("mlp", "meta"))
    assert own.parameters == whole.parameters and own.gradients == whole.gradients - head


@pytest.mark.parametrize("name", MODELS)
def test_activations_are_those_of_a_real_pass(name):
    inputs = build(name).predict_action_batch(observations(name, 2))[1]["forward_inputs"]
    model = build(name)
    held = []
    part = {key: value[:1].repeat(6, *[1] * (value.dim() - 1)) for key, value in inputs.items()}
    real = saved_bytes(
        model,
        lambda: held.append(model(forward_inputs=part, compute_entropy=True, compute_values=True)),
    )
    meta = {key: value.to("meta") for key, value in inputs.items()}
    # Kernels keep a little besides, such as an input in the order that suits them.
    assert activation_bytes(build(name, "meta"), meta, 6) == pytest.approx(real, rel=0.1)
    twice = activation_bytes(build(name, "meta"), meta, 12)
    assert 1.9 < twice / activation_bytes(build(name, "meta"), meta, 6) < 2.1


def of(cfg, **counts):
    kinds = {"actor": 1, "rollout": 1, "env": 1} | counts
    placement = {name: [{"kind": "cpu"}] * count for name, count in kinds.items()}
    return {worker.component: worker for worker in predict_memory(cfg, placement)}


def part(worker, name):
    return next(each.bytes for each in worker.parts if each.name == name)


def test_a_batch_takes_what_was_predicted():
    keys = {"actor.model.obs_dim": 5, "actor.model.action_dim": 2}
    keys |= {"env.train.env_type": "maniskill", "actor.model.num_action_chunks": 3}
    cfg = make_cfg({**keys, "env.train.id": "PickCube-v1"})
    batch = rollout(make_learner(make_cfg({"actor.model.num_action_chunks": 3})).engine.model, 4)
    assert part(of(cfg)["actor"], "batch") == size_of(batch)
    # Two ranks have half of it each.
    assert 2 * part(of(cfg, actor=2)["actor"], "batch") == size_of(batch)


def test_rollouts_that_plan_ahead_keep_two_observations_per_chunk():
    model = {"model_type": "flow_policy", "num_action_chunks": 2, "action_horizon": 4}
    model["add_value_head"] = True
    rtc = {"delay": 1, "max_guidance": 0}
    anew, ahead = (
        part(
            of(make_cfg({"actor.model": model | {"rtc": rtc | {"rollouts": kind}}}))["actor"],
            "batch",
        )
        for kind in ("anew", "delayed")
    )
    chunks, envs = 12 // 2, 8
    # A state of 39 numbers, and how many actions of the plan were decided.
    assert ahead - anew == chunks * envs * (39 * 4 + 8)


def size_of(batch: EmbodiedBatch) -> int:
    tensors = [*batch.forward_inputs.values()]
    tensors += [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors)


def test_more_ranks_have_less_each_and_a_reference_is_one_more_policy():
    one, two = of(make_cfg()), of(make_cfg(), actor=2)
    for name in ("gradients", "optimiser"):
        assert part(one["actor"], name) / 2 <= part(two["actor"], name) < part(one["actor"], name)
    kept = of(make_cfg({"algorithm.kl_beta": 0.1}))["actor"]
    assert part(kept, "reference policy") == part(kept, "weights")
    assert kept.total(on_device=True) == 0


def test_accelerators_have_memory_of_their_own():
    cfg = make_cfg({"actor.model.precision": "bf16"})
    placement = {name: [{"kind": "accelerator"}] for name in ("actor", "rollout", "env")}
    workers = {worker.component: worker for worker in predict_memory(cfg, placement)}
    on_cpu = of(cfg)
    # Trained weights stay in fp32; those that only act are rounded.
    assert part(workers["actor"], "weights") == part(on_cpu["actor"], "weights")
    assert part(workers["rollout"], "weights") < 0.6 * part(on_cpu["rollout"], "weights")
    assert workers["actor"].total(True) > part(workers["actor"], "optimiser")
    assert workers["actor"].total(False) < on_cpu["actor"].total(False)


VLA = [
    "runner.ckpt_path=null",
    "env.train.total_num_envs=16",
    "actor.global_batch_size=16",
]
LLAMA = "hidden_size: 64, intermediate_size: 128, num_hidden_layers: 6, num_attention_heads: 4"


def of_recipe(*keys):
    return of(validate_cfg(build_config("metaworld_grpo_oft", [*VLA, *keys])))["actor"]


def test_layers_that_compute_again_keep_their_inputs():
    keys = (f"actor.model.hf_config={{{LLAMA}}}", "actor.micro_batch_size=16")
    whole = part(of_recipe(*keys), "activations")
    again = part(of_recipe(*keys, "actor.fsdp_config.gradient_checkpointing=true"), "activations")
    # A prompt of 8 tokens, the state, and 8 x 4 numbers; six layers, 16 samples.
    inputs = 6 * 16 * (8 + 1 + 32) * 64 * 4
    assert inputs < again < whole / 2


def test_a_folder_says_the_sizes(tmp_path):
    fresh = f"actor.model.hf_config={{{LLAMA}}}"
    cfg = validate_cfg(build_config("metaworld_grpo_oft", [*VLA, fresh]))
    folder = tmp_path / "base"
    save_folder(get_model(cfg.actor.model, env_sizes(cfg)[0]), folder)
    sizes = ("~actor.model.hf_config", "~actor.model.words", f"actor.model.model_path={folder}")
    assert of_recipe(*sizes).parts == of_recipe(fresh).parts
    lora = of_recipe(*sizes, "actor.model.is_lora=true", "actor.model.lora_rank=2")
    assert part(lora, "gradients") < 0.1 * part(of_recipe(fresh), "gradients")
    (folder / "config.json").unlink()
    with pytest.raises(CannotPredict, match=r"openvla_oft cannot be built .*config.json"):
        of_recipe(*sizes)


def test_the_command_prints_it(embodied, capsys):
    assert main(["check", str(embodied), "--gpus-per-node", "0"]) == 0
    out = capsys.readouterr().out
    assert "memory of each process at its peak" in out
    assert "actor (8)" in out and "gradients" in out and "~ is an estimate" in out
    assert main(["check", str(embodied), "--gpus-per-node", "0", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["actor"]["workers"] == 8 and memory["rollout"]["parts"]["weights"] > 0
    assert memory["env"]["device_bytes"] == 0 < memory["env"]["host_bytes"]
    assert main(["check", str(embodied), "--gpus-per-node", "0", "--no-memory"]) == 0
    assert "memory" not in capsys.readouterr().out


def test_what_is_not_known_is_said_and_the_config_is_valid_all_the_same(embodied, capsys):
    unknown = ["env.train.id=NoSuchEnv-v1", "env.eval.id=NoSuchEnv-v1"]
    assert main(["check", str(embodied), *unknown, "--gpus-per-node", "0"]) == 0
    out = capsys.readouterr().out
    assert "not predicted: " in out and "NoSuchEnv-v1" in out
    assert "actor.model.obs_dim" in out


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5120 GiB")],
)
def test_sizes_are_readable(count, text):
    assert readable(count) == text


def test_choices_of_an_env_that_says_nothing_come_from_the_config():
    keys = {"env.train.env_type": "maniskill", "env.train.id": "PickCube-v1"}
    keys |= {"actor.model.obs_dim": 5, "actor.model.action_choices": [2, 7]}
    many = of(make_cfg(keys))["actor"]
    few = of(make_cfg({**keys, "actor.model.action_choices": [1, 1]}))["actor"]
    logits, hidden = (2 + 7) - (1 + 1), 16
    assert part(many, "gradients") - part(few, "gradients") == 4 * logits * (hidden + 1)
