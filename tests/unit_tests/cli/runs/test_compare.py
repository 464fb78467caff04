"""`rlinf runs compare` says what differs and what came out, and adds up seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.cli.runs.comparison import compare_runs
from tests.unit_tests.cli.runs.made_runs import CONFIG, config_with, finished, make_run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


def compared(capsys, *arguments: object) -> list[list[str]]:
    """The lines of a comparison, split where there are two spaces."""
    assert main(["runs", "compare", *map(str, arguments)]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [[part.strip() for part in line.split("  ") if part.strip()] for line in lines]


def test_keys_that_differ_and_results_side_by_side(here, capsys):
    one = finished(here / "a/one")
    two = finished(
        here / "b/two",
        success=0.5,
        config=config_with(actor__optim__lr=0.0003, algorithm__gamma=0.97, algorithm__new=[1, 2]),
        git={"commit": "1454673ad4b9d8a4d25e", "dirty": True},
        env_steps_per_second=250.0,
    )
    lines = compared(capsys, "a", two)
    assert ["A", "a/one"] in lines and ["B", "b/two"] in lines
    assert ["actor.optim.lr", "0.001", "0.0003"] in lines
    assert ["algorithm.new", "(absent)", "[1, 2]"] in lines
    assert not any(line[:1] == ["algorithm.gamma"] for line in lines)
    (success,) = [line for line in lines if line[:1] == ["success"]]
    assert success[1] == "97.5 % (95 % interval 87.1 % to 99.6 %, n = 40)"
    assert success[2].startswith("50.0 %")
    assert ["env steps / s", "991", "250"] in lines
    assert ["seed", "42", "42"] in lines and ["commit", "–", "1454673ad4b9 with changes"] in lines
    assert ["steps", "30", "30"] in lines and ["env steps", "48,000", "48,000"] in lines
    assert one.is_dir()


def test_runs_that_differ_in_the_seed_are_a_group(here, capsys):
    for seed, success in ((1, 0.9), (2, 0.95), (3, 1.0)):
        name = {"log_path": "x", "experiment_name": f"seed{seed}"}
        config = config_with(runner__seed=seed, env__train__seed=seed, runner__logger=name)
        finished(here / f"one/{seed}", success=success, config=config)
    finished(here / "other/1", success=0.25, config=config_with(algorithm__gamma=0.5))
    lines = compared(capsys, *(here / "one").glob("[123]"), "other")
    results = {line[0]: line[1:] for line in lines if line}
    assert results["success"][0] == "mean 95.0 %, min 90.0 %, max 100.0 %"
    assert results["success"][1].startswith("25.0 % (95 % interval")
    assert sorted(results["seed"][0].split(", ")) == ["1", "2", "3"]
    assert results["algorithm.gamma"] == ["0.97", "0.5"]
    assert "(3 runs that differ only in the seed)" in lines[0]
    assert "runner.logger.experiment_name" not in results, "the folder says it"


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        ({"runner__seed": 7}, 1),
        ({"env__train__seed": 7}, 1),
        ({"runner__logger": {"log_path": "elsewhere"}}, 1),
        ({"env__eval__seed": 7}, 2),
        ({"runner__max_epochs": 60}, 2),
        ({"actor__model": {"hidden_sizes": [64]}}, 2),
    ],
)
def test_what_makes_a_group(here, changes, groups):
    one = make_run(here / "one")
    two = make_run(here / "two", config=config_with(**changes))
    assert len(compare_runs([one, two]).groups) == groups


def test_means_are_of_the_runs_that_have_a_score(here, capsys):
    finished(here / "e/1", success=0.8, config=config_with(runner__seed=1))
    finished(here / "e/2", success=1.0, config=config_with(runner__seed=2))
    make_run(here / "e/3", "failed", config=config_with(runner__seed=3), global_step=3)
    results = {line[0]: line[1] for line in compared(capsys, "e/1", "e/2", "e/3") if len(line) > 1}
    assert results["success"] == "mean 90.0 %, min 80.0 %, max 100.0 % (of 2 runs)"
    assert results["status"] == "2 finished, 1 failed"
    assert results["steps"] == "mean 21, min 3, max 30"


def test_the_interval_of_a_return_is_that_of_its_episodes(here, capsys):
    evaluation = {"eval/return": -12.5, "eval/episodes": 8.0}
    one = make_run(here / "one", evaluation=evaluation)
    two = make_run(here / "two", evaluation=evaluation, config=config_with(algorithm__gamma=0.9))
    overall = {"return": {"value": -12.5, "low": -20.0, "high": -5.0}}
    (one / "evaluation.json").write_text(json.dumps({"overall": overall}))
    overall["return"]["value"] = -12.0
    (two / "evaluation.json").write_text(json.dumps({"overall": overall}))
    (row,) = [line for line in compared(capsys, one, two) if line[:1] == ["return"]]
    assert row[1] == "-12.5 (95 % interval -20.0 to -5.0, n = 8)"
    assert row[2] == "-12.5 (n = 8)", "that file is of another evaluation"


def test_what_agents_read_and_wrote_stands_beside_their_score(here, capsys):
    for name, passed, tokens in (("team", 0.95, 105.5), ("single", 0.5, 58.0)):
        evaluation = {"eval/pass@1": passed, "eval/prompts": 200.0, "eval/total_tokens": tokens}
        config = config_with(algorithm__gamma=passed)
        make_run(here / name, evaluation=evaluation, config=config)
    rows = {line[0]: line[1:] for line in compared(capsys, "team", "single") if line}
    assert rows["pass@1"][1].startswith("50.0 % (95 % interval")
    assert rows["total_tokens"] == ["105.5 (n = 200)", "58.0 (n = 200)"]


def test_equal_runs(here, capsys):
    make_run(here / "one")
    make_run(here / "two")
    assert ["the configurations are equal"] in compared(capsys, "one", "two")


def test_a_run_from_the_checkpoint_of_another_says_so(here, capsys):
    make_run(here / "one")
    make_run(here / "two", resumed_from=str(here / "one/checkpoints/global_step_3"))
    make_run(here / "three", resumed_from=str(here / "three/checkpoints/global_step_3"))
    (row,) = [c for c in compared(capsys, "one", "two", "three") if c[:1] == ["began from"]]
    assert row[1] == str(here / "one/checkpoints/global_step_3")


def test_a_run_without_a_config_stands_alone(here, capsys):
    make_run(here / "one")
    make_run(here / "two", "failed", config=None)
    lines = compared(capsys, "one", "two")
    assert ["two has no configuration: it ended too early"] in lines
    assert ["status", "finished", "failed"] in lines


def test_narrow_terminals_get_blocks(here, capsys, monkeypatch):
    finished(here / "one", config=config_with(algorithm__note="x" * 90))
    finished(here / "two", config=config_with(algorithm__gamma=0.9))
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["runs", "compare", "one", "two"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("algorithm.note") + 1] == f"  A  {'x' * 90}", "nothing is cut"
    assert all(len(line) <= 60 for line in lines if "xxx" not in line and "interval" not in line)
    assert any(line.split() == ["algorithm.gamma", "0.97", "0.9"] for line in lines)


def test_json_has_groups_and_differences(here, capsys):
    for seed in (1, 2):
        finished(here / f"e/{seed}", success=seed / 2, config=config_with(runner__seed=seed))
    assert main(["runs", "compare", "e/1", "e/2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (group,) = found["groups"]
    expected = {"mean": 0.75, "low": 0.5, "high": 1.0, "count": 2}
    assert group["scores"]["success_once"] == expected
    assert [run["folder"] for run in group["runs"]] == ["e/1", "e/2"]
    assert found["differing_keys"] == {"runner.seed": {"A": [1, 2]}}


def test_what_cannot_be_compared_is_said(here, capsys):
    run = make_run(here / "e/one")
    assert main(["runs", "compare", "e/one"]) == 2
    assert "at least two runs" in capsys.readouterr().err
    assert main(["runs", "compare", "e/one", "e"]) == 2
    assert "these are one run" in capsys.readouterr().err
    assert main(["runs", "compare", "e", "absent"]) == 1
    assert "there is no run at absent" in capsys.readouterr().err
    (here / "empty").mkdir()
    assert main(["runs", "compare", "e", "empty"]) == 1
    assert "empty is not the folder of a run" in capsys.readouterr().err
    broken = make_run(here / "e/two", config=CONFIG)
    for text in ("a: [", "- 1"):
        (broken / "config.yaml").write_text(text)
        assert main(["runs", "compare", str(run), str(broken)]) == 1
        assert "e/two/config.yaml is not" in capsys.readouterr().err
