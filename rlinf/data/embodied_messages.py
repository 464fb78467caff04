"""What env and rollout workers say to each other: names of messages, and the form of observations.

A message of observations is a dict, batch first, so that it can be shared out by env:

- `obs`: by name, tensors `[B, ...]` (states, pictures of any number of cameras, whatever else an
  env observes) and texts, lists of B strings.
- `done` and `final`, where episodes ended: bool `[B]`, and for those m envs alone the observations
  in which they did, `[m, ...]`.
- `early`, where plans are made ahead of time: what they are made from, as `obs`, which is what is
  observed when their own actions begin.
- `begins`, with the first observations of an epoch of a rollout: bool `[B]`, which of them are the
  first of an episode. Later on, these are those of `done`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.scheduler.worker.routing import merge_batches, split_batch

OBSERVATIONS = "obs"
"""Tag of observations, from env to rollout."""
ACTIONS = "actions"
"""Tag of actions `[B, C, A]`, from rollout to env."""
NO_ACTIONS = (0, 1)
"""Shape `[C, A]` of actions that say: the rollout ends here, before its last chunk."""
ENV_TRAJECTORY = "env trajectory"
"""Tag of an `EnvTrajectory`, from env to actor; with a reward model, by way of reward workers."""
POLICY_TRAJECTORY = "policy trajectory"
"""Tag of a `PolicyTrajectory`, from rollout to actor."""
EVALUATION = "eval"
"""Route of observations and actions of an evaluation; that of training is the pipeline stage."""
BEGINS = "begins"
"""In messages: whether an observation is the first of an episode, bool `[B]`."""
EARLY = "early"
"""In messages of a rollout: earlier observations, from which plans are made, as `obs`."""
EPISODES = "episodes"
"""In messages of an evaluation: number of the episode of each env, -1 for none, int64 `[B]`."""
OVER = "over"
"""In messages of an evaluation: whether its worker has no episode left, bool `[B]`."""

Obs = dict[str, Any]


def pack_observations(
    obs: Mapping[str, Any],
    infos: Mapping[str, Any] | None = None,
    begins: Tensor | None = None,
    early: Mapping[str, Any] | None = None,
) -> Obs:
    """Make a message of observations.

    Args:
        obs: as a vector env returns them.
        infos: of the chunk that led to them; None at the beginning.
        begins: which of them are the first of an episode, bool `[B]`; None leaves that to `infos`.
        early: what plans are made from; None is `obs`.
    """
    message: Obs = {"obs": _without_empty_texts(obs)}
    if begins is not None:
        message[BEGINS] = begins
    if early is not None:
        message[EARLY] = _without_empty_texts(early)
    if infos is not None and "final_observation" in infos:
        ended = infos["_final_observation"]
        final = _without_empty_texts(infos["final_observation"])
        message["final"] = select_rows(final, ended.nonzero().squeeze(1))
        message["done"] = ended
    return message


def split_observations(message: Obs, sizes: Sequence[int]) -> list[Obs]:
    """Cut a message into those of so many envs each."""
    parts = split_batch({key: value for key, value in message.items() if key != "final"}, sizes)
    if "final" in message:
        ended = [int(part["done"].sum()) for part in parts]
        for part, final in zip(parts, split_batch(message["final"], ended), strict=True):
            part["final"] = final
    return parts


def merge_observations(parts: Sequence[Obs]) -> Obs:
    """Join messages of several env workers, of which only some may have ended episodes."""
    if any("done" in part for part in parts):
        parts = [part if "done" in part else _without_ends(part) for part in parts]
    return merge_batches(parts)


def tensors_of(obs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return those observations that are tensors."""
    return {key: value for key, value in obs.items() if isinstance(value, Tensor)}


def select_rows(obs: Mapping[str, Any], rows: Tensor) -> Obs:
    """Return the observations of some envs.

    Args:
        obs: of all.
        rows: which, int64 `[m]`.
    """
    numbers = rows.tolist()
    return {
        key: value[rows] if isinstance(value, Tensor) else [value[row] for row in numbers]
        for key, value in obs.items()
    }


def _without_empty_texts(obs: Mapping[str, Any]) -> Obs:
    return {
        key: value for key, value in obs.items() if isinstance(value, Tensor) or any(value or ())
    }


def _without_ends(part: Obs) -> Obs:
    count = len(next(iter(part["obs"].values())))
    none = torch.zeros(0, dtype=torch.long)
    done = torch.zeros(count, dtype=torch.bool)
    return {**part, "final": select_rows(part["obs"], none), "done": done}
