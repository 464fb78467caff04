"""The page "Bring your own VLA": its file is short, and what it registers learns."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rlinf.hybrid_engines.fsdp.fill import fill
from rlinf.models import get_model
from rlinf.models.deferred import take_deferred
from rlinf.models.embodiment.check_policy import check_policy
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.learner import LearnerPlace
from tests.long_tests import long_test
from tests.unit_tests.data.demonstrations.datasets import write_dataset
from tests.unit_tests.docs.test_pages import DOCS, blocks
from tests.unit_tests.workers.actor.imitation.test_cloning import make_learner as make_cloner
from tests.unit_tests.workers.actor.learning import (
    GRPO,
    columns,
    distance,
    learn,
    make_cfg,
    make_learner,
    make_policy,
    rollout,
    weights,
)
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

pytest.importorskip("transformers")

CODE = blocks(DOCS / "bring_your_own_vla.md", "python")[0]
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION = TEXT | {"image_size": 16, "patch_size": 8}
SECTION = {
    "model_type": "llava_policy",
    "hf_config": TEXT,
    "vision_config": VISION,
    "words": ["open", "do", "close", "it", "now"],
    "max_prompt_length": 4,
    "num_action_chunks": 3,
    "hidden_sizes": [16],
}
SPEC = EnvSpec(obs_dim=5, action_dim=2, action_low=-1, action_high=1)


@pytest.fixture(autouse=True)
def module(monkeypatch, tmp_path, fresh_registries):
    """The file of the page, whose policy is registered for the time of a test."""
    file = tmp_path / "llava_policy.py"
    file.write_text(CODE)
    spec = importlib.util.spec_from_file_location("llava_policy", file)
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "llava_policy", found)
    spec.loader.exec_module(found)
    return found


def make(**keys):
    torch.manual_seed(0)
    return get_model(SECTION | keys, SPEC)


def observe(cameras=2, texts=("open it", "close it now", "open", "close it now")):
    torch.manual_seed(1)
    images = torch.randint(0, 256, (2, len(texts), 20, 20, 3), dtype=torch.uint8)
    seen = {"states": torch.randn(len(texts), 5), "task_descriptions": list(texts)}
    return seen | dict(zip(("main_images", "wrist_images"), images[:cameras], strict=False))


def test_the_file_is_short():
    assert len(CODE.splitlines()) < 100


@pytest.mark.parametrize("cameras", [0, 2])
def test_it_keeps_the_contract(cameras):
    policy = make(num_images_in_input=cameras, add_value_head=True)
    assert check_policy(policy, observe()) == []


def test_it_reads_and_looks():
    policy = make(num_images_in_input=2)
    told = policy.predict_action_batch(observe(), mode="eval")[0]
    others = ("close it", "close it now", "open", "open it now")
    swapped = policy.predict_action_batch(observe(texts=others), mode="eval")[0]
    same = (told == swapped).all(2).all(1)
    assert same.tolist() == [False, True, True, False]
    blank = observe() | {"wrist_images": torch.zeros(4, 20, 20, 3, dtype=torch.uint8)}
    assert not torch.equal(told, policy.predict_action_batch(blank, mode="eval")[0])


def test_supervised_training_changes_pictures_and_nothing_else_does():
    keys = {"random_shift": 2, "random_crop": 0.8, "brightness_jitter": 0.3}
    policy, plain = (make(num_images_in_input=2, **own) for own in (keys, {}))
    obs, actions = observe(), torch.zeros(4, 3, 2)
    noise = torch.randn(4, policy.sft_noise_width)

    def errors(who, augment, **drawn):
        out = who("sft", observations=obs, actions=actions, augment=augment, **drawn)
        return out["errors"]

    assert torch.equal(errors(policy, True, noise=noise), errors(policy, True, noise=noise))
    assert not torch.equal(errors(policy, True, noise=noise), errors(policy, False))
    assert torch.equal(errors(policy, False, noise=noise), errors(plain, True))
    same = torch.randn(4, 6)
    acted = (who.predict_action_batch(obs, noise=same)[0] for who in (policy, plain))
    assert torch.equal(*acted)


def test_padding_changes_nothing():
    short, long = make(num_images_in_input=1), make(num_images_in_input=1, max_prompt_length=9)
    actions = [policy.predict_action_batch(observe(), mode="eval")[0] for policy in (short, long)]
    torch.testing.assert_close(*actions, rtol=1e-4, atol=1e-6)


def test_a_folder_of_transformers_is_where_it_begins(tmp_path, module):
    policy = make(num_images_in_input=1)
    policy.vlm.save_pretrained(tmp_path / "vlm")
    policy.prompts.tokenizer.save_pretrained(tmp_path / "vlm")
    torch.manual_seed(5)
    again = get_model(
        SECTION | {"model_path": str(tmp_path / "vlm"), "num_images_in_input": 1}, SPEC
    )
    inputs = policy.policy_inputs(observe(), augment=False)
    other = again.policy_inputs(observe(), augment=False)
    assert all(torch.equal(inputs[name], other[name]) for name in inputs)
    torch.testing.assert_close(policy.encode(inputs), again.encode(other))


def published(policy, folder):
    """Write the model with the names that published LLaVAs have, of which ours are renamed."""
    policy.vlm.save_pretrained(folder)
    policy.prompts.tokenizer.save_pretrained(folder)
    tensors = {}
    for name, tensor in policy.vlm.state_dict().items():
        tensors[name.replace("language_model.", "language_model.model.", 1)] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("names", [None, "own", "published"])
def test_no_rank_has_to_build_it_whole(tmp_path, caplog, names):
    keys = {"num_images_in_input": 1, "is_lora": True, "add_value_head": True}
    if names is not None:
        policy = make(num_images_in_input=1)
        keys["model_path"] = str(tmp_path / "vlm")
        if names == "own":
            policy.vlm.save_pretrained(tmp_path / "vlm")
            policy.prompts.tokenizer.save_pretrained(tmp_path / "vlm")
        else:
            published(policy, tmp_path / "vlm")
    whole = make(**keys)
    torch.manual_seed(0)
    later = get_model(SECTION | keys, SPEC, deferred=True)
    assert all(parameter.is_meta for parameter in later.parameters()), caplog.text
    fill(later, take_deferred(later).parts, torch.device("cpu"))
    state, filled = whole.state_dict(), later.state_dict()
    assert state.keys() == filled.keys()
    assert [name for name in state if not torch.equal(state[name], filled[name])] == []
    acted = (who.predict_action_batch(observe(1), mode="eval")[0] for who in (whole, later))
    assert torch.equal(*acted)


def test_supervised_steps_make_it_do_what_was_done(tmp_path):
    demos = write_dataset(
        tmp_path / "d", (9, 12, 7), act=lambda s: np.clip([0.8 * s[0], -0.5 * s[1]], -1, 1)
    )
    changes = {
        "actor.model": SECTION,
        "runner.task_type": "sft",
        "runner.local_update_steps": 8,
        "actor.global_batch_size": 28,
        "actor.optim.lr": 3e-3,
        "actor.optim.lr_scheduler": "constant",
    }
    learner = make_cloner(demos, changes)
    before = learner.engine.model.vlm.language_model.layers[0].mlp.up_proj.weight.clone()
    losses = [learner.update()["actor/loss"] for _ in range(3)]
    assert losses[-1] < 0.8 * losses[0]
    after = learner.engine.model.vlm.language_model.layers[0].mlp.up_proj.weight
    assert not torch.equal(before, after)


def test_supervised_steps_may_change_pictures(tmp_path):
    demos = write_dataset(tmp_path / "d", (4, 5), pictures="noise")
    changes = {
        "actor.model": SECTION | {"num_images_in_input": 1, "random_crop": 0.8},
        "runner.task_type": "sft",
        "runner.local_update_steps": 1,
        "actor.global_batch_size": 4,
    }
    learner = make_cloner(demos, changes)
    assert set(learner.demos.obs) == {"states", "main_images", "task_descriptions"}
    assert learner.update()["actor/loss"] > 0


@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_rollout_and_learner_agree_and_good_chunks_become_likelier(method):
    changes = {"actor.model": SECTION | {"add_value_head": method == "ppo"}}
    changes["env.train.max_episode_steps"] = 36
    learner = make_learner(make_cfg(changes | (GRPO if method == "grpo" else {})))
    policy = learner.engine.model
    batch = rollout(policy, mid_chunk=True)
    gaps, _ = learner.agreement(batch)
    assert gaps["compared"] == 1.0 and gaps["logprob_max"] < 1e-4
    # Another instruction would not agree.
    ids = batch.forward_inputs["input_ids"]
    batch.forward_inputs["input_ids"] = ids.flip(-1)
    assert learner.agreement(batch)[0]["logprob_max"] > 1e-3
    batch.forward_inputs["input_ids"] = ids
    batch.rewards.zero_()
    batch.terminations.zero_()
    batch.valid.fill_(True)
    batch.rewards[-1, ::2, -1] = 1.0
    learn(learner, batch)
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    after = policy(forward_inputs=inputs)["logprobs"].detach().view_as(batch.prev_logprobs)
    gain = (after - batch.prev_logprobs).sum(-1)
    if method == "grpo":
        assert float(gain[:, ::2].mean()) > float(gain[:, 1::2].mean())
    else:
        assert float(gain.abs().max()) > 1e-3


def test_with_adapters_the_model_stays_as_it_is():
    keys = {"is_lora": True, "lora_rank": 2, "num_images_in_input": 0}
    plain, adapted = make(), make(**keys)
    told = [policy.predict_action_batch(observe(), mode="eval")[0] for policy in (plain, adapted)]
    assert torch.equal(*told)
    changes = {"actor.model": SECTION | keys, "runner.ckpt_path": "logs/before"}
    cfg = make_cfg(changes | GRPO | {"env.train.max_episode_steps": 36})
    learner = EmbodiedLearner(cfg, adapted, LearnerPlace(torch.device("cpu"), seed=3))
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    learn(learner, rollout(adapted))
    moved = {n for n, tensor in adapted.state_dict().items() if not torch.equal(before[n], tensor)}
    assert any(".lora_" in name for name in moved) and "policy_head.head.weight" in moved
    assert not any(name.startswith("vlm.") and ".lora_" not in name for name in moved)


def test_what_cannot_be_read_is_told_when_it_is_built():
    told = EnvSpec(5, 2, -1, 1, instructions=("shut it",))
    with pytest.raises(ValueError, match="'shut it' has a word that model.words does not list"):
        get_model(SECTION, told)
    with pytest.raises(ValueError, match="no place for the instruction"):
        make(prompt="open it")


def test_layers_of_the_model_are_what_fsdp_shards(module):
    policy = make(num_images_in_input=1)
    classes = {type(part).__name__ for part in policy.modules()}
    assert set(module.LlavaPolicy._no_split_modules) <= classes
    policy.enable_gradient_checkpointing()
    inputs = policy.predict_action_batch(observe(), mode="train")[1]["forward_inputs"]
    policy(forward_inputs=inputs)["logprobs"].sum().backward()
    assert policy.vlm.vision_tower.embeddings.patch_embedding.weight.grad.abs().sum() > 0


class _Ranks:
    """What a rank learns of half the envs of a rollout."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, rank):
        if rank is not None:
            sys.path.insert(0, str(self.folder))
            importlib.import_module("llava_policy")
        cfg = make_cfg({"actor.model": SECTION, "env.train.max_episode_steps": 36, **GRPO})
        batch = rollout(make_policy(cfg), steps=4)
        if rank is None:
            learner = make_learner(cfg)
        else:
            batch = columns(batch, slice(4 * rank, 4 * rank + 4))
            learner = make_learner(cfg, rank=rank, world_size=2)
        learn(learner, batch)
        return weights(learner)


@long_test
@pytest.mark.timeout(600)
def test_two_ranks_that_share_the_model_learn_what_one_does(tmp_path):
    ours = _Ranks(tmp_path)
    alone = ours(None)
    for shared in run_two_ranks(ours, tmp_path):
        assert alone.keys() == shared.keys() and distance(alone, shared) < 1e-4
