"""What observations of envs are called in LeRobot datasets, and the other way round."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rlinf.config.suggest import did_you_mean
from rlinf.data.lerobot.errors import DatasetError

PREFIX = "observation."
VIEWS = "extra_view_images"
"""The observation whose pictures, `[V, H, W, 3]`, are a feature each."""

_VIEW = "observation.images.extra_view_"
_OF_ENV = {
    "states": "observation.state",
    "main_images": "observation.images.main",
    "wrist_images": "observation.images.wrist",
}
"""Names that both sides have from elsewhere; others only get the prefix."""
_OF_FEATURE = {feature: name for name, feature in _OF_ENV.items()} | {"observation": "states"}


def features_of(name: str, views: int = 1) -> list[str]:
    """Return the features that hold an observation of an env, such as `states`.

    Args:
        name: Of the observation.
        views: Pictures of it, where it is that of further cameras.
    """
    if name == VIEWS:
        return [f"{_VIEW}{view}" for view in range(views)]
    return [_OF_ENV.get(name, f"{PREFIX}{name}")]


def observation_of(feature: str) -> str:
    """Return the observation of an env that a feature is, or is a part of."""
    if re.fullmatch(rf"{re.escape(_VIEW)}\d+", feature):
        return VIEWS
    return _OF_FEATURE.get(feature, feature.removeprefix(PREFIX))


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
