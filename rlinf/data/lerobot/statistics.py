"""Statistics of features, as `meta/stats.json` and the table of episodes hold them.

Of numbers, the statistics are over the frames, entry by entry; of features with several dimensions
over all but the last one, as lerobot has them. Of pictures, they are over all pixels of all frames,
per channel, of values between 0 and 1, in shape `[C, 1, 1]`. `count` is the number of frames.

Minimum, maximum, mean, population standard deviation and quantiles of an episode are exact.
Merged, all but the quantiles are exact: the quantiles of a dataset are the means of those of its
episodes, weighted by their counts, as lerobot merges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Stats = dict[str, np.ndarray]
"""`min`, `max`, `mean`, `std`, the quantiles, and `count` of shape `[1]`."""

_LARGE, _ENOUGH = 300, 150


def number_stats(values: np.ndarray) -> Stats:
    """Return the statistics of a numeric feature.

    Args:
        values: `[T, *shape]`.
    """
    rows = values.astype(np.float64).reshape(-1, values.shape[-1])
    stats = {
        "min": rows.min(0),
        "max": rows.max(0),
        "mean": rows.mean(0),
        "std": rows.std(0),
        "count": np.array([len(values)], dtype=np.int64),
    }
    quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
    return {**stats, **dict(zip(QUANTILES, quantiles, strict=True))}


class PictureStats:
    """Statistics of a stream of pictures, from the exact histogram of each channel.

    Large pictures are thinned out to about 150 pixels a side first.
    """

    def __init__(self, channels: int) -> None:
        """Start empty.

        Args:
            channels: Of each picture.
        """
        self._bins = np.zeros((channels, 256), dtype=np.int64)
        self._frames = 0

    def add(self, picture: np.ndarray) -> None:
        """Add a picture, uint8 `[H, W, C]`."""
        side = max(picture.shape[:2])
        if side >= _LARGE:
            step = side // _ENOUGH
            picture = picture[::step, ::step]
        for channel, bins in enumerate(self._bins):
            bins += np.bincount(picture[..., channel].ravel(), minlength=256)
        self._frames += 1

    def result(self) -> Stats:
        """Return the statistics of what was added, each `[C, 1, 1]` but the count."""
        levels = np.arange(256) / 255.0
        pixels = self._bins.sum(1, keepdims=True)
        mean = (self._bins * levels).sum(1, keepdims=True) / pixels
        variance = (self._bins * (levels - mean) ** 2).sum(1, keepdims=True) / pixels
        stats = {
            "min": np.array([levels[np.flatnonzero(bins)[0]] for bins in self._bins]),
            "max": np.array([levels[np.flatnonzero(bins)[-1]] for bins in self._bins]),
            "mean": mean,
            "std": np.sqrt(variance),
        }
        below = np.cumsum(self._bins, axis=1)
        for name, share in QUANTILES.items():
            ranks = np.ceil(share * pixels[:, 0]).astype(np.int64)
            at = [np.searchsorted(sums, rank) for sums, rank in zip(below, ranks, strict=True)]
            stats[name] = levels[np.array(at)]
        shaped = {name: value.reshape(-1, 1, 1) for name, value in stats.items()}
        return {**shaped, "count": np.array([self._frames], dtype=np.int64)}


def merge_stats(parts: Iterable[Mapping[str, Stats]]) -> dict[str, Stats]:
    """Return the statistics of the union of several sets of frames.

    Args:
        parts: Statistics by feature, of each set.
    """
    by_feature: dict[str, list[Stats]] = {}
    for part in parts:
        for name, stats in part.items():
            by_feature.setdefault(name, []).append(stats)
    return {name: _merged(stats) for name, stats in by_feature.items()}


def _merged(parts: list[Stats]) -> Stats:
    counts = np.array([float(part["count"][0]) for part in parts])
    shares = counts / counts.sum()

    def weighted(values: np.ndarray) -> np.ndarray:
        return np.tensordot(shares, values, axes=1)

    means = np.stack([part["mean"] for part in parts])
    mean = weighted(means)
    spread = np.stack([part["std"] for part in parts]) ** 2 + (means - mean) ** 2
    merged = {
        "min": np.stack([part["min"] for part in parts]).min(0),
        "max": np.stack([part["max"] for part in parts]).max(0),
        "mean": mean,
        "std": np.sqrt(weighted(spread)),
        "count": np.array([int(counts.sum())], dtype=np.int64),
    }
    for name in QUANTILES:
        if all(name in part for part in parts):
            merged[name] = weighted(np.stack([part[name] for part in parts]))
    return merged


def to_json(stats: Mapping[str, Stats]) -> dict[str, Any]:
    """Return statistics as nested lists."""
    return {
        feature: {name: value.tolist() for name, value in values.items()}
        for feature, values in stats.items()
    }


def from_json(stats: Mapping[str, Mapping[str, Any]]) -> dict[str, Stats]:
    """Return statistics as arrays."""
    return {
        feature: {name: np.atleast_1d(np.asarray(value)) for name, value in values.items()}
        for feature, values in stats.items()
    }
