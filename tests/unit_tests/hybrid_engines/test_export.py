"""`rlinf export` from a checkpoint to a folder, and what it says when there is none."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from rlinf.cli import main
from rlinf.config import to_plain
from rlinf.hybrid_engines.export import export_checkpoint
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint, read_model
from rlinf.models.export.rlinf_policy import load_policy
from rlinf.utils.checkpoint import CheckpointError, CheckpointStore, save_tree
from tests.unit_tests.workers.actor.learning import (
    SPEC,
    learn,
    make_cfg,
    make_learner,
    make_policy,
    rollout,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, object]:
    """A run's folder with one checkpoint of a policy that has learnt a little, and the policy."""
    cfg = make_cfg()
    learner = make_learner(cfg)
    learn(learner, rollout(make_policy(cfg)))
    folder = tmp_path_factory.mktemp("run")
    store = CheckpointStore(folder / "checkpoints")
    part, tensors = store.begin(4), EngineCheckpoint(learner.engine)
    tensors.write(tensors.snapshot(), part / "actor" / "tensors")
    save_tree(part / "actor" / "env_spec", asdict(SPEC))
    store.commit(4, {"versions": {"rlinf": "0"}, "config": to_plain(cfg)})
    return folder, learner.engine.model


@pytest.fixture
def copied(run, tmp_path) -> Path:
    """A checkpoint to spoil."""
    import shutil

    place = tmp_path / "checkpoints" / "global_step_4"
    shutil.copytree(run[0] / "checkpoints" / "global_step_4", place)
    return place


def test_a_checkpoint_becomes_a_folder(run, tmp_path, capsys):
    folder, model = run
    assert main(["export", str(folder), "--to", "hf"]) == 0
    said = capsys.readouterr().out
    out = folder / "export" / "global_step_4-hf"
    assert str(out) in said and "modeling_rlinf_policy.py" in said and "README.md" in said
    states = torch.randn(8, 5)
    expected = model.predict_action_batch({"states": states}, mode="eval")[0]
    assert torch.equal(load_policy(out)(states=states), expected)
    assert main(["export", str(folder), "--to", "hf"]) == 1
    assert "is not an empty folder" in capsys.readouterr().err
    chosen = export_checkpoint(folder / "checkpoints" / "global_step_4", "safetensors", tmp_path)
    assert torch.equal(load_policy(chosen)(states=states), expected)


def test_only_the_policy_is_read(run):
    folder, model = run
    tensors = read_model(folder / "checkpoints" / "global_step_4" / "actor" / "tensors")
    assert tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(tensors[name], t) for name, t in model.state_dict().items())


def test_an_engine_takes_only_the_policy(run):
    folder, model = run
    other = make_learner(make_cfg())
    place = folder / "checkpoints" / "global_step_4" / "actor" / "tensors"
    EngineCheckpoint(other.engine).read(place, only_model=True)
    taken = other.engine.model.state_dict()
    assert all(torch.equal(taken[name], t) for name, t in model.state_dict().items())
    assert not other.engine.optimizer.state


def test_what_is_no_checkpoint(run, copied, tmp_path, capsys):
    with pytest.raises(CheckpointError, match="there is no checkpoint .*global_step_9"):
        export_checkpoint(copied.with_name("global_step_9"), "hf")
    with pytest.raises(CheckpointError, match="is not a checkpoint, which is called global_step_"):
        export_checkpoint(copied / "actor", "hf")
    with pytest.raises(ValueError, match="unknown format 'onnx'; known: hf, safetensors"):
        export_checkpoint(copied, "onnx")
    with pytest.raises(SystemExit):
        main(["export", str(copied), "--to", "onnx"])
    assert "choose from" in capsys.readouterr().err
    weights = next((copied / "actor" / "tensors").glob("*.safetensors"))
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="is not what was written"):
        export_checkpoint(copied, "hf")
    (copied / "manifest.json").unlink()
    assert main(["export", str(copied), "--to", "hf"]) == 1
    assert "was not written to its end" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()


def test_a_checkpoint_without_a_policy(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    store.begin(1)
    store.commit(1, {"versions": {}, "config": to_plain(make_cfg())})
    with pytest.raises(CheckpointError, match="has no policy"):
        export_checkpoint(tmp_path, "hf")
    part = store.begin(2)
    (part / "actor" / "tensors").mkdir(parents=True)
    store.commit(2, {"versions": {}, "config": to_plain(make_cfg())})
    with pytest.raises(CheckpointError, match="actor/env_spec.json is missing"):
        export_checkpoint(tmp_path, "hf")
