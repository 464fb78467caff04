"""Several tasks in one run: metrics and evaluations by task, and shares that change."""

from __future__ import annotations

import json

import pytest

TASKS = ("reach-v3", "button-press-topdown-v3", "drawer-close-v3")
SHORT = [
    f"env.train.tasks=[{','.join(TASKS)}]",
    "env.train.start_sampler={type: least_return}",
    "env.train.total_num_envs=12",
    "env.train.auto_reset=false",
    "env.train.max_episode_steps=20",
    "env.eval.total_num_envs=6",
    "env.eval.max_episode_steps=20",
    "env.eval.video_cfg.save_video=false",
    "cluster.component_placement={actor: 0, rollout: 0-1, env: 0-1}",
    "runner.max_epochs=2",
    "runner.val_check_interval=-1",
    "runner.eval_episodes=12",
    "runner.save_interval=1",
    "runner.deterministic=true",
    "actor.global_batch_size=240",
    "algorithm.update_epoch=1",
]


def lines_of(runner) -> list[dict[str, float]]:
    return [json.loads(line) for line in (runner.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.timeout(300)
def test_tasks_have_their_shares_metrics_and_evaluation_also_when_resumed(runners, tmp_path):
    runner = runners.runner(tmp_path / "whole", "metaworld_ppo_mt10", SHORT)
    evaluation = runner.run()["evaluation"]
    assert evaluation["eval/episodes"] == evaluation["eval/distinct_starts"] == 12
    written = json.loads((runner.folder / "evaluation.json").read_text())
    for name in TASKS:
        of_task = written["tasks"][name]
        assert of_task["episodes"] == of_task["distinct_starts"] == 4
        assert evaluation[f"eval/return/{name}"] == of_task["return"]["value"]
        assert evaluation[f"eval/success_once/{name}"] == of_task["success_once"]["value"]
    first, second = lines_of(runner)[:2]
    assert [first[f"env/episodes/{name}"] for name in TASKS] == [4, 4, 4]
    solved = [first[f"env/success_once/{name}"] for name in TASKS]
    assert first["env/success_once"] == pytest.approx(sum(solved) / 3)
    returns = [first[f"env/return/{name}"] for name in TASKS]
    assert first["env/return"] == pytest.approx(sum(returns) / 3)
    weights = [1 / (1 + 4 * mean) for mean in returns]
    shares = [weight / sum(weights) for weight in weights]
    assert [first[f"env/task_share/{name}"] for name in TASKS] == pytest.approx(shares)
    assert max(shares) > 0.5, "otherwise the tasks of the second rollout would say nothing"
    for name, share in zip(TASKS, shares, strict=True):
        assert abs(second[f"env/episodes/{name}"] - 12 * share) <= 1

    begun = runners.runner(tmp_path / "part", "metaworld_ppo_mt10", [*SHORT, "runner.max_epochs=1"])
    begun.run()
    resume = f"runner.resume_dir={begun.folder}/checkpoints/global_step_1"
    again = runners.runner(tmp_path / "rest", "metaworld_ppo_mt10", [*SHORT, resume])
    again.run()
    (resumed,) = [line for line in lines_of(again) if line["step"] == 2 and "env/return" in line]
    same = [key for key in second if key.startswith(("env/", "train/", "rollout/"))]
    same = [key for key in same if "per_second" not in key]
    assert {key: resumed[key] for key in same} == {key: second[key] for key in same}
