"""Evaluation for real: one table for any spread of workers, and training as if there were none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import imageio
import pytest
import torch

from rlinf.cli import checkpoint_config
from rlinf.envs import can_render
from rlinf.hybrid_engines.export import export_checkpoint
from rlinf.models import get_model
from rlinf.models.export.rlinf_policy import load_policy
from rlinf.utils.checkpoint import CheckpointStore
from rlinf.utils.env_spec import EnvSpec
from rlinf.utils.runs.summary import PROMISED
from rlinf.workers.env.env_worker import EnvWorker

SHORT = [
    "env.train.id=Hopper-v5",
    "env.train.max_steps_per_rollout_epoch=20",
    "env.eval.max_episode_steps=60",
    "runner.eval_episodes=7",
    "actor.model.orthogonal_init=false",
    "actor.global_batch_size=80",
    "algorithm.update_epoch=2",
]


def read(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


@pytest.mark.timeout(180)
def test_evaluations_agree_for_any_envs_and_do_not_disturb_training(runners, tmp_path):
    """A run evaluated at its end; one evaluated at its start and after each step, in other envs."""
    # With this interval, the second rollout goes on with the weights of the first.
    more = [*SHORT, "runner.max_epochs=3", "runner.weight_sync_interval=2"]
    more += ["rollout.eval_batch_size=5"]
    results, summaries = [], []
    for interval, envs in ((-1, 4), (1, 10)):
        runner = runners.runner(
            tmp_path / str(interval),
            "gymnasium_ppo_mlp",
            [
                *more,
                f"runner.val_check_interval={interval}",
                f"runner.eval_at_start={interval > 0}",
                f"env.eval.total_num_envs={envs}",
            ],
        )
        summaries.append(runner.run())
        found = read(runner.folder)
        results.append((found, runner.actor.weights().wait()[0]))
        lines = [json.loads(line) for line in (runner.folder / "metrics.jsonl").open()]
        counts = [line["eval/episodes"] for line in lines if "eval/episodes" in line]
        # The last policy was evaluated when training ended: it is not evaluated again.
        assert counts == ([7.0] if interval < 0 else [7.0] * 4)
        # Played once more, by workers that have played before.
        runner.evaluate()
        assert read(runner.folder) == found
    (rarely, without), (often, with_evaluations) = results
    assert rarely == often
    assert [episode["id"] for episode in rarely["episodes"]] == list(range(7))
    assert len({episode["return"] for episode in rarely["episodes"]}) == 7
    for name, tensor in without.items():
        assert torch.equal(tensor, with_evaluations[name]), name
    for summary in summaries:
        assert summary["env_steps"] == 3 * 16 * 20 and summary["global_step"] == 3
        assert summary["env_steps_per_second"] == summary["samples_per_second"] > 0
        assert 0 < summary["training_seconds"] < summary["wall_seconds"]
        assert summary["evaluation_step"] == 3 and summary["checkpoint_failures"] == 0
        assert summary["evaluation"]["eval/return"] == rarely["overall"]["return"]["value"]
    plain, full = summaries
    assert plain["initial_evaluation"] is None
    assert full["initial_evaluation"]["eval/return"] != full["evaluation"]["eval/return"]
    assert {name for name in PROMISED if full[name] is None} == set()


@pytest.mark.timeout(240)
def test_a_checkpoint_is_evaluated_and_exported_as_the_policy_that_was_trained(runners, tmp_path):
    """By 1 worker with 4 envs and 1 policy, then by 2 with 3 envs each and 3 policies."""
    saved = ["runner.max_epochs=2", "runner.save_interval=1", "env.eval.total_num_envs=4"]
    # Two ranks write the weights.
    saved += ["cluster.component_placement={actor:0-1,rollout:0,env:0}"]
    training = runners.runner(tmp_path, "gymnasium_ppo_mlp", [*SHORT, *saved])
    training.run()
    run = training.folder
    trained, before = read(run), sorted(path.name for path in run.iterdir())
    metrics = (run / "metrics.jsonl").read_text()
    assert trained["step"] == 2 and trained["checkpoint"] is None

    config = checkpoint_config.of(str(run))
    assert config == str(run / "eval_global_step_2" / "checkpoint.yaml")
    other = ["cluster.component_placement={actor:0,rollout:0-2,env:0-1}", "runner.only_eval=true"]
    runner = runners.runner(tmp_path, config, [*other, "env.eval.total_num_envs=6"])
    summary = runner.run()
    assert runner.folder == run / "eval_global_step_2"
    assert summary["status"] == "evaluated" and summary["global_step"] == 2
    found = read(runner.folder)
    assert found["checkpoint"].endswith("checkpoints/global_step_2")
    assert found["episodes"] == trained["episodes"] and found["overall"] == trained["overall"]
    # Nothing of the run itself is touched.
    assert sorted(path.name for path in run.iterdir()) == sorted([*before, "eval_global_step_2"])
    assert read(run) == trained and (run / "metrics.jsonl").read_text() == metrics
    assert [c.step for c in CheckpointStore(run / "checkpoints").all()] == [1, 2]

    states = torch.linspace(-1, 1, 88).reshape(8, 11)
    own = get_model(training.cfg.actor.model, EnvSpec(11, 3, [-1] * 3, [1] * 3))
    own.load_state_dict(training.actor.weights().wait()[0])
    expected = own.predict_action_batch({"states": states}, mode="eval")[0]
    exported = export_checkpoint(run, "safetensors")
    assert torch.equal(load_policy(exported)(states=states), expected)


@pytest.mark.timeout(120)
def test_videos_show_what_was_evaluated(runners, tmp_path):
    able, reason = can_render()
    if not able:
        pytest.skip(reason)
    short = ["runner.only_eval=true", "runner.eval_episodes=5", "env.eval.max_episode_steps=6"]
    video = ["env.eval.total_num_envs=4", "env.eval.video_cfg.max_videos=2"]
    # A process that has simulated before cannot choose any more how to draw.
    fresh = {"env": (EnvWorker, ())}
    runner = runners.runner(tmp_path, "metaworld_ppo_mlp", [*short, *video], fresh)
    summary = runner.run()
    assert summary["video"] == str(runner.folder / "policy.mp4")
    found = read(runner.folder)
    # All of them fail; the failure that is wanted is among the first two.
    videos = [episode["video"] for episode in found["episodes"]]
    assert videos == ["videos/episode_0000.mp4", "videos/episode_0001.mp4", None, None, None]
    frames = imageio.mimread(runner.folder / "policy.mp4")
    assert len(frames) == 4 and frames[0].std() > 5 and (frames[0] != frames[-1]).any()
    assert found["video_note"] == "", "drawing changes nothing"


@pytest.mark.timeout(180)
def test_the_env_steps_to_success_are_those_of_the_first_good_evaluation(
    runners, tmp_path, monkeypatch
):
    """Ninety percent are enough; what comes later, or after a resume, does not change it."""
    at_start = "runner.eval_at_start=true"
    rollout = 16 * 20

    def run(name: str, share_by_step: dict[int, float], *more: str) -> tuple[Any, Path]:
        common = ["runner.val_check_interval=1", "runner.save_interval=1"]
        runner = runners.runner(tmp_path / name, "gymnasium_ppo_mlp", [*SHORT, *common, *more])

        def evaluate() -> dict[str, float]:
            return {"eval/success_once": share_by_step[runner.global_step]}

        monkeypatch.setattr(runner, "evaluate", evaluate)
        monkeypatch.setattr(runner, "final_evaluation", evaluate)
        monkeypatch.setattr(runner, "farewell", lambda final: None)
        runner.run()
        summary = json.loads((runner.folder / "summary.json").read_text())
        return summary["env_steps_to_success"], runner.folder / "checkpoints"

    shares = {0: 0.5, 1: 0.89, 2: 0.9, 3: 0.4}
    steps, saved = run("whole", shares, "runner.max_epochs=3", at_start)
    assert steps == 2 * rollout
    for step, expected in ((1, None), (3, 2 * rollout)):
        resume = [f"runner.resume_dir={saved}/global_step_{step}", "runner.max_epochs=4"]
        later = {2: 0.0, 3: 0.0, 4: 1.0 if expected else 0.0}
        steps, _ = run(f"resumed_{step}", later, *resume)
        assert steps == expected
    steps, _ = run("solved", {0: 1.0, 1: 1.0}, "runner.max_epochs=1", at_start)
    assert steps == 0
