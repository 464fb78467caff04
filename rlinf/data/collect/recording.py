"""One episode while it is played, and how it becomes an episode of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinf.data.demonstrations.names import features_of, views_of
from rlinf.data.lerobot.transitions import (
    ACTION,
    DONE,
    REWARD,
    SUCCESS,
    TERMINATED,
    TRUNCATED,
)
from rlinf.data.lerobot.writer import DatasetWriter
from rlinf.envs.base import VectorEnv

INTERVENTION = "intervention"
"""Feature that is true where somebody else than whoever acts chose the action."""


@dataclass
class EpisodeFrames:
    """An episode that is played.

    Attributes:
        number: Of the episode.
        task: What is to be done, in words.
        frames: So far.
        success: Whether the task was solved at any step.
        total: Sum of rewards.
        final: What follows the last frame; None while it goes on.
        discarded: Whoever acted does not want it kept.
    """

    number: int
    task: str
    frames: list[dict[str, Any]] = field(default_factory=list)
    success: bool = False
    total: float = 0.0
    final: dict[str, Any] | None = None
    discarded: bool = False

    def add(
        self,
        observation: dict[str, Any],
        action: np.ndarray,
        reward: float,
        *,
        success: bool,
        terminated: bool,
        truncated: bool,
        intervened: bool,
    ) -> None:
        """Add a step: what was observed, what was executed, and what followed."""
        self.frames.append(
            {
                **observation,
                ACTION: action,
                REWARD: reward,
                SUCCESS: success,
                DONE: terminated or truncated,
                TERMINATED: terminated,
                TRUNCATED: truncated,
                INTERVENTION: intervened,
            }
        )
        self.success |= success
        self.total += reward

    def write(self, writer: DatasetWriter) -> None:
        """Make it an episode of a dataset."""
        for frame in self.frames:
            writer.add_frame(frame, self.task)
        writer.save_episode(self.final)


def dataset_features(env: VectorEnv, image_format: str) -> dict[str, dict[str, Any]]:
    """Return the features of a dataset of an env.

    Args:
        env: The env.
        image_format: `video` or `image`.
    """
    features: dict[str, dict[str, Any]] = {}
    for name, spec in env.obs_spec.items():
        picture = name.endswith("images")
        views = views_of(name, spec.shape)
        shape = spec.shape if views is None else spec.shape[1:]
        kind = image_format if picture else np.dtype(spec.dtype).name
        for feature in features_of(name, views):
            features[feature] = {"dtype": kind, "shape": shape}
            if picture:
                features[feature]["names"] = ["height", "width", "channels"]
    spec = env.policy_spec
    features[ACTION] = {"dtype": np.dtype(spec.dtype).name, "shape": (spec.dim,)}
    features[REWARD] = {"dtype": "float32", "shape": (1,)}
    for name in (SUCCESS, DONE, TERMINATED, TRUNCATED, INTERVENTION):
        features[name] = {"dtype": "bool", "shape": (1,)}
    return features


def frame_of(obs: Mapping[str, Any], slot: int, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one slot observes, by feature.

    Args:
        obs: Observations of all slots.
        slot: Which.
        names: Names of the observations to take.
    """
    frame: dict[str, Any] = {}
    for name in names:
        value = np.asarray(obs[name][slot])
        views = views_of(name, value.shape)
        pictures = [value] if views is None else value
        frame |= dict(zip(features_of(name, views), pictures, strict=True))
    return frame
