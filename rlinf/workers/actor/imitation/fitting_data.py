"""Reads of datasets what a policy looks at, and sees to it that they fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.data.demonstrations.load import DemonstrationFolders, Demonstrations
from rlinf.models.deferred import deferred_of
from rlinf.models.embodiment.base_policy import BasePolicy, ForwardType


def demonstrations_for(model: nn.Module, section: Any) -> Demonstrations:
    """Read the episodes that a config names; pictures only if the policy looks at them.

    Args:
        model: the policy; one that was built without weights has `replay_inputs`.
        section: the `data` section.

    Raises:
        ValueError: the policy cannot be trained on given actions, or the data do not fit it.
    """
    if ForwardType.SFT not in getattr(model, "forward_types", ()):
        raise ValueError(
            f"{type(model).__name__} cannot be trained on given actions: it has no forward type "
            "'sft'; use mlp_policy or cnn_policy, or give it a method sft_forward"
        )
    folders = DemonstrationFolders(
        section.train_data_paths, section.observations, section.max_episodes
    )

    def look(obs: Mapping[str, Any], actions: Tensor) -> None:
        if deferred_of(model) is not None:
            # There are no weights yet that it could be run with.
            model.replay_inputs(obs)
            return
        # Augmentations would read pictures, and hand on copies whose readers nobody sees.
        model(forward_type=ForwardType.SFT, observations=obs, actions=actions, augment=False)

    demos = folders.load(used_observations(model, folders, look), section.only_success)
    if model.action_range.choices is not None and share_out_of_range(model, demos.actions):
        low, high = model.action_range.low, model.action_range.high
        raise ValueError(
            f"the choices of the data are {demos.actions.amin(0).tolist()} to "
            f"{demos.actions.amax(0).tolist()}, and the env takes {_whole(low)} to {_whole(high)}: "
            "the data are not of the env of this config"
        )
    return demos


def share_out_of_range(model: BasePolicy, actions: Tensor) -> float:
    """Return the share of actions with a number outside of the policy's range.

    Args:
        model: the policy.
        actions: `[N, A]`.
    """
    own = model.action_range
    if own.low is None:
        return 0.0
    low, high = (torch.tensor(bound, dtype=torch.float32) for bound in (own.low, own.high))
    # Bounds in float32 may differ from those that data were clipped to by their last bit.
    wide = 1e-4 * (high - low).nan_to_num(posinf=0.0)
    outside = (actions < low - wide) | (actions > high + wide)
    return float(outside.any(-1).float().mean())


class _Noted(dict[str, Any]):
    """Remembers which of its keys were read."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.read: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        self.read[key] = None
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return what is there, and remember that."""
        return self[key] if key in self else default


@torch.no_grad()
def used_observations(
    model: BasePolicy,
    folders: DemonstrationFolders,
    look: Callable[[Mapping[str, Any], Tensor], Any],
) -> list[str]:
    """Return the names of the observations that a policy looks at: only those are read.

    Args:
        model: the policy.
        folders: the data.
        look: lets the policy look at observations `[n, ...]` and actions `[n, H, A]`.

    Raises:
        ValueError: the actions of the data are not those of the policy.
    """
    obs, action = folders.first_frame()
    if action.shape[1] != model.action_dim:
        raise ValueError(
            f"the data have actions of {action.shape[1]} numbers and the policy of "
            f"{model.action_dim}: they are not of the env of this config"
        )
    if action.is_floating_point() != model.action_dtype.is_floating_point:
        kinds = ("choices", "real numbers")
        raise ValueError(
            f"the actions of the data are {kinds[action.is_floating_point()]}, and those of the "
            f"env of this config are {kinds[model.action_dtype.is_floating_point]}"
        )
    noted = _Noted(obs)
    if model.action_range.choices is not None:
        # Those of the data are looked at later.
        action = torch.tensor(model.action_range.low).long().expand_as(action)
    chunks = action[:, None].expand(-1, model.action_horizon, -1)
    look(noted, chunks)
    return list(noted.read)


def _whole(bound: tuple[float, ...]) -> list[int]:
    return [int(number) for number in bound]
