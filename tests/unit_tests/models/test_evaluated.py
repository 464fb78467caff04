"""An evaluation without an actor knows its network, its tokenizer and its weights."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from rlinf.models.evaluated import evaluated_model
from rlinf.utils.checkpoint import CheckpointError
from rlinf.utils.checkpoint.store import FORMAT, MANIFEST

ACTOR = {
    "model": {"model_type": "qwen3", "model_path": None, "hf_config": {"vocab_size": 9}},
    "tokenizer": {"tokenizer_model": "characters:ab"},
}


def config(ckpt_path=None, model=None, actor=None, model_dir=None):
    names = ("model_type", "model_path", "precision")
    section = dict.fromkeys(names) | (model or {})
    return OmegaConf.create(
        {
            "runner": {"ckpt_path": None if ckpt_path is None else str(ckpt_path)},
            "rollout": {"model": section, "model_dir": model_dir},
            "actor": actor,
        }
    )


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of a run, as far as its manifest goes."""
    folder = tmp_path / "run" / "checkpoints" / "global_step_7"
    folder.mkdir(parents=True)
    facts = {"format": FORMAT, "step": 7, "files": {}, "config": {"actor": ACTOR}}
    (folder / MANIFEST).write_text(json.dumps(facts))
    return folder


def test_a_checkpoint_says_which_network_and_tokenizer(checkpoint):
    for path in (checkpoint, checkpoint.parents[1]):
        model = evaluated_model(config(path))
        assert (model.network, model.tokenizer) == (ACTOR["model"], ACTOR["tokenizer"])
        assert (model.weights, model.step) == (str(path), 7)


def test_the_rollout_may_say_otherwise(checkpoint):
    model = evaluated_model(config(checkpoint, {"precision": "bf16"}))
    assert model.network == ACTOR["model"] | {"precision": "bf16"}


def test_a_folder_of_a_model_has_all(tmp_path):
    expected = {"model_type": "hf_causal_lm", "model_path": "some/folder"}
    assert evaluated_model(config(model={"model_path": "some/folder"})).network == expected
    assert evaluated_model(config(model_dir="some/folder")).network == expected
    (tmp_path / "config.json").write_text("{}")
    model = evaluated_model(config(tmp_path))
    assert model.network["model_path"] == str(tmp_path) and model.weights is None


def test_an_actor_section_describes_the_network(tmp_path):
    weights = tmp_path / "weights.safetensors"
    weights.touch()
    model = evaluated_model(config(weights, actor=ACTOR))
    assert model.network == ACTOR["model"] and model.weights == str(weights)
    other = evaluated_model(config(model={"model_path": "folder"}, actor=ACTOR))
    assert other.network == {"model_type": "qwen3", "model_path": "folder"}, "it has its own sizes"


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match="there are no weights to evaluate"):
        evaluated_model(config(actor=ACTOR))
    (tmp_path / "weights.pt").touch()
    with pytest.raises(ValueError, match="nothing says which model to evaluate"):
        evaluated_model(config(tmp_path / "weights.pt"))
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        evaluated_model(config(tmp_path))
