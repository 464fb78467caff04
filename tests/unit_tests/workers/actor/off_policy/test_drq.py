"""Random shifts of pictures from the replay buffer."""

import pytest
import torch
from torch.nn import functional

from rlinf.utils.env_spec import EnvSpec
from tests.unit_tests.workers.actor.off_policy.replaying import (
    SAC,
    feed,
    make_off_policy,
    make_sac_cfg,
    replay_rollout,
)

SPEC = EnvSpec(
    obs_dim=5, action_dim=2, action_low=[-1, -1], action_high=[1, 1], image_shape=(12, 12, 3)
)
PICTURES = {
    **SAC,
    "actor.model": {
        **SAC["actor.model"],
        "model_type": "cnn_policy",
        "channels": [4],
        "image_size": 12,
        "feature_dim": 6,
    },
    "actor.enable_drq": True,
}


def make(changes=None):
    return make_off_policy(make_sac_cfg(changes, PICTURES), SPEC)


def with_pictures(learner, seed=0):
    rollout = replay_rollout(learner.engine.model, seed=seed)
    g = torch.Generator().manual_seed(seed)
    shape = rollout.rewards.shape[:2]
    rollout.forward_inputs["main_images"] = torch.randint(
        0, 256, (*shape, 1, 12, 12, 3), generator=g, dtype=torch.uint8
    )
    ends = len(rollout.final.obs["states"])
    seen = torch.randint(0, 256, (ends, 12, 12, 3), generator=g, dtype=torch.uint8)
    raw = rollout.final.obs | {"main_images": seen}
    rollout.final.obs = learner.engine.model.replay_inputs(raw)
    return rollout


def test_both_times_are_shifted_by_themselves_and_anew():
    learner = make()
    learner.prepare(with_pictures(learner), range(8))
    one, other = learner._draw(2)
    shifts = [one.obs["shift"], one.next_obs["shift"], other.obs["shift"]]
    assert all(int(shift.abs().max()) == 4 and shift.shape == (16, 2) for shift in shifts)
    assert len({tuple(shift.flatten().tolist()) for shift in shifts}) == 3
    policy = learner.engine.model
    # Pad by repeating the border, and cut out: as DrQ is written down.
    pictures = one.obs["main_images"][:, 0].permute(0, 3, 1, 2).float()
    padded = functional.pad(pictures, (4, 4, 4, 4), mode="replicate")
    for i, (row, column) in enumerate(one.obs["shift"].tolist()):
        cut = padded[i, :, 4 + row : 16 + row, 4 + column : 16 + column]
        plain = {"main_images": cut.permute(1, 2, 0)[None, None].to(torch.uint8)}
        plain["states"] = one.obs["states"][i : i + 1]
        own = {name: value[i : i + 1] for name, value in one.obs.items()}
        torch.testing.assert_close(policy.features(own), policy.features(plain))


def test_it_learns_and_keeps_pictures_once():
    learner = make()
    metrics = feed(learner, with_pictures(learner))
    assert metrics["sac/updates"] == 2
    layout = learner.replay._store.layouts["frames"]
    assert [name for name in layout if "image" in name] == ["obs/main_images"]


def test_a_policy_without_pictures_is_told():
    with pytest.raises(ValueError, match=r"actor\.enable_drq shifts pictures, and MLPPolicy"):
        make_off_policy(make_sac_cfg({"actor.enable_drq": True}))
