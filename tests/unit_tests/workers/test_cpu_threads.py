"""Workers share the cores of a node, and what the user says about threads stays."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from rlinf.workers import cpu_threads


@pytest.mark.parametrize(
    ("cores", "workers", "overlaps", "expected"),
    [(2, 1, False, 2), (2, 2, False, 1), (2, 1, True, 1), (16, 2, True, 4), (2, 8, False, 1)],
)
def test_the_share_of_a_worker(cores: int, workers: int, overlaps: bool, expected: int) -> None:
    assert cpu_threads.threads(cores, workers, overlaps) == expected


def settings(age: int = 0, stream: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        algorithm=SimpleNamespace(max_policy_age=age), actor=SimpleNamespace(stream_groups=stream)
    )


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of threads that torch was told."""
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("NODE_LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return found


def test_groups_that_work_at_the_same_time_have_half(chosen: list[int]) -> None:
    for cfg in (settings(), settings(age=1), settings(stream=4)):
        cpu_threads.use_cores(cfg, torch.device("cpu"))
    assert chosen == [4, 2, 2]


def test_an_evaluation_without_an_actor_has_all(chosen: list[int]) -> None:
    cfg = SimpleNamespace(algorithm=SimpleNamespace(max_policy_age=0), actor=None)
    cpu_threads.use_cores(cfg, torch.device("cpu"))
    assert chosen == [4]


def test_what_the_user_says_stays(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_threads.use_cores(settings(), torch.device("cuda"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    cpu_threads.use_cores(settings(), torch.device("cpu"))
    assert chosen == []
