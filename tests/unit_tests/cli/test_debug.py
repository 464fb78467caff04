"""Tests what `rlinf train --debug` tells a run."""

from __future__ import annotations

import os

import pytest

from rlinf.cli import main, train


@pytest.fixture
def started(monkeypatch):
    """What would run in the place of this process: its command and RLINF_DEBUG."""
    calls = []
    # Set first, so that what the command sets is taken back.
    monkeypatch.setenv("RLINF_DEBUG", "0")
    monkeypatch.delenv("RLINF_DEBUG")
    monkeypatch.setattr(
        train.os, "execv", lambda _, command: calls.append((command, os.environ.get("RLINF_DEBUG")))
    )
    return calls


def test_without_it_nothing_is_told(started):
    main(["train", "metaworld_ppo_mlp"])
    ((command, mode),) = started
    assert mode is None and not any("progress" in word for word in command)


def test_the_config_may_come_after_it(started):
    main(["train", "--debug", "metaworld_ppo_mlp"])
    ((command, mode),) = started
    assert mode == "1" and "++runner.progress=plain" in command
    assert not any("component_placement" in word for word in command)


def test_in_one_process_each_component_has_one_rank(started):
    main(["train", "metaworld_ppo_mlp", "--debug=inline", "cluster.component_placement.env=2-3"])
    ((command, mode),) = started
    assert mode == "inline"
    assert "++cluster.component_placement.actor=0" in command
    # What the user says stays, and is refused by the run if it is too much.
    assert "++cluster.component_placement.env=2-3" in command
    assert "++cluster.component_placement.env=2" not in command


def test_it_is_not_for_several_runs(started, capsys):
    assert main(["train", "metaworld_ppo_mlp", "--debug", "--seeds", "1,2"]) == 2
    assert "--debug is for one run" in capsys.readouterr().err and not started
