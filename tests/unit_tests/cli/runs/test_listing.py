"""`rlinf runs` lists what is there, also what ended badly, and cuts no name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.cli.runs.names import STATUSES
from rlinf.utils.runs import RunLock, summary
from rlinf.utils.runs.tags import add_tags
from tests.unit_tests.cli.runs.made_runs import EPOCH, TOTALS, finished, make_run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, and no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


def listed(capsys, *arguments: str) -> list[str]:
    assert main(["runs", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def as_json(capsys, *arguments: str) -> list[dict]:
    return json.loads("\n".join(listed(capsys, *arguments, "--json")))


def test_a_run_is_one_line_that_says_how_good_it_is(here, capsys):
    add_tags(finished(here / "logs/tiny_ppo/20251117-093000-aaaa"), ["paper", "lr=1e-3"])
    title, line = listed(capsys)
    for name in ("when", "recipe", "status", "step", "score", "speed", "tags", "folder"):
        assert name in title
    for text in ("2025-11-17 09:30", "tiny_ppo", "finished", "30", "success 97.5 %"):
        assert text in line
    assert "991 env steps/s" in line and "paper, lr=1e-3" in line
    assert line.endswith("  logs/tiny_ppo/20251117-093000-aaaa"), "as one would type it here"


@pytest.mark.parametrize(
    ("evaluation", "shown"),
    [
        ({"eval/pass@1": 0.98, "eval/prompts": 200.0, "eval/score": 0.5}, "pass@1 98.0 %"),
        ({"eval/return": -1406.04, "eval/episodes": 2.0}, "return -1,406.0"),
        ({}, "finished"),
        (None, "finished"),
    ],
)
def test_the_score_is_the_main_metric_that_is_there(here, capsys, evaluation, shown):
    make_run(here / "logs/a", evaluation=evaluation, samples_per_second=114.4)
    (_, line) = listed(capsys)
    assert shown in line and "114 samples/s" in line
    assert ("%" in line) is ("%" in shown)


def test_the_newest_is_last_wherever_it_lies(here, capsys):
    places = ["logs/b/one", "logs/direct", "logs/learning/20251117/a-seed0", "logs/a/two"]
    for age, place in enumerate(places):
        make_run(here / place, began=EPOCH - age)
    assert [run["folder"] for run in as_json(capsys)] == places[::-1]
    assert [run["folder"] for run in as_json(capsys, "-n", "1")] == places[:1]


def test_the_fate_of_every_run_is_told(here, capsys):
    for status in ("finished", "evaluated", "stopped", "failed"):
        make_run(here / "logs" / status, status)
    make_run(here / "logs/killed", None)
    lock = RunLock(make_run(here / "logs/running", None))
    broken = make_run(here / "logs/unknown")
    (broken / "summary.json").write_text('{"status": "finis')
    (here / "logs/starting").mkdir()
    starting = RunLock(here / "logs/starting")
    found = {Path(run["folder"]).name: run["status"] for run in as_json(capsys)}
    assert found.pop("starting") == "running", "it has a lock, and no summary yet"
    assert len(found) == 7 and all(name == status for name, status in found.items())
    chosen = as_json(capsys, "--status", "killed", "--status", "failed")
    assert {run["status"] for run in chosen} == {"killed", "failed"}
    lock.release()
    starting.release()


def test_what_a_run_under_way_has_reached_is_read_from_its_metrics(here, capsys):
    lines = [{"step": n, "env/steps_per_second": 100.0 * n, "env/total_steps": 1600.0 * n}
             for n in range(1, 31)]  # fmt: skip
    lines.insert(20, {"step": 20, "eval/success_once": 0.62, "eval/episodes": 20.0})
    run = make_run(here / "logs/a", None, metrics=lines)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('damaged\n{"step": 31, "env/st')
    lock = RunLock(run)
    (_, line) = listed(capsys)
    assert "running" in line and "success 62.0 % @20" in line
    (found,) = as_json(capsys)
    assert found["step"] == 30 and found["counts"] == {"env steps": 48_000}
    assert found["speed"] == {"value": 2550.0, "unit": "env steps"}, "of the last ten steps"
    lock.release()


def test_a_run_that_went_on_after_its_evaluation_says_when_that_was(here, capsys):
    evaluation = {"eval/success_once": 0.5, "eval/episodes": 20.0}
    facts = {"evaluation": evaluation, "evaluation_step": 40}
    for name, step in (("on", 52), ("end", 40)):
        make_run(here / "logs" / name, "stopped", global_step=step, **facts)
    end, on = sorted(line for line in listed(capsys)[1:])
    assert sorted("@40" in line for line in (end, on)) == [False, True]
    # The summary of a run under way is behind its metrics.
    newer = [{"step": 60, **evaluation, "eval/success_once": 0.75}, {"step": 61}]
    make_run(here / "logs/killed", "running", metrics=newer, global_step=52, **facts)
    (line,) = [line for line in listed(capsys) if "killed" in line]
    assert "success 75.0 % @60" in line and " 61 " in line


def test_every_status_can_be_asked_for():
    known = (summary.RUNNING, summary.FINISHED, summary.EVALUATED)
    known += (summary.STOPPED, summary.FAILED, summary.KILLED)
    assert STATUSES == (*known, "unknown")


def test_a_long_file_of_metrics_is_read_from_its_end(here, capsys):
    filler = {f"train/metric_{n}": 0.123456789 for n in range(100)}
    run = make_run(here / "logs/a", None, metrics=[{"step": n, **filler} for n in range(500)])
    assert (run / "metrics.jsonl").stat().st_size > 1_000_000
    (found,) = as_json(capsys)
    assert found["step"] == 499


def test_a_run_that_ended_before_it_had_a_config_is_listed(here, capsys):
    make_run(here / "logs/tiny/20251117-093000-aaaa", "failed", config=None, error="OSError: x")
    (found,) = as_json(capsys)
    assert found["status"] == "failed" and found["error"] == "OSError: x"


def test_tags_choose(here, capsys):
    one, two = make_run(here / "logs/one"), make_run(here / "logs/two")
    add_tags(one, ["paper", "good"])
    add_tags(two, ["paper"])
    assert len(as_json(capsys, "--tag", "paper")) == 2
    (found,) = as_json(capsys, "--tag", "paper", "--tag", "good")
    assert found["folder"] == "logs/one" and found["tags"] == ["paper", "good"]
    assert main(["runs", "--tag", "bad"]) == 0
    assert "none of the 2 runs in logs" in capsys.readouterr().err
    assert main(["runs", "--tag", "a,b"]) == 1
    assert "'a,b' is not a tag" in capsys.readouterr().err


def test_folders_of_every_kind(here, capsys, monkeypatch):
    run = finished(here / "logs/tiny_ppo/20251117-093000-aaaa")
    make_run(run / "eval_global_step_30", "evaluated", began=EPOCH + 60)
    make_run(here / "elsewhere/one")
    for name in ("logs", "logs/tiny_ppo"):
        assert [r["folder"] for r in as_json(capsys, name)] == [str(run.relative_to(here))]
    for name in (str(run), "logs/tiny_ppo/latest"):
        folders = [r["folder"] for r in as_json(capsys, name)]
        assert folders == [str(run.relative_to(here) / end) for end in ("", "eval_global_step_30")]
    assert len(as_json(capsys, "logs", "logs/tiny_ppo", "elsewhere")) == 2, "each once"
    assert as_json(capsys, "list", "elsewhere")[0]["folder"] == "elsewhere/one"
    # From elsewhere the whole path is what one types.
    monkeypatch.chdir(here / "elsewhere")
    assert as_json(capsys, str(run))[0]["folder"] == str(run)


def test_links_above_the_runs_are_kept(here, capsys):
    make_run(here / "disk/logs/a/one")
    (here / "logs").symlink_to(here / "disk/logs")
    assert [run["folder"] for run in as_json(capsys)] == ["logs/a/one"]


def test_without_runs_it_says_so(here, capsys):
    assert main(["runs"]) == 0
    assert "there is no folder logs here" in capsys.readouterr().err
    (here / "logs").mkdir()
    assert main(["runs"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "no runs in logs" in said.err
    assert as_json(capsys) == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["comapre", "a", "b"], "did you mean `rlinf runs compare`?"),
        (["absent"], "absent is neither a folder nor one of the commands list, compare, rm, tag"),
    ],
)
def test_what_is_neither_folder_nor_command(capsys, typed, said):
    assert main(["runs", *typed]) == 1
    assert said in capsys.readouterr().err


def test_a_folder_called_like_a_command_can_be_typed(here, capsys):
    make_run(here / "rm/one")
    assert as_json(capsys, "./rm")[0]["folder"] == "rm/one"
    assert as_json(capsys, "list", "rm")[0]["folder"] == "rm/one"


@pytest.mark.parametrize("typed", [["--status", "done"], ["-n", "0"], ["-n", "x"], ["--jason"]])
def test_wrong_options_are_refused(typed):
    with pytest.raises(SystemExit) as left:
        main(["runs", *typed])
    assert left.value.code == 2


def test_help_shows_the_commands(capsys):
    with pytest.raises(SystemExit) as left:
        main(["runs", "--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert all(f"\n    {name} " in said for name in ("list", "compare", "rm", "tag"))


@pytest.mark.parametrize("width", [20, 60, 80, 100, 130, 200])
def test_it_fits_the_terminal_and_cuts_no_name(here, capsys, monkeypatch, width):
    long = "a_recipe_with_a_rather_long_name"
    folders = [f"logs/{long}/20251117-09300{n}-aaaa" for n in range(3)]
    for folder in folders:
        add_tags(make_run(here / folder, recipe=long, **TOTALS), ["paper"])
    monkeypatch.setenv("COLUMNS", str(width))
    lines = listed(capsys)
    names = [line.split()[-1] for line in lines if line.split()[-1].startswith("logs/")]
    assert names == folders
    if width > 50:
        assert all(len(line) <= max(width, 70) for line in lines)
        assert "finished" in lines[1] and "paper" in lines[1]
    if width == 200:
        assert "recipe" in lines[0] and len(lines) == 4


def test_a_narrow_list_says_what_it_leaves_out(here, capsys, monkeypatch):
    make_run(here / "logs/a/one", **TOTALS)
    monkeypatch.setenv("COLUMNS", "42")
    assert "left out for lack of room: speed, wall time" in listed(capsys)[-1]


def test_hundreds_of_runs_are_read_in_a_moment(here, capsys):
    one = finished(here / "logs/exp0/20251117-093000-0000")
    for number in range(1, 400):
        copy = here / f"logs/exp{number % 7}/20251117-093000-{number:04d}"
        shutil.copytree(one, copy)
    assert len(as_json(capsys)) == 400


def test_a_reader_that_has_seen_enough_is_no_error(here):
    for number in range(300):
        make_run(here / f"logs/a/{number:03d}")
    done = subprocess.run(
        f"{sys.executable} -m rlinf.cli runs | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
