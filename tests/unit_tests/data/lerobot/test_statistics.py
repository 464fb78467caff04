"""Statistics are those of numpy over all frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

from rlinf.data.lerobot import LeRobotDataset  # noqa: E402
from rlinf.data.lerobot.statistics import (  # noqa: E402
    QUANTILES,
    PictureStats,
    merge_stats,
    number_stats,
)
from tests.unit_tests.data.lerobot.conftest import frame  # noqa: E402


def test_numbers_of_an_episode_are_numpys() -> None:
    values = np.random.default_rng(0).normal(size=(50, 3)) * [1, 10, 100]
    stats = number_stats(values)
    assert np.array_equal(stats["mean"], values.mean(0))
    assert np.array_equal(stats["std"], values.std(0))
    for name, share in QUANTILES.items():
        assert np.array_equal(stats[name], np.quantile(values, share, axis=0))
    assert stats["count"].tolist() == [50]


def test_merged_statistics_are_those_of_all_values() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.normal(loc=i * 1000, scale=1 + i, size=(5 + 7 * i, 2)) for i in range(4)]
    merged = merge_stats({"x": number_stats(part)} for part in parts)["x"]
    whole = np.concatenate(parts)
    assert np.allclose(merged["mean"], whole.mean(0), rtol=1e-12)
    assert np.allclose(merged["std"], whole.std(0), rtol=1e-9)
    assert np.array_equal(merged["min"], whole.min(0))
    assert np.array_equal(merged["max"], whole.max(0))
    assert merged["count"].tolist() == [len(whole)]
    counts = np.array([len(part) for part in parts])
    medians = np.stack([np.median(part, axis=0) for part in parts])
    assert np.allclose(merged["q50"], (medians * counts[:, None]).sum(0) / counts.sum())


def test_merging_step_by_step_is_merging_at_once() -> None:
    rng = np.random.default_rng(2)
    parts = [{"x": number_stats(rng.normal(size=(4 + i, 2)))} for i in range(5)]
    running = parts[0]
    for part in parts[1:]:
        running = merge_stats([running, part])
    at_once = merge_stats(parts)
    for name, value in at_once["x"].items():
        assert np.allclose(running["x"][name], value), name


def test_pictures_per_channel() -> None:
    pictures = np.random.default_rng(3).integers(0, 256, (6, 40, 30, 3), dtype=np.uint8)
    pictures[..., 1] //= 2
    stats = PictureStats(3)
    for picture in pictures:
        stats.add(picture)
    result, scaled = stats.result(), pictures / 255.0
    assert result["count"].tolist() == [6]
    for name, function in (("mean", np.mean), ("std", np.std), ("min", np.min), ("max", np.max)):
        assert result[name].shape == (3, 1, 1)
        assert np.allclose(result[name].ravel(), function(scaled, axis=(0, 1, 2))), name
    for name, share in QUANTILES.items():
        expected = np.quantile(scaled, share, axis=(0, 1, 2), method="inverted_cdf")
        assert np.allclose(result[name].ravel(), expected), name


def test_large_pictures_are_thinned_out() -> None:
    stats = PictureStats(3)
    stats.add(np.full((600, 800, 3), 51, np.uint8))
    assert np.allclose(stats.result()["mean"].ravel(), 0.2)


def test_a_dataset_has_the_statistics_of_its_frames(make: Callable[..., Path]) -> None:
    lengths = [5, 9, 2]
    folder = make(lengths)
    frames = [frame(e, n, length) for e, length in enumerate(lengths) for n in range(length)]
    dataset = LeRobotDataset(folder)
    for name in ("observation.state", "action", "counts", "next.reward", "flags"):
        values = np.stack([np.asarray(f[name], np.float64) for f in frames])
        values = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
        stats = dataset.stats[name]
        for key, function in (("mean", np.mean), ("std", np.std), ("max", np.max)):
            assert stats[key].shape == dataset.features[name].shape[-1:], name
            assert np.allclose(stats[key], function(values, axis=0), rtol=1e-5)
        assert stats["count"].tolist() == [16]
    top = np.stack([f["observation.images.top"] for f in frames]) / 255
    mean = dataset.stats["observation.images.top"]["mean"]
    # Each picture has the same number of pixels, so that weights by frames are exact.
    assert np.allclose(mean.ravel(), top.mean((0, 1, 2)))
    assert "note" not in dataset.stats
    (folder / "meta/stats.json").unlink()
    again = LeRobotDataset(folder)
    assert np.allclose(again.stats["action"]["std"], dataset.stats["action"]["std"])
