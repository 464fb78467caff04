"""Means over episodes count each episode once, however they are spread over env workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf.runners.embodied_runner import _merge_episodes
from rlinf.workers.env.env_worker import _EpisodeMetrics


def play(worker: _EpisodeMetrics, values: np.ndarray, ended: np.ndarray) -> None:
    """Some steps of some envs; metrics of envs whose episode goes on are not yet true."""
    for step in range(len(values)):
        mask = torch.from_numpy(ended[step])
        infos = {"restarts": step}
        if mask.any():
            shown = torch.from_numpy(np.where(ended[step], values[step], 1e9))
            infos |= {"episode": {"return": shown, "success_once": shown.sign()}, "_episode": mask}
        worker.add(infos)


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_is_that_of_all_episodes(seed):
    random = np.random.default_rng(seed)
    workers = [_EpisodeMetrics() for _ in range(3)]
    every = []
    # Workers with many, few and no episodes: a mean of their means would be another number.
    for worker, share in zip(workers, (0.6, 0.05, 0.0), strict=True):
        values = random.normal(size=(40, 5)).round(3)
        ended = random.random((40, 5)) < share
        play(worker, values, ended)
        every += values[ended].tolist()
    order = random.permutation(3)
    merged = _merge_episodes([workers[i].result() for i in order], "env")
    assert merged["env/episodes"] == len(every) > 0
    assert merged["env/return"] == pytest.approx(np.mean(every), abs=1e-9)
    assert merged["env/success_once"] == pytest.approx(np.mean(np.sign(every)), abs=1e-9)
    assert merged["env/restarts"] == 3 * 39


def test_without_an_episode_there_is_no_mean():
    merged = _merge_episodes([_EpisodeMetrics().result()] * 2, "eval")
    assert merged == {"eval/episodes": 0.0}
