"""The default job with simulators, policy and learner on different hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinf.scheduler.trace import STEP, read_spans

RECIPE = "metaworld_ppo_mlp"
SHORT = [
    "env.train.total_num_envs=4",
    "env.train.max_steps_per_rollout_epoch=20",
    "env.train.max_episode_steps=20",
    "env.eval.max_episode_steps=20",
    "env.eval.video_cfg.max_videos=1",
    "env.eval.video_cfg.max_failures=0",
    "actor.global_batch_size=40",
    "runner.eval_episodes=4",
    "runner.eval_at_start=false",
]


def placed(actor: str, rollout: str, env: str) -> str:
    return f"cluster.component_placement={{actor: {actor}, rollout: {rollout}, env: {env}}}"


def in_folder(folder: str | Path) -> str:
    return f"runner.run_dir={folder}"


def require_one_clock(hosts, workers: str) -> None:
    """What workers did in a step is in the driver's step, though their clocks differ by 1,000 s."""
    traces = hosts.shared / "traces"
    hosts.hosts[0].run(["cp", "-r", workers, str(traces)], check=True)
    steps = [span for span in read_spans(traces / "driver.trace") if span.kind == STEP]
    begin, end = min(span.begin for span in steps), max(span.end for span in steps)
    for name in ("EnvGroup/rank_0", "EnvGroup/rank_1", "RolloutGroup/rank_0", "ActorGroup/rank_0"):
        work = {"interact", "generate", "run_training"}
        spans = [span for span in read_spans(traces / f"{name}.trace") if span.name in work]
        assert len(spans) >= len(steps), name
        within = [begin - 10**9 < span.begin < span.end < end + 10**9 for span in spans]
        assert all(within), (name, begin, end, spans)


@pytest.mark.timeout(600)
def test_a_run_on_local_folders_is_whole_and_goes_on_on_other_hosts(hosts):
    """Nothing that the run needs again, or that a person looks at, stays on another host."""
    whole, second = "/tmp/runs/whole", "/tmp/runs/second"
    job = [*SHORT, "runner.save_interval=2", "runner.max_epochs=4"]
    hosts.train(RECIPE, *job, placed("0", "1", "1-2"), in_folder(whole))

    found = hosts.files(whole)
    checkpoint = "checkpoints/global_step_4"
    manifest = json.loads(hosts.read(f"{whole}/{checkpoint}/manifest.json"))
    sizes = {name: facts["size"] for name, facts in manifest["files"].items()}
    there = {name: found[f"{checkpoint}/{name}"] for name in sizes}
    assert sizes == there
    ranks = {"env/rank_0.json", "env/rank_1.json", "actor/rank_0.json", "rollout/rank_0.json"}
    assert ranks <= set(sizes), sorted(sizes)
    assert found["policy.mp4"] == found["videos/episode_0000.mp4"] > 0
    for worker in ("EnvGroup/rank_0", "EnvGroup/rank_1", "RolloutGroup/rank_0"):
        assert found[f"workers/{worker}.log"] > 0 and found[f"workers/{worker}.trace"] > 0
    summary = json.loads(hosts.read(f"{whole}/summary.json"))
    assert summary["status"] == "finished" and summary["checkpoint_failures"] == 0
    require_one_clock(hosts, f"{whole}/workers")
    for other in (1, 2):
        assert hosts.files("/tmp/runs", other) == {}
        assert not [name for name in hosts.files("/tmp", other) if ".files/" in name]

    half = f"runner.resume_dir={whole}/checkpoints/global_step_2"
    said = hosts.train(RECIPE, *job, placed("2", "0", "0-1"), in_folder(second), half)
    assert "not restored" not in said
    assert hosts.metrics(second) == [m for m in hosts.metrics(whole) if m["step"] > 2]


@pytest.mark.timeout(300)
def test_a_run_in_a_shared_folder_is_written_there_directly(hosts):
    run = hosts.shared / "run"
    hosts.train(RECIPE, *SHORT, placed("0", "1", "2"), in_folder(run), "runner.max_epochs=1")
    names = set(hosts.files(run, host=2))
    assert {"policy.mp4", "checkpoints/global_step_1/env/rank_0.json"} <= names
    assert "workers/EnvGroup/rank_0.log" in names
    assert not [name for name in names if Path(name).name.startswith(".rlinf-")]
