"""What the page of a run says of replay buffers, old rollouts and demonstrations."""

from __future__ import annotations

import json
from pathlib import Path

from rlinf.cli.report.learned_from import learned_from_section
from rlinf.cli.report.run_record import RunRecord
from tests.unit_tests.cli.test_report import make_run, report

SAC = {
    "train/sac/q_values": 29.8,
    "train/sac/q_values_1": 29.5,
    "train/sac/q_values_2": 30.1,
    "train/sac/q_targets": 29.9,
    "train/sac/td_error": 0.25,
    "train/sac/alpha": 0.4,
    "train/gradient_updates": 3600.0,
    "train/replay_buffer/total_samples": 3840.0,
    "train/replay_buffer/added_samples": 3840.0,
    "train/replay_buffer/cache_size": 200000.0,
    "env/total_steps": 7200.0,
    "env/episodes": 3.0,
    "env/success_once": 0.5,
    "env/return": 31.5,
}
DEMOS = {
    "train/demo_buffer/num_trajectories": 20.0,
    "train/demo_buffer/total_samples": 2000.0,
    "train/demo_buffer/success_once": 1.0,
    "train/demo_buffer/return": 41.75,
}


def section(*lines, config=None, **summary) -> str:
    metrics = [{"step": step, **line} for step, line in enumerate(lines, 1)]
    return learned_from_section(RunRecord(Path("run"), summary, config or {}, metrics))


def test_a_replay_buffer_and_its_values():
    page = section({"env/episodes": 4.0}, SAC)
    for text in (
        ">3,840<",
        "transitions, of at most 200,000",
        ">0.5<",
        "3,600 gradient steps",
        ">29.8<",
        "targets 29.9; heads 29.5, 30.1",
        ">0.25<",
        "TD error",
        ">0.4<",
    ):
        assert text in page
    # Nobody has demonstrated anything, and rollouts and updates took turns.
    assert "Whose episodes" not in page and "policy age" not in page


def test_demonstrations_stand_beside_own_episodes():
    page = section({"env/episodes": 4.0}, SAC | DEMOS, evaluation={"eval/episodes": 8.0})
    table = page[page.index("Whose episodes") :]
    for row in (
        "<td>demonstrations</td><td>20</td><td>2,000</td><td>100.0%</td><td>41.75</td>",
        "<td>own, in training</td><td>7</td><td>3,840</td><td>50.0%</td><td>31.5</td>",
        "<td>own, last evaluation</td><td>8</td><td>–</td><td>–</td><td>–</td>",
    ):
        assert row in table


def test_returns_of_another_reward_are_not_compared():
    envs = {"env": {"train": {"reward": "success"}, "eval": {"reward": "dense"}}}
    found = {"eval/episodes": 8.0, "eval/success_once": 0.5, "eval/return": 900.0}
    page = section(SAC | DEMOS, config=envs, evaluation=found)
    row = "<td>own, last evaluation</td><td>8</td><td>–</td><td>50.0%</td><td>–</td>"
    assert row in page and "another reward" in page
    envs["env"]["eval"]["reward"] = "success"
    page = section(SAC | DEMOS, config=envs, evaluation=found)
    assert "<td>900</td>" in page and "another reward" not in page


def test_ages_of_an_asynchronous_run():
    ages = [
        {"rollout/policy_age": 0.5, "rollout/policy_age_max": 1.0, "rollout/stale_dropped": 0.0},
        {"rollout/policy_age": 1.5, "rollout/policy_age_max": 3.0, "rollout/stale_dropped": 12.0},
    ]
    ages[1]["rollout/handed_over_early"] = 2.0
    page = section(*ages, config={"algorithm": {"max_policy_age": 3}})
    assert "mean; at most 3, allowed is 3" in page and ">12<" in page
    assert ">2<" in page and "parts of rollouts of slow processes" in page
    assert '<div class="value">1</div>' in page
    assert section(*ages, config={"algorithm": {"max_policy_age": 0}}) == ""


def test_data_of_behaviour_cloning():
    data = {"train/data/episodes": 50.0, "train/data/samples": 3000.0, "train/data/return": 900.0}
    page = section(data)
    assert "<td>demonstrations</td><td>50</td><td>3,000</td><td>–</td><td>900</td>" in page


def test_labels_of_an_expert():
    found = {"train/dagger/labels": 240.0, "train/dagger/beta": 0.0, "rollout/intervened": 0.25}
    page = section(found)
    assert ">240<" in page and ">25.0%<" in page and "beta 0" in page


def test_the_page_has_the_section_only_where_it_says_something(tmp_path):
    page = report(make_run(tmp_path / "plain"))
    assert "data" not in page.texts
    folder = make_run(tmp_path / "replay")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 6, **SAC}) + "\n")
    page = report(folder)
    assert "What it learned from" in page.text("data") and "#data" in page.references
