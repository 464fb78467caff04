"""A learner that is saved and loaded goes on as if nothing had happened."""

import pytest
import torch

from rlinf.data.replay import TrajectoryReplayBuffer
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.utils.checkpoint import load_tree, save_tree
from tests.unit_tests.workers.actor.learning import SPEC
from tests.unit_tests.workers.actor.off_policy.replaying import (
    CHOICES,
    CROSSQ,
    OF_CHOICES,
    SAC,
    TD3,
    feed,
    make_off_policy,
    make_sac_cfg,
    replay_rollout,
    weights_of,
)

CASES = {
    "sac": {},
    "priorities": {
        "algorithm.replay_buffer": {"cache_size": 150, "priorities": {}, "n_step": 2},
        "algorithm.critic_actor_ratio": 3,
        "actor.model.num_q_heads": 4,
        "algorithm.critic_subsample_size": 2,
    },
    "choices": {},
    "td3": {},
    "crossq": {},
}
BASES = {"choices": OF_CHOICES, "td3": TD3, "crossq": CROSSQ}


def make(name, folder):
    choices = name == "choices"
    cfg = make_sac_cfg(CASES[name], BASES.get(name, SAC))
    return make_off_policy(cfg, CHOICES if choices else SPEC, folder=folder)


def steps(learner, numbers, name):
    return [
        feed(learner, replay_rollout(learner.engine.model, seed=n, choices=name == "choices"))
        for n in numbers
    ]


def save(learner, folder):
    checkpoint = EngineCheckpoint(learner.engine)
    write = learner.snapshot_files(folder)
    checkpoint.write(checkpoint.snapshot(), folder / "tensors")
    save_tree(folder / "state", learner.state())
    return write


def load(learner, folder):
    EngineCheckpoint(learner.engine).read(folder / "tensors")
    return [*learner.load_state(load_tree(folder / "state")), *learner.load_files(folder)]


@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_exactly(name, tmp_path):
    first = make(name, tmp_path / "run")
    steps(first, range(3), name)
    write = save(first, tmp_path / "saved")
    # What happens after the snapshot is not part of it.
    expected = steps(first, range(3, 6), name)
    write()
    weights = weights_of(first)
    first.replay.close()
    second = make(name, tmp_path / "again")
    assert load(second, tmp_path / "saved") == []
    assert second.gradient_steps == 6 and second.version == 3
    assert steps(second, range(3, 6), name) == expected
    own = weights_of(second)
    assert all(torch.equal(own[key], tensor) for key, tensor in weights.items())


def test_full_segments_are_linked_and_not_copied(tmp_path):
    learner = make("sac", None)
    learner.replay = TrajectoryReplayBuffer(500, folder=tmp_path / "run", segment_bytes=400)
    steps(learner, range(2), "sac")
    places = []
    for name in ("one", "two"):
        save(learner, tmp_path / name)()
        files = (tmp_path / name / "replay" / "rank_0").glob("frames_*.safetensors")
        places.append({path.name: path.stat().st_ino for path in files})
    shared = {name for name, place in places[0].items() if places[1].get(name) == place}
    # All but the open segment.
    assert len(shared) >= 10 and len(places[0]) - len(shared) <= 1


def test_another_number_of_ranks_is_told(tmp_path):
    learner = make("sac", None)
    steps(learner, range(2), "sac")
    save(learner, tmp_path)()
    other = make_off_policy(make_sac_cfg(), rank=0, world_size=1)
    other.replay.world_size, other.replay.rank = 2, 0
    notes = other.load_files(tmp_path)
    assert any("ranks saved" in note for note in notes) and 0 < len(other.replay) < 192
