"""Runs of light ranks: all that is measured happens, and the table says what a rank costs."""

from __future__ import annotations

from benchmarks import scaling, simulated_run
from benchmarks.harness import Board


def test_a_small_run(monkeypatch):
    monkeypatch.setattr(simulated_run, "HOSTS", 2)
    monkeypatch.setattr(scaling, "LONG_CALL_SECONDS", 0.2)
    monkeypatch.setattr(scaling, "IDLE_SECONDS", 0.1)
    costs = scaling.measure_run(12)
    # Join, a port, registering and being ready: three questions and their answers.
    assert costs["launch: messages of the registry"] == 6
    assert costs["driver: descriptors"] == 1
    assert costs["size of the group and a value: messages of the registry"] == 4
    assert costs["status of all ranks: messages of the registry"] == 2
    assert costs["second broadcast of rank 0: messages of the registry"] == 0
    assert 2 <= costs["death of one rank: messages in all"] <= 12
    assert all(value > 0 for label, value in costs.items() if "seconds" in label)


def test_the_table():
    board = Board(["64", "4,096"], ours="4,096")
    for column, factor in (("64", 1.0), ("4,096", 3.0)):
        costs = {
            "launch: seconds": 0.001 * factor,
            "launch: messages of the registry": 6.0,
            "driver: memory": 2048.0,
        }
        scaling.add_costs(board, column, costs, "64")
    table = board.render([("4,096", "64")])
    assert "| launch: seconds (µs) | 1,000 | 3,000 | 3.00 | ≤ 2 x 64: 3.00 x **missed** |" in table
    assert "| launch: messages of the registry (1) | 6.00 | 6.00 | 1.00 | ≤ 2 x 64: 1.00 x" in table
    assert "| driver: memory (KiB) | 2 | 2 | 1.00 |" in table
