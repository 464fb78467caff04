"""What observations of envs are called in LeRobot datasets, and the other way round."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rlinf.config.suggest import did_you_mean
from rlinf.data.lerobot.errors import DatasetError

PREFIX = "observation."

_NUMBERED = {
    "wrist_images": "observation.images.wrist_",
    "extra_view_images": "observation.images.extra_view_",
}
"""Observations of several cameras, `[V, H, W, 3]`: each picture is a feature with a number."""
_OF_ENV = {
    "states": "observation.state",
    "main_images": "observation.images.main",
    "wrist_images": "observation.images.wrist",
}
"""Names that both sides have from elsewhere; others only get the prefix."""
_OF_FEATURE = {feature: name for name, feature in _OF_ENV.items()} | {"observation": "states"}


def views_of(name: str, shape: Sequence[int]) -> int | None:
    """Return how many cameras an observation is of; None if it is no group of cameras.

    Args:
        name: Of the observation.
        shape: Of one env's.
    """
    return int(shape[0]) if name in _NUMBERED and len(shape) == 4 else None


def features_of(name: str, views: int | None = None) -> list[str]:
    """Return the features that hold an observation of an env, such as `states`.

    Args:
        name: Of the observation.
        views: Cameras of it; None if it is no group of them.
    """
    if views is not None:
        return [f"{_NUMBERED[name]}{view}" for view in range(views)]
    return [_OF_ENV.get(name, f"{PREFIX}{name}")]


def observation_of(feature: str) -> str:
    """Return the observation of an env that a feature is, or is a part of."""
    group = group_of(feature)
    return group or _OF_FEATURE.get(feature, feature.removeprefix(PREFIX))


def group_of(feature: str) -> str | None:
    """Return the group of cameras that a feature is one of; None if it is none."""
    for name, stem in _NUMBERED.items():
        if re.fullmatch(rf"{re.escape(stem)}\d+", feature):
            return name
    return None


def observations_in(
    features: Iterable[str], chosen: Mapping[str, str] | None, where: str
) -> dict[str, list[str]]:
    """Return the observations of an env that a dataset holds, and by which features.

    Args:
        features: Names of those that the dataset has.
        chosen: By observation of the env, the feature that holds it; where it says nothing, names
            decide.
        where: The dataset, for the error.

    Raises:
        DatasetError: A feature does not exist, or there are no observations.
    """
    known = list(features)
    taken = set((chosen or {}).values())
    found: dict[str, list[str]] = {}
    for name in known:
        if name.startswith("observation") and name not in taken:
            found.setdefault(observation_of(name), []).append(name)
    for observation, feature in (chosen or {}).items():
        if feature not in known:
            hint = did_you_mean(feature, known)
            raise DatasetError(
                f"{where}: data.observations.{observation} is '{feature}', which is no feature; "
                f"there are {', '.join(known)}. {hint}"
            )
        found[observation] = [feature]
    if not found:
        raise DatasetError(
            f"{where} has no observations: none of its features begins with 'observation'; name "
            f"them in data.observations. There are {', '.join(known)}"
        )
    return {name: sorted(own, key=_order) for name, own in found.items()}


def _order(feature: str) -> tuple[str, int]:
    stem, digits = re.fullmatch(r"(.*?)(\d*)", feature).groups()
    return stem, int(digits or 0)
