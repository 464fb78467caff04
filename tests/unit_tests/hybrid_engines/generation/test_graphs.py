"""Steps run with or without graphs, and losing graphs is said."""

import torch

from rlinf.hybrid_engines.generation.hf.graphs import CapturedSteps


class Graph:
    """Stands for a CUDA graph: runs the step when it is replayed."""

    def __init__(self, step):
        self.replay = step


def test_a_step_runs_once_as_it_is_then_as_a_graph(monkeypatch):
    captured = []
    monkeypatch.setattr(
        CapturedSteps, "_captured", lambda self, step: captured.append(step) or Graph(step)
    )
    steps, runs = CapturedSteps(True, largest=8), []
    for rows in (4, 4, 4, 2, 2, 16, 16):
        steps.run(rows, "kind", lambda rows=rows: runs.append(rows))
    assert runs == [4, 4, 4, 2, 2, 16, 16]
    assert len(captured) == len(steps) == 2
    steps.clear()
    assert len(steps) == 0
    steps.run(4, "kind", lambda: runs.append("again"))
    assert runs[-1] == "again" and len(captured) == 2


def test_kinds_have_graphs_of_their_own(monkeypatch):
    monkeypatch.setattr(CapturedSteps, "_captured", lambda self, step: Graph(step))
    steps, runs = CapturedSteps(True, largest=8), []
    for kind in ("a", "b", "a", "b"):
        steps.run(4, kind, lambda kind=kind: runs.append(kind))
    assert runs == ["a", "b", "a", "b"] and len(steps) == 2


def test_a_failed_capture_is_said_and_the_step_runs(monkeypatch, caplog):
    def fail(self, step):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(CapturedSteps, "_captured", fail)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    steps, runs = CapturedSteps(True, largest=8), []
    for _ in range(3):
        steps.run(4, "kind", lambda: runs.append(1))
    assert runs == [1, 1, 1] and not steps.enabled
    assert "4 rows cannot be captured as a CUDA graph (operation not permitted" in caplog.text
    assert "rollout.enforce_eager" in caplog.text
