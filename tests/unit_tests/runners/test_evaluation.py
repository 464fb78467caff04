"""What the driver does with an evaluation: adds up, writes, chooses episodes to draw."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlinf.runners.evaluation import Evaluator
from rlinf.runners.players import Players
from rlinf.scheduler import RunFiles
from rlinf.workers.env.episode_player import EpisodePlayer, Played
from tests.unit_tests.envs.conftest import WalkEnv
from tests.unit_tests.workers.actor.learning import make_cfg


class Group:
    """Stands for a worker group of two ranks; the episodes themselves are real."""

    def __init__(self, able: bool = True, changed: bool = False) -> None:
        self.calls: list[str] = []
        self._able, self._changed = able, changed

    def _player(self) -> EpisodePlayer:
        env = WalkEnv({"seed": 32, "max_episode_steps": 6}, 2)
        push = 0.5 if self._changed and "record" in self.calls else 0.3
        return EpisodePlayer(
            env, lambda obs: (push + (obs["states"][:, :1] % 5) / 6)[:, None].expand(-1, 1, 2)
        )

    def evaluate(self, episodes: int | None = None):
        self.calls.append("evaluate")
        half = (episodes or 0) // 2
        parts = [range(half), range(half, episodes or 0)]
        return self._done([self._player().play(part) for part in parts])

    def record(self, numbers, folder):
        self.calls.append("record")
        if not self._able:
            return self._done([Played(reason="no OpenGL"), Played(reason="rank 0 draws")])
        played = self._player().record(numbers, Path(folder), 10, True)
        return self._done([played, Played(reason="rank 0 draws")])

    def keep_weights(self):
        self.calls.append("keep")
        return self._done(None)

    def restore_weights(self):
        self.calls.append("restore")
        return self._done(None)

    def _done(self, result):
        return SimpleNamespace(wait=lambda: result)


def make(tmp_path, env=None, video=None, **runner):
    section = {"env_type": "metaworld", "total_num_envs": 4, "seed": 9, "max_episode_steps": 6}
    section["video_cfg"] = {"save_video": video is not None, **(video or {})}
    keys = {f"runner.{key}": value for key, value in runner.items()}
    cfg = make_cfg({"env.eval": section, "runner.eval_episodes": 9, **keys})
    retry = SimpleNamespace(run=lambda start: start())
    rollout = Group()
    files = RunFiles(session=None, nodes=[], run_id="alone")
    players = Players(cfg, env or Group(), rollout)
    return Evaluator(cfg, tmp_path, players, retry, files), rollout


def test_parts_are_put_together_and_written(tmp_path):
    evaluator, rollout = make(tmp_path)
    synced = []
    found = evaluator.evaluate(4, lambda: synced.append(1))
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert [episode["id"] for episode in content["episodes"]] == list(range(9))
    assert content["step"] == 4 and content["dropped"] == [] and synced == [1]
    words = "metaworld button-press-v3, seed 9, 9 episodes, numbers from 0, at most 6 steps"
    assert content["protocol"] == f"{words}, actions without noise"
    assert found.metrics()["eval/restarts"] == 0.0
    assert evaluator.final(4, lambda: pytest.fail("it is known")) is found
    assert evaluator.video is None
    assert evaluator.final(5, lambda: None) is not found
    assert "keep" not in rollout.calls


@pytest.mark.parametrize("step", [3, 4])
def test_the_next_rollout_has_the_weights_it_would_have_had(tmp_path, step):
    evaluator, rollout = make(tmp_path, weight_sync_interval=2)
    evaluator.evaluate(step, lambda: rollout.calls.append("sync"))
    expected = ["sync", "evaluate"]
    if step == 3:
        expected = ["keep", *expected, "restore"]
    assert rollout.calls == expected


def test_the_first_episodes_and_the_first_failures_are_drawn(tmp_path):
    evaluator, _ = make(tmp_path, video={"max_videos": 2, "max_failures": 2})
    found = evaluator.final(1, lambda: None)
    # Of the two failures one is shown already, and the third is one too many.
    assert found.failures() == [1, 5, 7]
    wanted = {0, 1, 5}
    videos = {record.id: record.video for record in found.records if record.video}
    assert videos == {number: f"videos/episode_{number:04d}.mp4" for number in wanted}
    assert all((tmp_path / path).stat().st_size > 300 for path in videos.values())
    first = (tmp_path / "videos" / "episode_0000.mp4").read_bytes()
    assert evaluator.video == str(tmp_path / "policy.mp4")
    assert (tmp_path / "policy.mp4").read_bytes() == first
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert {e["id"]: e["video"] for e in content["episodes"] if e["video"]} == videos


def test_chosen_episodes_are_drawn(tmp_path):
    evaluator, _ = make(tmp_path, video={"episodes": [5, 99, 2], "max_failures": 0})
    found = evaluator.final(1, lambda: None)
    assert [record.id for record in found.records if record.video] == [2, 5]
    fifth = (tmp_path / "videos" / "episode_0005.mp4").read_bytes()
    assert (tmp_path / "policy.mp4").read_bytes() == fifth


def test_videos_can_go_elsewhere(tmp_path):
    own = {"video_base_dir": str(tmp_path / "films"), "max_videos": 1, "max_failures": 0}
    evaluator, _ = make(tmp_path / "run", video=own)
    (tmp_path / "run").mkdir()
    found = evaluator.final(1, lambda: None)
    assert found.records[0].video == str(tmp_path / "films" / "episode_0000.mp4")


def test_a_reason_is_given_for_what_is_not_drawn(tmp_path, capsys):
    evaluator, _ = make(tmp_path, Group(able=False), video={})
    found = evaluator.final(1, lambda: None)
    assert evaluator.video == found.video_note == "no video: no OpenGL"
    assert "no video: no OpenGL" in capsys.readouterr().err
    assert json.loads((tmp_path / "evaluation.json").read_text())["video_note"] == found.video_note
    assert not (tmp_path / "policy.mp4").exists()


def test_an_episode_that_goes_another_way_is_told(tmp_path, capsys):
    evaluator, _ = make(tmp_path, Group(changed=True), video={"max_videos": 2, "max_failures": 0})
    found = evaluator.final(1, lambda: None)
    assert "episodes 0, 1 went another way" in found.video_note
    assert "not determined by how they begin" in capsys.readouterr().err
