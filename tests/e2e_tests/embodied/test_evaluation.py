"""Evaluation for real: one table for any spread of workers, and training as if there were none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import imageio
import pytest
import torch

from rlinf.envs import can_render
from rlinf.utils.checkpoint import CheckpointStore
from tests.e2e_tests.embodied.test_embodied import make_runner

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
def test_evaluations_agree_for_any_envs_and_do_not_disturb_training(cluster, tmp_path):
    """A run evaluated at its end, and one that is evaluated after each step, in other envs."""
    # With this interval, the second rollout goes on with the weights of the first.
    more = [*SHORT, "runner.max_epochs=3", "runner.weight_sync_interval=2"]
    results = []
    for interval, envs in ((-1, 4), (1, 10)):
        runner = make_runner(
            cluster,
            tmp_path / str(interval),
            "gymnasium_ppo_mlp",
            [
                *more,
                f"runner.val_check_interval={interval}",
                f"env.eval.total_num_envs={envs}",
            ],
        )
        runner.run()
        found = read(runner.folder)
        results.append((found, runner.actor.weights().wait()[0]))
        lines = [json.loads(line) for line in (runner.folder / "metrics.jsonl").open()]
        counts = [line["eval/episodes"] for line in lines if "eval/episodes" in line]
        # The last policy was evaluated when training ended: it is not evaluated again.
        assert counts == ([7.0] if interval < 0 else [7.0] * 3)
        # Played once more, by workers that have played before.
        runner.evaluate()
        assert read(runner.folder) == found
        for group in (runner.actor, runner.rollout, runner.env):
            group._close()
    (rarely, without), (often, with_evaluations) = results
    assert rarely == often
    assert [episode["id"] for episode in rarely["episodes"]] == list(range(7))
    assert len({episode["return"] for episode in rarely["episodes"]}) == 7
    for name, tensor in without.items():
        assert torch.equal(tensor, with_evaluations[name]), name


def rlinf(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rlinf.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(240)
def test_a_checkpoint_is_evaluated_and_exported_as_the_policy_that_was_trained(tmp_path):
    saved = ["runner.max_epochs=2", "runner.save_interval=1", "runner.progress=off"]
    saved += ["cluster.component_placement={actor:0-1,rollout:0,env:0}"]
    saved += ["env.eval.total_num_envs=4"]
    rlinf("train", "gymnasium_ppo_mlp", *SHORT, *saved, folder=tmp_path)
    run = tmp_path / "logs" / "gymnasium_ppo_mlp"
    trained, before = read(run), sorted(path.name for path in run.iterdir())
    assert trained["step"] == 2 and trained["checkpoint"] is None

    # The newest checkpoint of the run, not by 1 worker with 4 envs and 1 policy, but by 2 workers
    # with 3 envs each and 3 policies, one of which serves both of them.
    placement = "cluster.component_placement={actor:0,rollout:0-2,env:0-1}"
    said = rlinf("eval", str(run), placement, "env.eval.total_num_envs=6", folder=tmp_path)
    assert "evaluated success" in said and "episodes" in said
    found = read(run / "eval_global_step_2")
    assert found["checkpoint"].endswith("checkpoints/global_step_2")
    assert found["episodes"] == trained["episodes"] and found["overall"] == trained["overall"]
    # Nothing of the run itself is touched.
    assert sorted(path.name for path in run.iterdir()) == sorted([*before, "eval_global_step_2"])
    assert read(run) == trained
    store = CheckpointStore(run / "checkpoints")
    assert [checkpoint.step for checkpoint in store.all()] == [1, 2]

    # Two ranks wrote the weights; the exported policy is one, and needs none of our code.
    out = tmp_path / "policy"
    rlinf("export", str(run), "--to", "safetensors", "--out", str(out), folder=tmp_path)
    program = (
        "import sys, torch\nsys.modules['rlinf'] = None\nfrom rlinf_policy import load_policy\n"
        "states = torch.linspace(-1, 1, 88).reshape(8, 11)\n"
        "torch.save(load_policy('.')(states=states), 'actions.pt')\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=out, check=True, timeout=60)
    assert torch.equal(torch.load(out / "actions.pt"), actions_of_checkpoint(store.latest()))


def actions_of_checkpoint(checkpoint) -> torch.Tensor:
    """What our own policy does with the weights of a checkpoint."""
    from rlinf.hybrid_engines.fsdp.checkpoint import read_model
    from rlinf.models import get_model
    from rlinf.utils.checkpoint import load_tree
    from rlinf.utils.env_spec import EnvSpec

    spec = EnvSpec(**load_tree(checkpoint.path / "actor" / "env_spec"))
    policy = get_model(checkpoint.manifest["config"]["actor"]["model"], spec)
    policy.load_state_dict(read_model(checkpoint.path / "actor" / "tensors"))
    states = torch.linspace(-1, 1, 88).reshape(8, 11)
    return policy.predict_action_batch({"states": states}, mode="eval")[0]


@pytest.mark.timeout(120)
def test_videos_show_what_was_evaluated(cluster, tmp_path):
    able, reason = can_render()
    if not able:
        pytest.skip(reason)
    short = ["runner.only_eval=true", "runner.eval_episodes=5", "env.eval.max_episode_steps=6"]
    video = ["env.eval.total_num_envs=4", "env.eval.video_cfg.max_videos=2"]
    runner = make_runner(cluster, tmp_path, "metaworld_ppo_mlp", [*short, *video])
    summary = runner.run()
    assert summary["video"] == str(runner.folder / "policy.mp4")
    found = read(runner.folder)
    # All of them fail; the failure that is wanted is among the first two.
    videos = [episode["video"] for episode in found["episodes"]]
    assert videos == ["videos/episode_0000.mp4", "videos/episode_0001.mp4", None, None, None]
    frames = imageio.mimread(runner.folder / "policy.mp4")
    assert len(frames) == 4 and frames[0].std() > 5 and (frames[0] != frames[-1]).any()
    assert found["video_note"] == "", "drawing changes nothing"
