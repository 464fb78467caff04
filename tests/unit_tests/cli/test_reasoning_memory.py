"""What is predicted for a worker of a reasoning run is what its tensors take."""

import json

import pytest
import torch

from rlinf.cli import main
from rlinf.cli.memory import CannotPredict, predict_memory
from rlinf.cli.reasoning_memory import _model, activations_per_token
from rlinf.hybrid_engines.fsdp.memory import saved_bytes
from rlinf.hybrid_engines.generation import EngineSettings, build_engine
from rlinf.models.causal_lm.layout import Sequences
from rlinf.models.causal_lm.load import load_causal_lm
from rlinf.models.lora import AdapterStore
from rlinf.models.settings import complete
from tests.unit_tests.workers.actor.reasoning import (
    CRITIC,
    MODEL,
    learn,
    make_cfg,
    make_groups,
    make_learner,
    make_model,
)

WIDE = {
    **MODEL,
    "hf_config": {**MODEL["hf_config"], "hidden_size": 128, "intermediate_size": 256},
}


def of(cfg, kind="cpu", **counts):
    placement = {"actor": 1, "rollout": 1} | counts
    listed = {name: [{"kind": kind}] * count for name, count in placement.items()}
    return {worker.component: worker for worker in predict_memory(cfg, listed)}


def part(worker, name):
    return next(each.bytes for each in worker.parts if each.name == name)


def names(worker):
    return {each.name for each in worker.parts}


def tensors_of(engine):
    """Bytes of weights, and of what the optimiser remembers."""
    states = [value for state in engine.optimizer.state.values() for value in state.values()]
    own = [*engine.model.parameters(), *engine.model.buffers()]
    return sum(tensor.nbytes for tensor in own), sum(value.nbytes for value in states)


@pytest.mark.parametrize(
    "changes", [CRITIC, {"actor.model": {**MODEL, "is_lora": True, "lora_rank": 2}}]
)
def test_training_takes_what_was_predicted(changes):
    cfg = make_cfg(changes)
    learner = make_learner(cfg)
    learn(learner, make_groups(learner.engine.model))
    actor = of(cfg)["actor"]
    weights, optimizer = tensors_of(learner.engine)
    assert part(actor, "weights") == weights and part(actor, "optimiser") == optimizer
    if learner.critic is not None:
        weights, optimizer = tensors_of(learner.critic.engine)
        assert part(actor, "weights of the critic") == weights
        assert part(actor, "optimiser of the critic") == optimizer
    else:
        assert part(actor, "gradients") < weights / 2, "only adapters have gradients"


def test_an_engine_takes_what_was_predicted():
    cfg = make_cfg({"rollout.max_running_requests": 7})
    model = load_causal_lm(complete(cfg.actor.model, None), torch.float32)
    engine = build_engine("hf", EngineSettings.from_config(cfg, model))
    rollout, stats = of(cfg)["rollout"], engine.stats()
    assert part(rollout, "keys and values") == stats["cache_bytes"]
    # Weights begin at multiples of some bytes.
    assert part(rollout, "weights") == pytest.approx(stats["weight_bytes"], rel=0.05)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_those_of_a_real_pass(checkpointing):
    # Layers in C keep less than this, and not where torch counts it.
    cfg = make_cfg({"actor.model": WIDE | {"sequence_layout": "padded"}})
    model = make_model(cfg.actor.model)
    if checkpointing:
        model.enable_gradient_checkpointing()
    lengths = [40] * 6

    def run():
        tokens = torch.randint(0, 13, (sum(lengths),))
        return model(Sequences(tokens, torch.tensor([8] * 6), torch.tensor([32] * 6)))

    real = saved_bytes(model, run)
    predicted = activations_per_token(_model(cfg.actor.model), checkpointing) * sum(lengths)
    assert predicted == pytest.approx(real, rel=0.25)


def test_groups_of_their_own_take_what_the_actor_does_not():
    changes = {**CRITIC, "algorithm.kl_beta": 0.1}
    alone = of(make_cfg(changes))["actor"]
    assert {"reference policy", "gradients of the critic"} <= names(alone)
    place = {"actor,rollout,reward": "0", "inference,reference": "1", "critic": "2-3"}
    cfg = make_cfg({**changes, "cluster.component_placement": place})
    workers = of(cfg, inference=1, reference=1, critic=2)
    assert not {"reference policy", "gradients of the critic"} & names(workers["actor"])
    assert part(workers["reference"], "weights") == part(alone, "reference policy")
    assert "optimiser" not in names(workers["inference"])
    halved = part(workers["critic"], "optimiser"), part(alone, "optimiser of the critic")
    assert halved[1] / 2 <= halved[0] < halved[1]


def test_sixteen_bits_and_several_ranks():
    cfg = make_cfg({"actor.model": {**MODEL, "precision": "bf16"}})
    on_gpu = of(cfg, "accelerator", actor=2)
    one = of(cfg)
    # Trained weights stay in fp32; those that only generate are rounded.
    assert part(on_gpu["rollout"], "weights") == part(one["rollout"], "weights") / 2
    assert part(on_gpu["actor"], "optimiser") < part(one["actor"], "optimiser")
    assert 0 < part(on_gpu["actor"], "gathered weights") < part(one["actor"], "weights")
    assert "rollout.gpu_memory_utilization" not in on_gpu["rollout"].note
    assert "0.65 of its device" in on_gpu["rollout"].note and not one["rollout"].note
    single = of(cfg, "accelerator")["actor"]
    assert part(single, "rounded weights") == part(on_gpu["rollout"], "weights")


def test_buffers_of_the_weight_update_count_where_they_stay():
    def staged(changes, kind="accelerator"):
        actor = of(make_cfg(changes), kind)["actor"]
        name = "weights on their way"
        return part(actor, name) if name in names(actor) else None

    whole = staged({})
    assert whole == part(of(make_cfg())["rollout"], "weights")
    assert staged({"weight_syncer.bucket": {"bucket_dtype": "bf16"}}) == whole / 2
    assert staged({"weight_syncer.bucket": {"bucket_size": 1000}}) == 2000
    assert staged({"actor.enable_offload": True}) is None
    assert staged({"weight_syncer.bucket": {"keep_buffers": False}}) is None
    assert staged({}, "cpu") is None


def test_a_folder_is_not_loaded_and_adapters_keep_their_base(tmp_path):
    base = make_learner(make_cfg()).engine.model
    base.save_folder(tmp_path, dict(base.policy_tensors(lambda tensor: tensor)))
    section = {"model_type": "qwen3", "model_path": str(tmp_path), "is_lora": True}
    cfg = make_cfg({"actor.model": section, "weight_syncer.lora": "adapters"})
    store = AdapterStore(base.plain, cfg.actor.model)
    kept = sum(weight.nbytes for weight, *_ in store._layers.values())
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    rollout = of(cfg)["rollout"]
    assert part(rollout, "base weights") == kept
    assert part(rollout, "weights") == sum(p.nbytes for p in base.parameters())
    (tmp_path / "config.json").unlink()
    with pytest.raises(CannotPredict, match="there is no config.json"):
        of(cfg)


def test_the_command_prints_it(capsys):
    assert main(["check", "arithmetic_grpo", "--gpus-per-node", "0"]) == 0
    out = capsys.readouterr().out
    assert "memory of each process at its peak" in out and "keys and values" in out
    assert "simulators" not in out and "~ is an estimate" in out
    assert main(["check", "arithmetic_grpo", "--gpus-per-node", "0", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["actor"]["parts"]["optimiser"] > memory["actor"]["parts"]["gradients"] > 0
    assert memory["rollout"]["host_bytes"] > memory["rollout"]["parts"]["keys and values"]
