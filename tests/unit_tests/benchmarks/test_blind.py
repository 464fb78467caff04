"""What can be done blindly: the motion of one start, played from another."""

import pytest

pytest.importorskip("metaworld")

from benchmarks import blind


def test_a_door_is_closed_blindly_and_a_goal_is_not_reached(capsys):
    tasks = ["door-close-v3", "reach-v3"]
    assert blind.main([*tasks, "--motions", "2", "--starts", "4", "--steps", "90"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[task, "100%"] for task in tasks]
    closed, reached = (float(row[3].rstrip("%")) for row in rows)
    assert closed >= 75 and reached <= 50
