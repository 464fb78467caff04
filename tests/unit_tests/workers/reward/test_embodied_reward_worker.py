"""Rewards of a reward model for rollouts of envs, and which models are refused."""

from types import SimpleNamespace

import pytest
import torch

from rlinf.data.embodied import UnscoredTrajectory, split_trajectory
from rlinf.runners.reward_group import reward_metrics
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.reward import embodied_reward_worker
from rlinf.workers.reward.embodied_reward_worker import EmbodiedRewardWorker
from rlinf.workers.reward.reward_models import find_reward_model, require_fitting

STEPS, ENVS, CHUNK = 5, 4, 2
KEYS = {
    "reward_mode": "per_step",
    "reward_weight": 2.0,
    "env_reward_weight": 0.5,
    "reward_threshold": 0.6,
    "use_reward_prob": True,
}


def make_worker(**changes):
    """A worker without a cluster; its model takes the first number of a state for the log-odds."""
    worker = object.__new__(EmbodiedRewardWorker)
    worker.cfg = SimpleNamespace(reward=SimpleNamespace(**KEYS | changes))
    worker._model = lambda observations: observations["states"][:, 0]
    return worker


def make_trajectory(success=True):
    generator = torch.Generator().manual_seed(0)
    flags = torch.zeros(STEPS, ENVS, CHUNK, dtype=torch.bool)
    valid = ~flags
    valid[3, 1, 1] = False
    valid[4, 1] = False
    ends = flags.clone()
    ends[3, 1, 0] = True
    states = torch.randn(STEPS, ENVS, 3, generator=generator)
    return UnscoredTrajectory(
        rewards=torch.rand(STEPS, ENVS, CHUNK, generator=generator),
        terminations=ends,
        truncations=flags,
        valid=valid,
        begins=flags[..., 0],
        actions=torch.zeros(STEPS, ENVS, CHUNK, 1),
        intervened=flags,
        outcomes={"states": states},
        success=states[..., 1] > 0 if success else None,
    )


@pytest.mark.parametrize("at_once", [4096, 3])
def test_rewards_are_those_of_the_model_added_to_those_of_the_env(monkeypatch, at_once):
    monkeypatch.setattr(embodied_reward_worker, "_MOST_SAMPLES", at_once)
    given = make_trajectory()
    scored, _ = make_worker().score(given)
    chances = given.outcomes["states"][..., 0].sigmoid()
    for step in range(STEPS):
        for env in range(ENVS):
            expected = 0.5 * given.rewards[step, env]
            if (step, env) == (3, 1):
                expected[0] += 2 * chances[step, env]
            elif (step, env) != (4, 1):
                expected[1] += 2 * chances[step, env]
            assert scored.rewards[step, env].tolist() == pytest.approx(expected.tolist())


def test_metrics_are_those_of_all_workers_together():
    given = make_trajectory()
    whole = reward_metrics([make_worker().score(given)[1]])
    acted = given.valid.any(-1)
    chances, solved = given.outcomes["states"][..., 0].sigmoid()[acted], given.success[acted]
    found = chances >= 0.6
    assert whole["reward/model_mean"] == pytest.approx(float(chances.mean()))
    assert whole["reward/found"] == pytest.approx(float(found.float().mean()))
    assert whole["reward/solved"] == pytest.approx(float(solved.float().mean()))
    assert whole["reward/agreement"] == pytest.approx(float((found == solved).float().mean()))
    wrong = float((found & ~solved).sum() / found.sum())
    assert whole["reward/false_positives"] == pytest.approx(wrong)
    parts = [make_worker().score(part)[1] for part in split_trajectory(given, [1, 3])]
    assert reward_metrics(parts) == pytest.approx(whole)


def test_an_env_that_does_not_report_success_has_no_agreement():
    metrics = reward_metrics([make_worker().score(make_trajectory(success=False))[1]])
    assert metrics.keys() == {"reward/model_mean", "reward/mean", "reward/found"}


def test_a_model_of_other_observations_is_refused():
    trained = EnvSpec(obs_dim=39, image_shape=(64, 64, 3))
    fits = EnvSpec(obs_dim=39, image_shape=(48, 48, 3))
    require_fitting(["states", "main_images", "wrist_images"], trained, fits, "logs/m")
    with pytest.raises(ValueError, match="looks at 'states' of 39 numbers, and env.train has 17"):
        require_fitting(["states"], trained, EnvSpec(obs_dim=17), "logs/m")
    with pytest.raises(ValueError, match="'main_images' of 3 channels, and env.train does not"):
        require_fitting(["main_images"], trained, EnvSpec(obs_dim=39), "logs/m")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="train one with `rlinf train metaworld_reward_model_mlp`"):
        find_reward_model(str(tmp_path / "none"))
