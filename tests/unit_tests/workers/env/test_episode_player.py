"""An env worker's part in an evaluation: what it reports, and what drawing does not change."""

import imageio
import pytest
import torch

from rlinf.envs import get_env_cls
from rlinf.utils.evaluation import Evaluation
from rlinf.workers.env.env_worker import check_evaluation
from rlinf.workers.env.episode_player import EpisodePlayer
from tests.unit_tests.envs.conftest import WalkEnv


def make(num_envs=3, **cfg):
    return WalkEnv({"seed": 2, "max_episode_steps": 6, **cfg}, num_envs)


def ask(obs):
    return (0.3 + (obs["states"][:, :1] % 5) / 6)[:, None].expand(-1, 1, 2)


def rows(played):
    return {record.id: record.outcome() for record in played.records}


def test_the_records_are_those_of_the_episodes():
    played = EpisodePlayer(make(states=20, terminates=True), ask).play(range(7))
    assert sorted(rows(played)) == list(range(7))
    assert played.counters == {"restarts": 0, "nan_skipped": 0}
    for record in played.records:
        assert record.task == "walk" and 0 <= record.reset_id < 20 and record.video is None
        amount = 0.3 + (record.reset_id % 5) / 6
        # It succeeds, and ends, beyond 3; the step limit is 6.
        steps = next((n for n in range(1, 7) if n * amount > 3), 6)
        assert record.length == steps and record.success_once == (steps * amount > 3)
        assert record.ret == pytest.approx(steps * amount, rel=1e-5)


def test_starts_are_told_apart_by_what_is_observed_wherever_they_are_played():
    """Of six states three look alike; all are played twice, by one env and by two."""
    cfg = {"seed": 2, "max_episode_steps": 6, "states": 6, "terminates": True}
    whole = EpisodePlayer(Alike(cfg, 5), ask).play(range(12))
    starts = {record.id: record.start for record in whole.records}
    for record in whole.records:
        same = {r.start for r in whole.records if r.reset_id % 3 == record.reset_id % 3}
        assert same == {record.start}
    assert len(set(starts.values())) == 3
    halves = [
        EpisodePlayer(Alike(cfg, slots), ask).play(numbers)
        for slots, numbers in ((2, range(6)), (1, range(6, 12)))
    ]
    assert {r.id: r.start for half in halves for r in half.records} == starts
    found = Evaluation(step=0, protocol="", records=[r for half in halves for r in half.records])
    assert found.metrics()["eval/distinct_starts"] == 3.0


def test_starts_that_look_alike_to_the_policy_are_told_apart_by_what_is_hidden():
    pytest.importorskip("metaworld")
    cfg = {"seed": 2, "task": "faucet-open-v3", "max_episode_steps": 2}
    hidden = {"goals": "random", "hide_goal": True, "task_one_hot": False}
    env = get_env_cls("metaworld")(cfg | hidden | {"state_entries": [0, 1, 2, 3]}, 2)
    seen = []

    def stay(obs):
        seen.extend(state.numpy().tobytes() for state in obs["states"])
        return torch.zeros(2, 1, 4)

    played = EpisodePlayer(env, stay).play(range(4))
    assert len(set(seen[:2])) == 1, "the hand begins where it always does"
    assert len({record.start for record in played.records}) == 4


class Alike(WalkEnv):
    """Begins in the same place in several reset states."""

    def reset_slot(self, slot, start):
        return super().reset_slot(slot, start._replace(reset_id=start.reset_id % 3))


def test_counters_are_those_of_one_evaluation():
    player = EpisodePlayer(make(nan_at=(1, 3), on_nan="skip"), ask)
    first, second = player.play(range(6)), player.play(range(6))
    assert first.counters == second.counters == {"restarts": 0, "nan_skipped": 3}
    assert rows(first) == rows(second) and len(rows(first)) == 3


def test_drawing_changes_nothing_and_shows_whole_episodes(tmp_path):
    plain = EpisodePlayer(make(terminates=True), ask).play(range(9))
    drawn = EpisodePlayer(make(2, terminates=True), ask).record([0, 4, 8], tmp_path, 10, True)
    assert rows(drawn) == {number: rows(plain)[number] for number in (0, 4, 8)}
    assert drawn.reason == "" and sorted(drawn.videos) == [0, 4, 8]
    for record in drawn.records:
        # One frame of the beginning and one per step.
        assert len(imageio.mimread(drawn.videos[record.id])) == record.length + 1
    half = EpisodePlayer(make(), ask).record([5], tmp_path / "half", 15, False, stride=2)
    (record,) = half.records
    assert len(imageio.mimread(half.videos[5])) == record.length // 2 + 1
    assert half.videos[5].endswith("half/episode_0005.mp4")
    with imageio.get_reader(half.videos[5]) as reader:
        assert reader.get_meta_data()["fps"] == 7.5


@pytest.mark.parametrize("chunk", [3, 4])
def test_videos_show_what_happens_inside_of_chunks(tmp_path, chunk):
    """The policy is asked once per chunk, and each step of an episode is a frame."""
    asked = []

    def ask_for_chunks(obs):
        asked.append(len(obs["states"]))
        return ask(obs).expand(-1, chunk, 2)

    env = make(terminates=True)
    plain = EpisodePlayer(env, ask_for_chunks).play(range(3))
    times = len(asked)
    drawn = EpisodePlayer(env, ask_for_chunks).record(range(3), tmp_path, 10, True)
    assert rows(drawn) == rows(plain) and len(asked) == 2 * times
    lengths = {record.id: record.length for record in drawn.records}
    assert len(set(lengths.values())) > 1 and any(n % chunk for n in lengths.values())
    for number, length in lengths.items():
        assert len(imageio.mimread(drawn.videos[number])) == length + 1


def test_a_machine_that_cannot_draw_costs_the_videos_only(tmp_path, monkeypatch):
    def fail(slot):
        raise RuntimeError("no OpenGL")

    env = make()
    monkeypatch.setattr(env, "render_slot", fail)
    found = EpisodePlayer(env, ask).record([0, 1], tmp_path, 10, True)
    assert found.reason == "RuntimeError: no OpenGL" and found.videos == {}
    assert len(EpisodePlayer(env, ask).play(range(4)).records) == 4


def test_an_env_that_cannot_be_evaluated_in_is_told_before_training(monkeypatch):
    endless = get_env_cls("gymnasium")({"id": "Pendulum-v1"}, 1)
    check_evaluation(endless)
    endless.max_episode_steps = None
    with pytest.raises(ValueError, match="set env.eval.max_episode_steps"):
        check_evaluation(endless)
    monkeypatch.setattr(type(endless), "chooses_starts", False)
    with pytest.raises(ValueError, match="env.eval.env_type gymnasium draws its initial states"):
        check_evaluation(endless)


def test_nobody_is_stepped_without_work():
    env = make()
    played = EpisodePlayer(env, lambda obs: pytest.fail("asked without work")).play([])
    assert played.records == [] and not env.has_work
    assert isinstance(env.last_obs["states"], torch.Tensor)
