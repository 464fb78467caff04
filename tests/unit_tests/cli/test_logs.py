"""Logs of workers: merged by time, chosen by worker, level and time, and followed."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from rlinf.cli import logs, main
from rlinf.cli.worker_logs import LogFile, Selection, find_logs, parse_since
from rlinf.utils.runs import RunLock


def line(level: str, time: str, who: str, text: str) -> str:
    return f"[{level} 2025-03-02 {time} {who}][x.py:1] {text}\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    content = {
        "EnvGroup/rank_0.log": line("INFO", "10:00:00.000", "EnvGroup-Rank-0", "one")
        + line("ERROR", "10:00:02.500", "EnvGroup-Rank-0", "four\nTraceback:\n  [INFO] inside"),
        "EnvGroup/rank_1.log": line("WARNING", "10:00:01.999", "EnvGroup-Rank-1", "three"),
        "ActorGroup/rank_0.log": line("DEBUG", "10:00:01.000", "ActorGroup-Rank-0", "two")
        + line("INFO", "10:00:03.000", "ActorGroup-Rank-0", "five"),
    }
    for name, text in content.items():
        path = tmp_path / "workers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def shown(capsys, *arguments: str) -> list[str]:
    """The last word of each line that begins an entry, and all others whole."""
    assert main(["logs", *arguments]) == 0
    out = capsys.readouterr().out.splitlines()
    return [text.rpartition("] ")[2] if text.startswith("[") else text for text in out]


def test_logs_are_merged_by_time(run, capsys):
    found = shown(capsys, str(run))
    assert found == ["one", "two", "three", "four", "Traceback:", "  [INFO] inside", "five"]
    # A program without a runner has its logs in the folder itself.
    assert shown(capsys, str(run / "workers")) == found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--worker", "EnvGroup:1"], ["three"]),
        (["--worker", "ActorGroup"], ["two", "five"]),
        (["--worker", "*:0", "--level", "info"], ["one", "four", "five"]),
        (["--level", "WARNING"], ["three", "four"]),
        (["--since", "2025-03-02 10:00:02"], ["four", "five"]),
    ],
)
def test_entries_are_chosen(run, capsys, options, expected):
    found = shown(capsys, str(run), *options)
    assert [text for text in found if text not in ("Traceback:", "  [INFO] inside")] == expected


def test_what_is_not_there_is_said(run, capsys):
    assert main(["logs", str(run), "--worker", "Actor"]) == 1
    assert "there are: ActorGroup:0, EnvGroup:0, EnvGroup:1" in capsys.readouterr().err
    assert main(["logs", str(run / "workers" / "EnvGroup")]) == 1
    assert "has no logs of workers" in capsys.readouterr().err
    assert main(["logs", str(run), "--since", "yesterday"]) == 1
    assert "10m" in capsys.readouterr().err


def test_moments():
    now = datetime.datetime(2025, 3, 2, 12, 0, 0)
    assert parse_since("90s", now) == "2025-03-02 11:58:30.000"
    assert parse_since("1.5h", now) == "2025-03-02 10:30:00.000"
    assert parse_since("2d", now) == "2025-02-28 12:00:00.000"
    assert parse_since("09:05", now) == "2025-03-02 09:05:00.000"
    assert parse_since("2025-03-01", now) == "2025-03-01 00:00:00.000"


def test_a_run_is_followed_until_it_ends(run, capsys):
    lock = RunLock(run)
    (run / "summary.json").write_text(json.dumps({"status": "running"}))
    files = {name: LogFile(name, path) for name, path in find_logs(run).items()}
    for file in files.values():
        list(file.new_entries())
    actor = run / "workers" / "ActorGroup" / "rank_0.log"
    late = run / "workers" / "RewardGroup" / "rank_0.log"
    looks = []

    def go_on(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            with open(actor, "a") as file:
                file.write(line("INFO", "10:00:04.000", "A", "six") + "[INFO 2025-03-02 10:0")
        elif len(looks) == 2:
            with open(actor, "a") as file:
                file.write("0:06.000 A][x.py:1] eight\n")
            late.parent.mkdir()
            late.write_text(line("INFO", "10:00:05.000", "R", "seven"))
        elif len(looks) == 3:
            (run / "summary.json").write_text(json.dumps({"status": "finished"}))
            with open(actor, "a") as file:
                file.write(line("DEBUG", "10:00:07.000", "A", "not wanted"))
                file.write(line("ERROR", "10:00:08.000", "A", "nine"))

    logs.follow(str(run), None, files, Selection("INFO"), sleep=go_on)
    out = capsys.readouterr().out.splitlines()
    assert [text.rpartition(" ")[2] for text in out] == ["six", "seven", "eight", "nine"]
    assert len(looks) == 3
    lock.release()


def test_following_ends_with_an_interrupt(run, capsys):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    logs.follow(str(run), None, {}, Selection(), sleep=interrupt)
    assert "one" in capsys.readouterr().out


def test_of_a_long_log_the_end_can_be_read(tmp_path):
    path = tmp_path / "rank_0.log"
    path.write_text("".join(line("INFO", f"10:00:{n:02d}.000", "A", f"é {n}") for n in range(60)))
    file = LogFile("A:0", path)
    file.skip_to_last(200)
    texts = [entry.message for entry in file.new_entries()]
    assert 2 <= len(texts) <= 4 and texts[-1] == "é 59"
    assert all(text.startswith("é ") for text in texts), "whole lines"
