"""An env worker has all of its simulators, or none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlinf.scheduler import CallCancelled
from rlinf.workers.env import env_worker as module
from rlinf.workers.env.env_worker import EnvWorker


def test_an_interrupted_init_worker_is_repeated_as_a_whole(monkeypatch):
    made = []

    def make(self: EnvWorker, settings: str, stages: int) -> list[str]:
        made.append(settings)
        if made == ["train", "eval"]:
            raise CallCancelled("another env worker has crashed")
        return [settings]

    section = SimpleNamespace(enable_offload=False)
    worker = object.__new__(EnvWorker)
    worker.cfg = SimpleNamespace(
        env=SimpleNamespace(train=section, eval=section), runner=SimpleNamespace(only_eval=False)
    )
    worker.stages, worker._train, worker._eval = 1, [], []
    monkeypatch.setattr(EnvWorker, "_make", make)
    monkeypatch.setattr(EnvWorker, "_prepare_video", lambda self: (True, ""))
    monkeypatch.setattr(module, "env_settings", lambda cfg, name: name)
    monkeypatch.setattr(module, "check_evaluation", lambda env: None)
    monkeypatch.setattr(module, "describe_envs", lambda train, evaluation: (train, evaluation))
    with pytest.raises(CallCancelled):
        worker.init_worker()
    assert worker.init_worker() == (["train"], ["eval"])
    worker.init_worker()
    assert made == ["train", "eval"] * 2, "and not once more"
