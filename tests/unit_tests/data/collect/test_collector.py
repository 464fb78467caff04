"""Which episodes are kept, in which order, and what is written of them."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.data.collect.collector import Collector, NotEnoughEpisodes
from rlinf.data.collect.noise import ActionNoise
from rlinf.data.collect.recording import dataset_features
from rlinf.data.lerobot import LeRobotDataset, episodes
from rlinf.data.lerobot.writer import DatasetWriter
from rlinf.envs import ActionSpec, SlotVectorEnv
from rlinf.envs.experts import Expert
from rlinf.envs.step_result import ObsSpec


class LineEnv(SlotVectorEnv):
    """Walks along a line from a place that the seed gives; solved beyond 3 of where it began.

    It ends there, or after `max_episode_steps`. Keys: fail_at, nan_at (once) and override_at, each
    slot and step.
    """

    env_type = "line"

    @property
    def obs_spec(self):
        return {
            "states": ObsSpec((3,)),
            "main_images": ObsSpec((8, 8, 3), np.uint8),
            "extra_view_images": ObsSpec((2, 8, 8, 3), np.uint8),
            "wrist_images": ObsSpec((2, 8, 8, 3), np.uint8),
        }

    @property
    def action_spec(self):
        return ActionSpec.box([-1, -1], [1, 2])

    def make_slot(self, slot):
        self.places = getattr(self, "places", {})
        self.made = [*getattr(self, "made", []), slot]

    def reset_slot(self, slot, start):
        begin = float(start.seed // 2 % 100)
        self.places[slot] = [begin, begin, 0.0]
        return self._observe(slot)

    def step_slot(self, slot, action):
        place = self.places[slot]
        here = slot, int(place[2])
        if here == self.cfg.get("fail_at") and self.made.count(slot) == 1:
            raise ValueError("the motor is hot")
        if here == self.cfg.get("override_at"):
            action = np.array([0.25, 0.0], np.float32)
            self._result.interventions[slot] = action
        place[1] += float(action[0])
        place[2] += 1
        obs = self._observe(slot)
        if here == self.cfg.get("nan_at") and not getattr(self, "broke", False):
            self.broke = True
            obs["states"][1] = np.nan
        success = place[1] - place[0] > 3
        return obs, float(action[0]), success, False, success

    def _observe(self, slot):
        place = self.places[slot]
        picture = np.full((8, 8, 3), int(place[2]), np.uint8)
        return {
            "states": np.array(place),
            "main_images": picture,
            "extra_view_images": np.stack([picture + 1, picture + 2]),
            "wrist_images": np.stack([picture + 3, picture + 4]),
        }

    def _describe(self, slot):
        return "walk"


class Walker(Expert):
    """Walks with a speed that depends on where it began, too fast for the bounds for some."""

    def act(self, obs, slots):
        begin = obs["states"][slots, 0].numpy()
        return np.stack([np.where(begin % 2 == 0, 3.0, 0.5), begin], axis=1)


def collect(folder, num_envs=3, count=6, noise=(0.0,), expert=Walker, cfg=None, **settings):
    own = {"max_episode_steps": 5, "seed": 7, **(cfg or {})}
    env = LineEnv(own, num_envs)
    features = dataset_features(env, "image")
    settings = {"episodes": count, "attempts": 10 * count, **settings}
    with DatasetWriter.create(folder, 10, features, final_observations=True) as writer:
        collector = Collector(
            env,
            expert(own, env.action_spec, num_envs=num_envs),
            ActionNoise(env.policy_spec, noise, seed=7),
            lambda episode: episode.write(writer),
            **settings,
        )
        try:
            collector.run()
        finally:
            env.close()
    return LeRobotDataset(folder), collector.collected


def actions(dataset):
    return np.concatenate([e.values["action"] for e in dataset.episodes(["action"])])


def test_the_dataset_is_the_same_however_many_envs_there_are(tmp_path):
    one, _ = collect(tmp_path / "one", num_envs=1, noise=(0.0, 0.5))
    two, found = collect(tmp_path / "two", num_envs=4, noise=(0.0, 0.5))
    assert found.kept == found.played == one.num_episodes == two.num_episodes == 6
    for a, b in zip(one.episodes(), two.episodes(), strict=True):
        assert a.length == b.length
        for name, value in a.values.items():
            np.testing.assert_array_equal(value, b.values[name], err_msg=name)
        np.testing.assert_array_equal(
            a.final_observation["observation.state"], b.final_observation["observation.state"]
        )


def test_actions_are_stored_as_they_were_executed(tmp_path):
    dataset, _ = collect(tmp_path / "d")
    stored = actions(dataset)
    assert stored.max(axis=0).tolist() == [1.0, 2.0]
    for episode in episodes(dataset):
        places = [*episode.observations["state"][:, 1], episode.final_observation["state"][1]]
        np.testing.assert_allclose(np.diff(places), episode.actions[:, 0])
        np.testing.assert_allclose(episode.rewards, episode.actions[:, 0])
        ended = episode.terminations if episode.actions[0, 0] == 1 else episode.truncations
        assert ended[-1] and not (episode.terminations & episode.truncations).any()


def test_actions_are_stored_as_the_policy_would_give_them(tmp_path):
    plain, _ = collect(tmp_path / "plain")
    convention = {"units": "unit", "layout": [2, 0]}
    own, _ = collect(tmp_path / "own", cfg={"action_convention": convention, "override_at": (0, 1)})
    found, expected = own.episode(1).values, plain.episode(1).values
    np.testing.assert_array_equal(found["observation.state"], expected["observation.state"])
    # The second number goes from -1 to 2; nothing takes the third.
    second = (expected["action"][:, 1] - 0.5) / 1.5
    zero = np.zeros_like(second)
    np.testing.assert_allclose(
        found["action"], np.stack([second, zero, expected["action"][:, 0]], 1), atol=1e-6
    )
    # Somebody took over with (0.25, 0).
    np.testing.assert_allclose(own.episode(0).values["action"][1], [-1 / 3, 0, 0.25], atol=1e-6)


def test_who_acts_as_a_policy_sees_what_a_policy_sees(tmp_path):
    class Hidden(LineEnv):
        def expert_obs(self, obs):
            raise AssertionError("only experts see this")

    class Policy(Walker):
        is_policy = True

    env = Hidden({"max_episode_steps": 2, "seed": 7}, 1)
    noise = ActionNoise(env.policy_spec, (0.0,), seed=7)
    expert = Policy({}, env.policy_spec, num_envs=1)
    assert Collector(env, expert, noise, lambda _: None, episodes=1, attempts=1).run().kept == 1


def test_pictures_and_further_cameras_are_kept(tmp_path):
    dataset, _ = collect(tmp_path / "d", count=1)
    values = dataset.episode(0).values
    steps = np.arange(len(values["observation.images.main"]))
    names = ("main", "extra_view_0", "extra_view_1", "wrist_0", "wrist_1")
    for offset, name in enumerate(names):
        pictures = values[f"observation.images.{name}"]
        assert pictures.shape[1:] == (8, 8, 3)
        np.testing.assert_array_equal(pictures[:, 0, 0, 0], steps + offset)


def test_only_successful_episodes(tmp_path):
    dataset, found = collect(tmp_path / "d", only_success=True, count=4)
    assert found.kept == found.successes == 4 and found.played > 4
    assert all(e.values["next.success"].any() for e in dataset.episodes(["next.success"]))
    every, _ = collect(tmp_path / "all", count=found.played)
    solved = [e.values["action"] for e in every.episodes() if e.values["next.success"].any()]
    np.testing.assert_array_equal(actions(dataset), np.concatenate(solved))


def test_too_few_episodes_say_what_to_do(tmp_path):
    class Idle(Expert):
        def act(self, obs, slots):
            return np.zeros((len(slots), 2))

    with pytest.raises(NotEnoughEpisodes, match=r"only 0 of 2 .* of 6 .*max_attempts"):
        collect(tmp_path / "d", count=2, attempts=6, only_success=True, expert=Idle)


def test_noise_has_the_levels_in_turn(tmp_path):
    class Idle(Expert):
        def act(self, obs, slots):
            return np.zeros((len(slots), 2))

    dataset, _ = collect(tmp_path / "d", noise=(0.0, 0.3), expert=Idle)
    moved = [np.abs(e.values["action"]).max() for e in dataset.episodes(["action"])]
    assert [value > 0 for value in moved] == [False, True] * 3


def test_noise_on_choices_draws_them_anew():
    spec = ActionSpec.choice([5, 3])
    noise = ActionNoise(spec, [0.0, 1.0], seed=0)
    noise.begin(0, 0)
    assert noise.apply(0, np.array([9, -2])).tolist() == [4, 0]
    noise.begin(0, 1)
    drawn = np.array([noise.apply(0, np.array([4, 0])) for _ in range(50)])
    assert drawn.dtype == np.int64 and set(drawn[:, 0]) == set(range(5))


def test_an_expert_may_discard_episodes(tmp_path):
    class Fussy(Walker):
        def begin(self, slots, episodes):
            self.numbers = getattr(self, "numbers", {}) | dict(zip(slots, episodes, strict=True))

        def discards(self, slot):
            return self.numbers[slot] % 2 == 0

    _, found = collect(tmp_path / "d", expert=Fussy, count=3)
    assert found.numbers == [1, 3, 5] and found.played == 6


def test_an_episode_whose_simulator_failed_is_played_again(tmp_path):
    plain, _ = collect(tmp_path / "plain")
    failed, _ = collect(tmp_path / "failed", cfg={"fail_at": (1, 2), "max_restarts": 1})
    np.testing.assert_array_equal(actions(plain), actions(failed))


def test_an_episode_with_a_nan_is_left_out(tmp_path):
    # Slot 0 begins with episode 0.
    _, found = collect(tmp_path / "d", cfg={"nan_at": (0, 1), "on_nan": "skip"}, num_envs=6)
    assert found.kept == 6 and found.dropped == 1 and 0 not in found.numbers


def test_interventions_are_what_was_executed_and_are_marked(tmp_path):
    dataset, _ = collect(tmp_path / "d", count=1, num_envs=1, cfg={"override_at": (0, 1)})
    values = dataset.episode(0).values
    assert values["intervention"].reshape(-1).tolist()[:3] == [False, True, False]
    assert values["action"][1].tolist() == [0.25, 0.0]


def test_an_env_that_draws_its_own_starts_is_collected_from(tmp_path):
    class Drawing(LineEnv):
        chooses_starts = False

    env = Drawing({"max_episode_steps": 4, "seed": 3}, 2)
    kept = []
    noise = ActionNoise(env.action_spec, [0.0], seed=0)
    expert = Walker({}, env.action_spec, num_envs=2)
    found = Collector(env, expert, noise, kept.append, episodes=5, attempts=9).run()
    assert found.kept == 5 and [episode.number for episode in kept] == list(range(5))
