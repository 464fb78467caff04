"""`rlinf runs rm` deletes what it is told to, after asking, and nothing else."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.cli.runs.removal import plan_removal, remove
from rlinf.utils.runs import RunLock, RunSummary
from rlinf.utils.runs.lock import FILE as LOCK
from tests.unit_tests.cli.runs.made_runs import checkpoint, finished, make_run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(text: str, *arguments: str) -> tuple[int, str]:
    """Run the command with a terminal at which a user types; return exit code and output."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rlinf.cli", "runs", "rm", *arguments]
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        os.write(ours, text.encode())
        said, _ = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    return process.returncode, said


def test_it_shows_what_and_how_much_and_asks(here):
    run = finished(here / "logs/a/one")
    checkpoint(run, 3, size=5_000_000)
    code, said = answer("n\n", "logs/a/one")
    assert code == 1 and "nothing was deleted" in said and run.is_dir()
    assert "logs/a/one  (finished, success 97.5 %)" in said
    assert "checkpoints 4.77 MiB" in said
    code, said = answer("\x04", "logs/a/one")
    assert code == 1 and run.is_dir(), "the end of input is no consent"
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    code, said = answer("y\n", "logs/a/one")
    assert code == 0 and not run.exists()
    assert f"delete 1 run, 4.77 MiB ({size:,} bytes)? [y/N]" in said


def test_without_a_terminal_it_does_not_guess(here, monkeypatch, capsys):
    run = finished(here / "logs/a/one")
    monkeypatch.setattr("sys.stdin", open(os.devnull))
    assert main(["runs", "rm", "logs/a/one"]) == 2
    assert "add --yes" in capsys.readouterr().err and run.is_dir()
    assert main(["runs", "rm", "logs/a/one", "--yes"]) == 0
    assert not run.exists()


def test_latest_follows(here, capsys):
    one, two = finished(here / "logs/a/one"), finished(here / "logs/a/two")
    make_run(here / "logs/a/zoo", "evaluated")
    link = here / "logs/a/latest"
    assert main(["runs", "rm", "--yes", "logs/a/latest", "logs/a/two"]) == 0
    assert not two.exists() and link.resolve() == one
    assert "logs/a/latest now points to one" in capsys.readouterr().out
    assert main(["runs", "rm", "--yes", "logs/a/one"]) == 0
    assert not link.is_symlink(), "an evaluation is not what it points to"
    assert (here / "logs/a/zoo").is_dir()


def test_a_link_that_is_right_stays(here):
    finished(here / "logs/a/one")
    two = finished(here / "logs/a/two")
    assert main(["runs", "rm", "--yes", "logs/a/one"]) == 0
    assert (here / "logs/a/latest").resolve() == two


def test_a_run_that_is_running_is_refused_and_with_it_all(here, capsys):
    other, run = finished(here / "logs/a/one"), make_run(here / "logs/a/two", None)
    lock = RunLock(run)
    for more in ([], ["--checkpoints"]):
        assert main(["runs", "rm", "--yes", "logs/a/one", "logs/a/two", *more]) == 1
        said = capsys.readouterr().err
        assert f"logs/a/two is running: process {os.getpid()} on {socket.gethostname()}" in said
        assert "nothing was deleted" in said
        assert other.is_dir() and run.is_dir()
    lock.release()
    assert main(["runs", "rm", "--yes", "logs/a/two"]) == 0, "killed now"
    assert not run.exists()


def test_an_evaluation_that_is_running_protects_its_run(here, capsys):
    run = finished(here / "logs/a/one")
    (run / "code/1").mkdir(parents=True)
    (run / "code/1/config.yaml").write_text("{}")
    lock = RunLock(make_run(run / "eval_global_step_3", None))
    assert main(["runs", "rm", "--yes", str(run)]) == 1
    assert "eval_global_step_3 is running" in capsys.readouterr().err
    lock.release()
    assert main(["runs", "rm", "--yes", str(run)]) == 0
    assert not run.exists()


def test_a_run_that_begins_meanwhile_is_not_deleted(here):
    run = finished(here / "logs/a/one")
    planned = plan_removal("logs/a/one")
    lock = RunLock(run)
    with pytest.raises(ValueError, match="is running"):
        remove(planned)
    assert (run / "summary.json").is_file()
    lock.release()


def test_locks_of_another_host(here, capsys):
    run = finished(here / "logs/a/one")
    (run / LOCK).write_text('{"pid": 7, "host": "elsewhere"}\n')
    RunSummary(run)
    assert main(["runs", "rm", "--yes", "logs/a/one"]) == 1
    said = capsys.readouterr().err
    assert "process 7 on elsewhere" in said and "delete logs/a/one/.lock" in said
    RunSummary(run).write(status="finished")
    assert main(["runs", "rm", "--yes", "logs/a/one"]) == 0, "it has said how it ended"


def test_only_checkpoints(here, capsys):
    run = finished(here / "logs/a/one", metrics=[{"step": 1}])
    checkpoint(run, 3, size=1000)
    for option in ("--checkpoints", "--keep-metrics"):
        assert main(["runs", "rm", "--yes", option, "logs/a/one"]) == 0
        assert sorted(path.name for path in run.iterdir() if path.name != LOCK) == [
            "config.yaml",
            "metrics.jsonl",
            "summary.json",
        ]
    said = capsys.readouterr().out
    assert said.count("deleted the checkpoints of logs/a/one") == 1
    assert "no checkpoints to delete" in said, "the second time"
    assert (here / "logs/a/latest").resolve() == run


@pytest.mark.parametrize("more", [[], ["--checkpoints"]])
def test_checkpoints_on_another_disk_go_as_well(here, capsys, more):
    run = finished(here / "logs/a/one")
    place = here / "disk/a/one/checkpoints"
    checkpoint(place.parent, 3, size=2000)
    (run / "checkpoints").symlink_to(place)
    assert main(["runs", "rm", "--yes", "logs/a/one", *more]) == 0
    assert "its checkpoints are in disk/a/one/checkpoints" in capsys.readouterr().out
    assert not place.parent.exists() and (here / "disk/a").is_dir()
    assert not (run / "checkpoints").is_symlink() and run.exists() is bool(more)


def test_what_a_link_leads_to_stays_if_it_is_not_the_runs(here, capsys):
    run = finished(here / "logs/a/one")
    weights = checkpoint(here / "logs/shared", 3, size=2000)
    (run / "checkpoints").symlink_to(here / "logs/shared/checkpoints")
    (run / "data").symlink_to(here / "logs/shared")
    assert main(["runs", "rm", "--yes", "logs/a/one"]) == 0
    assert "which stays" in capsys.readouterr().out
    assert not run.exists() and (weights / "weights.pt").is_file()


def test_what_is_not_a_run_is_refused(here, capsys):
    make_run(here / "logs/a/one")
    (here / "project").mkdir()
    (here / "project/config.yaml").write_text("{}")
    (here / "project/thesis.tex").write_text("x")
    (here / "empty").mkdir()
    cases = {
        "logs/a": "logs/a is not a run but holds 1",
        "logs": "`rlinf runs logs` lists them",
        "project": "project does not look like a run",
        "empty": "empty is not the folder of a run",
        "absent": "there is no run at absent; the newest runs in logs: logs/a/one",
    }
    for typed, why in cases.items():
        assert main(["runs", "rm", "--yes", typed]) == 1
        assert why in capsys.readouterr().err
        assert main(["runs", "rm", "--yes", "--checkpoints", typed]) == 1
        capsys.readouterr()
    assert (here / "project/thesis.tex").is_file() and (here / "logs/a/one").is_dir()


def test_a_folder_that_is_more_than_a_run_is_refused(here, capsys, monkeypatch):
    run = finished(here / "logs")
    make_run(here / "logs/a/one")
    assert main(["runs", "rm", "--yes", "logs"]) == 1
    assert "has other runs in it, such as logs/a/one" in capsys.readouterr().err
    repository = make_run(here / "repository")
    (repository / ".git").mkdir()
    assert main(["runs", "rm", "--yes", "repository"]) == 1
    assert "is a git repository" in capsys.readouterr().err
    inside = finished(here / "logs/a/two")
    (inside / "videos").mkdir()
    monkeypatch.chdir(inside / "videos")
    assert main(["runs", "rm", "--yes", ".."]) == 1
    assert "the current folder" in capsys.readouterr().err
    assert run.is_dir() and inside.is_dir()


def test_a_deletion_that_is_cut_short_can_be_repeated(here, monkeypatch, capsys):
    run = finished(here / "logs/a/one", metrics=[{"step": 1}])
    checkpoint(run, 3, size=10)

    def fails(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", fails)
        assert main(["runs", "rm", "--yes", "logs/a/one"]) == 1
    assert "was not deleted: [Errno 13] Permission denied" in capsys.readouterr().err
    assert (run / "summary.json").is_file() and (run / "config.yaml").is_file()
    assert main(["runs", "rm", "--yes", "logs/a/one"]) == 0
    assert not run.exists()


def test_runs_that_ended_badly_can_be_deleted(here):
    broken = make_run(here / "logs/broken")
    (broken / "summary.json").write_text("{")
    early = make_run(here / "logs/early", "failed", config=None)
    (early / "workers").mkdir()
    (here / "logs/only_lock").mkdir()
    RunLock(here / "logs/only_lock").release()
    names = ["logs/broken", "logs/early", "logs/only_lock"]
    assert main(["runs", "rm", "--yes", *names]) == 0
    assert not any(Path(name).exists() for name in names)
