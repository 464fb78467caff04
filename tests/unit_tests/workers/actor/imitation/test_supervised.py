"""Supervised training of a flow policy: noise, mixtures, held-out episodes, exact resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlinf.config import ConfigError
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from tests.unit_tests.data.demonstrations.datasets import write_dataset
from tests.unit_tests.workers.actor.imitation.test_cloning import make_cfg, make_learner
from tests.unit_tests.workers.actor.learning import distance, weights
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

FLOW = {
    "runner.task_type": "sft",
    "actor.model": {"model_type": "flow_policy", "num_action_chunks": 3, "hidden_sizes": [32, 32]},
}
OFT = {
    "runner.task_type": "sft",
    "data.held_out_ratio": 0.2,
    "actor.model": {
        "model_type": "openvla_oft",
        "hf_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "words": ["do", "it"],
        "prompt": "{task}",
        "max_prompt_length": 2,
        "num_images_in_input": 2,
        "vision_towers": [
            {"embed_dim": 8, "depth": 2, "num_heads": 2, "mlp_dim": 8}
            | {"patch_size": 4, "image_size": 8}
        ],
    },
}
AUGMENTED: dict[str, Any] = {
    "actor.model.random_shift": 2,
    "actor.model.random_crop": 0.8,
    "actor.model.brightness_jitter": 0.3,
    "actor.model.contrast_jitter": 0.3,
}
SHIFTED = {
    "runner.task_type": "sft",
    "data.held_out_ratio": 0.2,
    "actor.model": {
        "model_type": "flow_policy",
        "use_images": True,
        "image_size": 8,
        "channels": [4],
        "feature_dim": 8,
        "hidden_sizes": [16],
        "random_shift": 2,
    },
}
ROUNDING = {"states": 1e-5, "openvla_oft": 1e-3, "flow_policy": 1e-4, "cnn_policy": 1e-4}
"""How far weights may be apart: Adam makes much of gradients that are nearly zero."""
OFF = {"openvla_oft": dict(zip(AUGMENTED, (0, 1.0, 0.0, 0.0), strict=True))}
AUGMENTING = {
    "openvla_oft": {**OFT, **AUGMENTED},
    "flow_policy": SHIFTED,
    "cnn_policy": {
        **SHIFTED,
        "actor.model": {
            **{k: v for k, v in SHIFTED["actor.model"].items() if k != "use_images"},
            "model_type": "cnn_policy",
        },
    },
}


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Episodes whose actions follow from the states."""

    def act(state):
        return np.clip([0.8 * state[0], -0.5 * state[1]], -1, 1)

    return write_dataset(tmp_path_factory.mktemp("demos") / "d", (5, 9, 12, 7, 20), act=act)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Episodes with three cameras, whose pictures are noise."""
    folder = tmp_path_factory.mktemp("pictures") / "d"
    return write_dataset(folder, (5, 9, 12, 7), pictures="noise")


@pytest.fixture
def data_of(demos, pictures):
    """By model, data and changes of the config."""

    def data_of(model):
        if model == "states":
            return demos, {**FLOW, "data.held_out_ratio": 0.2}
        return pictures, AUGMENTING[model]

    return data_of


def test_the_first_action_comes_to_be_that_of_the_data(demos):
    changes = {
        **FLOW,
        "runner.local_update_steps": 200,
        "actor.global_batch_size": 53,
        "actor.optim.lr_scheduler": "constant",
    }
    learner = make_learner(demos, changes)
    first, last = learner.update(), [learner.update() for _ in range(2)][-1]
    assert last["actor/loss"] < 0.7 * first["actor/loss"]
    own, _ = learner.engine.model.predict_action_batch(learner.demos.obs, mode="eval")
    assert float((own[:, 0] - learner.demos.actions).abs().mean()) < 0.2


def trained(folder, changes, rank=0, world_size=1):
    learner = make_learner(folder, {**FLOW, **changes}, rank=rank, world_size=world_size)
    return [learner.update() for _ in range(3)], weights(learner)


def test_micro_batches_draw_the_same_noise(demos):
    whole, own = trained(demos, {})
    parts, other = trained(demos, {"actor.micro_batch_size": 2})
    assert distance(own, other) < 1e-5
    for one, two in zip(whole, parts, strict=True):
        assert one["actor/loss"] == pytest.approx(two["actor/loss"], rel=1e-4)


@pytest.mark.parametrize("model", AUGMENTING)
def test_micro_batches_are_augmented_as_one(pictures, model):
    changes = AUGMENTING[model]
    metrics, own = trained(pictures, changes)
    parts = trained(pictures, {**changes, "actor.micro_batch_size": 2})[1]
    assert distance(own, parts) < ROUNDING[model]
    plain, other = trained(pictures, {**changes, **OFF.get(model, {"actor.model.random_shift": 0})})
    assert plain[0]["actor/loss"] != metrics[0]["actor/loss"]
    assert distance(own, other) > 10 * ROUNDING[model]


class _Ranks:
    def __init__(self, folder, changes):
        self.folder, self.changes = folder, changes

    def __call__(self, rank):
        return trained(self.folder, self.changes, rank, 2)[1]


@pytest.mark.parametrize("model", ["states", "cnn_policy", "openvla_oft"])
def test_two_ranks_do_what_one_does(data_of, tmp_path, model):
    folder, changes = data_of(model)
    own = trained(folder, changes)[1]
    for other in run_two_ranks(_Ranks(folder, changes), tmp_path):
        assert distance(own, other) < ROUNDING[model]


@pytest.mark.parametrize("model", ["states", *AUGMENTING])
def test_resumed_is_as_if_nothing_had_happened(data_of, tmp_path, model):
    folder, changes = data_of(model)
    whole = make_learner(folder, changes)
    metrics = [whole.update() for _ in range(4)]
    first = make_learner(folder, changes)
    first.update(), first.update()
    checkpoint = EngineCheckpoint(first.engine)
    checkpoint.write(checkpoint.snapshot(), tmp_path / "tensors")
    second = make_learner(folder, changes)
    EngineCheckpoint(second.engine).read(tmp_path / "tensors")
    # Noise belongs to samples: it is not that of the process.
    torch.manual_seed(123)
    state = {name: {**own} for name, own in first.state().items()}
    state["actor"]["random"] = torch.get_rng_state()
    assert second.load_state(state) == []
    assert [second.update(), second.update()] == metrics[2:]
    assert distance(weights(second), weights(whole)) == 0.0
    assert second.held_out_loss() == whole.held_out_loss()


def test_the_held_out_loss_is_of_pictures_as_they_are(pictures):
    augmented, plain = (make_learner(pictures, own) for own in (AUGMENTING["openvla_oft"], OFT))
    assert augmented.held_out_loss() == plain.held_out_loss() != {}


def test_held_out_episodes_are_not_learned_from(demos):
    learner = make_learner(demos, {**FLOW, "data.held_out_ratio": 0.4})
    held_out = set(learner.held_out.tolist())
    begins = learner.demos.begins.tolist()
    whole = [set(range(*pair)) for pair in zip(begins, begins[1:], strict=False)]
    assert sum(frames <= held_out for frames in whole) == 2 and len(held_out) < 53
    for _ in range(10):
        assert not held_out & set(learner.next_rows().flatten().tolist())
    states = learner.demos.obs["states"]
    seen = torch.tensor(sorted(set(range(53)) - held_out))
    torch.testing.assert_close(
        learner.engine.model.normalizer.shift, states[seen].mean(0), rtol=1e-4, atol=1e-5
    )
    assert learner.update()["data/episodes"] == 3
    # Another seed would hold out others; one that is equal holds out the same.
    again = make_learner(demos, {**FLOW, "data.held_out_ratio": 0.4})
    assert again.held_out.tolist() == learner.held_out.tolist()


@pytest.mark.parametrize("model", ["flow_policy", "mlp_policy"])
def test_the_held_out_loss_falls_and_asking_for_it_changes_nothing(demos, model):
    changes = {
        **FLOW,
        "data.held_out_ratio": 0.2,
        "runner.local_update_steps": 100,
        "actor.model.model_type": model,
        "actor.model.num_action_chunks": 1,
        "actor.optim.lr_scheduler": "constant",
    }
    asked, silent = make_learner(demos, changes), make_learner(demos, changes)
    before = asked.held_out_loss()["held_out_loss"]
    assert asked.held_out_loss()["held_out_loss"] == before
    for learner in (asked, silent):
        learner.update()
    assert asked.held_out_loss()["held_out_loss"] < 0.9 * before
    assert distance(weights(asked), weights(silent)) == 0.0
    assert make_learner(demos, FLOW).held_out_loss() == {}


def test_folders_have_the_share_that_their_weights_say(demos, tmp_path):
    other = write_dataset(tmp_path / "o", (30, 30), seed=4)
    changes = {
        **FLOW,
        "data.train_data_paths": [str(demos), str(other)],
        "data.train_data_weights": [3.0, 1.0],
        "actor.global_batch_size": 113,
        "runner.local_update_steps": 4,
    }
    rows = make_learner(demos, changes).next_rows()
    # A batch is a pass here: three quarters of 113.
    assert [(batch < 53).sum().item() for batch in rows] == [85] * 4
    assert set(rows.flatten().tolist()) == set(range(113))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.train_data_weights": [1.0, 2.0]}, "has 2 numbers"),
        ({"data.held_out_ratio": 1.0}, "data.held_out_ratio"),
        ({"algorithm.loss_type": "offline_iql"}, "is supervised training"),
        ({"runner.task_type": "offline", "data.held_out_ratio": 0.5}, "data.held_out_ratio"),
        ({"actor.model.noise_method": "reinflow"}, "set joint_logprob to true"),
        ({"actor.model.noise_std_min": 0.5}, "is above noise_std_max"),
        ({"actor.model.use_states": False}, "both false"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes, said):
    with pytest.raises(ConfigError) as caught:
        make_cfg("demos", {**FLOW, **changes})
    assert said in str(caught.value)


def test_one_episode_cannot_be_held_out(tmp_path):
    with pytest.raises(ValueError, match="leave none of 1 episode"):
        make_learner(write_dataset(tmp_path / "d", (9,)), {**FLOW, "data.held_out_ratio": 0.5})
