from __future__ import annotations

import pytest

from rlinf.cli import main
from rlinf.utils.runs import RunSummary
from tests.unit_tests.cli.runs.made_runs import finished, make_run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tags_are_given_and_taken(here, capsys):
    make_run(here / "logs/a/one")
    run = finished(here / "logs/a/two")
    assert main(["runs", "tag", "logs/a", "paper", "lr=3e-4"]) == 0, "the newest run"
    assert capsys.readouterr().out == "logs/a/two: paper, lr=3e-4\n"
    RunSummary(run)
    assert main(["runs", "tag", "logs/a/two"]) == 0
    assert "paper, lr=3e-4" in capsys.readouterr().out, "a run that goes on keeps them"
    assert main(["runs", "tag", "logs/a/two", "paper", "--remove"]) == 0
    assert main(["runs", "tag", "logs/a/two", "good", "--remove", "lr=3e-4"]) == 0
    assert capsys.readouterr().out.endswith("logs/a/two: good\n")
    assert main(["runs", "tag", "logs/a/two", "--remove", "good"]) == 0
    assert capsys.readouterr().out.endswith("logs/a/two: no tags\n")


def test_what_is_wrong_is_said(here, capsys):
    make_run(here / "one")
    assert main(["runs", "tag", "one", "a b"]) == 1
    assert "'a b' is not a tag" in capsys.readouterr().err
    assert main(["runs", "tag", "absent", "a"]) == 1
    assert "there is no run at absent" in capsys.readouterr().err
    assert main(["runs", "tag", "one", "a", "--remove"]) == 1
    assert "has no tag a; it has: none" in capsys.readouterr().err
    assert main(["runs", "tag", "one", "fine", "--remove", "a"]) == 1
    assert not (here / "one/tags.txt").exists()
    capsys.readouterr()
    assert main(["runs", "tag", "one", "--remove"]) == 2
    assert "name the tags to remove" in capsys.readouterr().err
