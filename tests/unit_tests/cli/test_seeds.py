"""`rlinf train --seeds`: a run per seed, each with a folder of its own, and a table at the end."""

from __future__ import annotations

import json
import signal
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.cli.seeds import Outcome, parse_seeds, quoted, spread, table

# Stands in for training: does what `PLAN` says of its seed, and leaves a summary.
SCRIPT = """\
import json, os, signal, sys
given = dict(item.lstrip("+").split("=", 1) for item in sys.argv if item.startswith("++"))
seed, folder = given["runner.seed"], given["runner.run_dir"].strip("'")
plan = json.loads(os.environ["PLAN"]).get(seed, {})

def leave(code, **facts):
    known = {"seed": int(seed), "session": os.getsid(0) == os.getpid(), "wall_seconds": 2.4}
    with open(os.path.join(folder, "summary.json"), "w") as file:
        json.dump(known | facts, file)
    sys.exit(code)

print("training with seed", seed, flush=True)
if "signals" in plan:
    wanted = [getattr(signal, name) for name in plan["signals"]]
    came = []
    signal.alarm(60)
    for signum in wanted:
        signal.signal(signum, lambda signum, frame: came.append(signum))
    for signum in wanted:
        count = len(came)
        os.kill(os.getppid(), signum)
        while len(came) == count:
            signal.pause()
    leave(128 + came[-1], status="stopped", global_step=3, came=came)
if plan.get("code"):
    leave(plan["code"], status="failed", error="RuntimeError: no luck", global_step=1)
leave(0, status="finished", global_step=10, evaluation=plan.get("evaluation", {}))
"""


@pytest.fixture
def job(embodied: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config whose training is the script above; the current folder is its own."""
    home = embodied.parent / "embodiment"
    (home / "config").mkdir(parents=True)
    (home / "train_embodied_agent.py").write_text(SCRIPT)
    monkeypatch.chdir(embodied.parent)
    monkeypatch.setenv("PLAN", "{}")
    return embodied.rename(home / "config" / embodied.name)


def score(rate: float) -> dict[str, dict[str, float]]:
    ends = {"eval/success_once_low": rate - 0.1, "eval/success_once_high": rate + 0.1}
    return {"evaluation": {"eval/success_once": rate, "eval/episodes": 50, **ends}}


def train(job: Path, *arguments: str) -> int:
    return main(["train", str(job), "runner.logger.log_path=out", *arguments])


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("7", [7]), ("1,2,3", [1, 2, 3]), ("1-3", [1, 2, 3]), ("0-1,5,8-8", [0, 1, 5, 8])],
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,x", "'x' in '1,x' cannot be read"),
        ("1,", "'1,' cannot be read"),
        ("-1", "'-1' cannot be read"),
        ("1.5", "'1.5' cannot be read"),
        ("", "'' cannot be read"),
        ("3-1", "write 1-3"),
        ("1-3,2", "has 2 more than once"),
        ("0-20000101", "more than 1000 seeds"),
    ],
)
def test_a_wrong_text_is_told_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ArgumentTypeError, match=said.replace("(", r"\(")):
        parse_seeds(text)


def test_a_wrong_text_on_the_command_line(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        train(job, "--seeds", "one")
    assert left.value.code == 2
    assert "'one' cannot be read as seeds; allowed are" in capsys.readouterr().err


def test_each_seed_has_a_run_and_the_table_says_what_came_out(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLAN", json.dumps({"4": score(0.9), "6": score(0.7)}))
    assert train(job, "--seeds", "4,6") == 0
    said = capfd.readouterr().out
    runs = sorted(Path("out").glob("*/2*"))
    found = [json.loads((run / "summary.json").read_text()) for run in runs]
    assert [facts["seed"] for facts in found] == [4, 6]
    places = [said.index(f"seed {seed}, run {n} of 2: {run}") for n, (seed, run) in pairs(runs)]
    trained = [said.index(f"training with seed {seed}") for seed in (4, 6)]
    assert places[0] < trained[0] < places[1] < trained[1]
    rows = [line.split("  ") for line in said.splitlines() if "finished" in line]
    first, second = ([cell.strip() for cell in row if cell] for row in rows)
    assert first == ["4", "finished", "90.0 % (80.0 % – 100.0 %)", "10", "2", str(runs[0])]
    assert second[0] == "6" and second[-1] == str(runs[1])
    assert (
        "success over 2 seeds: mean 80.0 %, standard deviation 14.1 %, from 70.0 % to 90.0 %"
        in said
    )


def pairs(runs: list[Path]) -> list[tuple[int, tuple[int, Path]]]:
    return list(enumerate(zip((4, 6), runs, strict=True), 1))


@pytest.mark.parametrize("name", ["plain", "lr=1, (a) try", "it's", 'two "words"', "50% {x}"])
def test_a_folder_may_have_any_name(name: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    folder = Path("/logs") / name
    override = OverridesParser.create().parse_override(f"++runner.run_dir={quoted(folder)}")
    assert override.value() == str(folder)


def test_a_seed_that_fails_does_not_stop_the_others(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = {"1": score(0.5), "2": {"code": 3}, "3": score(0.7)}
    monkeypatch.setenv("PLAN", json.dumps(plan))
    assert train(job, "--seeds", "1-3") == 1
    captured = capfd.readouterr()
    assert "training with seed 3" in captured.out
    assert "success over 2 of 3 seeds: mean 60.0 %" in captured.out
    assert "seed 2 failed with exit code 3: RuntimeError: no luck (out/" in captured.err
    assert "seed 1" not in captured.err and "seed 3" not in captured.err


@pytest.mark.parametrize(
    "signals", [["SIGINT"], ["SIGTERM"], ["SIGHUP"], ["SIGINT", "SIGINT"]], ids="-".join
)
def test_a_signal_goes_to_the_run_and_ends_the_series(
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    signals: list[str],
) -> None:
    plan = {"1": score(0.5), "2": {"signals": signals}}
    monkeypatch.setenv("PLAN", json.dumps(plan))
    before = signal.getsignal(signal.SIGINT)
    numbers = [getattr(signal, name) for name in signals]
    assert train(job, "--seeds", "1-4") == 128 + numbers[-1]
    said = capfd.readouterr().out
    assert "training with seed 3" not in said and "not started: seeds 3, 4" in said
    last = json.loads(sorted(Path("out").glob("*/*/summary.json"))[-1].read_text())
    # Ctrl-C in a terminal reaches all of a session: one of its own gets what is passed on, once.
    assert last["came"] == numbers and last["session"]
    assert [line for line in said.splitlines() if line.startswith(" ") and "stopped" in line]
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("runner.seed=3", "runner.seed=3 and --seeds both"),
        ("++runner.seed=3", "runner.seed=3 and --seeds both"),
        ("runner.run_dir=mine", "all runs of --seeds would share; leave it out"),
        ("runner.resume_dir=auto", "one run at a time, without --seeds"),
    ],
)
def test_what_differs_between_runs_is_not_given(
    job: Path, capsys: pytest.CaptureFixture[str], override: str, said: str
) -> None:
    assert train(job, "--seeds", "1,2", override) == 2
    assert said in capsys.readouterr().err
    assert not Path("out").exists()


def test_what_trains_nothing_has_no_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("runner:\n  task_type: workers\n")
    assert main(["train", str(path), "--seeds", "1"]) == 2
    assert "mine trains nothing" in capsys.readouterr().err


def test_a_dry_run_prints_all_commands(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(job, "--seeds", "5,8", "--dry-run") == 0
    commands = capsys.readouterr().out.splitlines()
    assert [command.split("++runner.seed=")[1] for command in commands] == ["5", "8"]
    assert not Path("out").exists()


def test_a_place_that_cannot_be_written(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").write_text("a file")
    assert train(job, "--seeds", "5,8") == 1
    captured = capsys.readouterr()
    assert "nothing can be written to out" in captured.err
    assert "not started: seeds 5, 8" in captured.out


def outcome(code: int, **summary: object) -> Outcome:
    return Outcome(1, Path("run"), code, summary)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (outcome(0, status="finished"), "finished"),
        (outcome(1, status="finished"), "failed"),
        (outcome(1), "failed"),
        (outcome(137, status="killed"), "killed"),
        (outcome(143, status="killed"), "stopped"),
    ],
)
def test_the_status_goes_with_the_exit_code(found: Outcome, status: str) -> None:
    assert found.status == status
    assert found.failed is (status in ("failed", "killed"))


def test_without_evaluations_there_is_no_score() -> None:
    runs = [outcome(0, status="finished", global_step=2, wall_seconds=3.0)]
    assert table(runs)[1].split() == ["1", "finished", "-", "2", "3", "run"]
    assert "runner.val_check_interval" in spread(runs)
    assert (
        spread([outcome(130, status="stopped")]) == "no run came to its end, so there is no score"
    )


def test_returns_are_no_percentages() -> None:
    runs = [
        outcome(0, status="finished", evaluation={"eval/return": value, "eval/episodes": 5})
        for value in (100.0, 300.0)
    ]
    assert spread(runs).startswith("return over 2 seeds: mean 200.0, standard deviation 141.4")
