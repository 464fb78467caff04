"""A person at a device, such as a joystick or a leader arm, as an expert.

What a device is, is up to whoever has one: `Device` is all that is asked of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.experts import Expert


@dataclass(frozen=True)
class DeviceReading:
    """What a person does at one moment.

    Attributes:
        action: `[A]` in the units of the env; None while nobody touches the device.
        discard: The episode that runs is not to be kept.
    """

    action: np.ndarray | None = None
    discard: bool = False


class Device(ABC):
    """Something that a person moves; one person, one env."""

    @abstractmethod
    def read(self) -> DeviceReading:
        """Return what the person does now, without waiting."""

    def begin(self, episode: int) -> None:  # noqa: B027
        """Take note that an episode begins, for instance by telling the person."""

    def close(self) -> None:  # noqa: B027
        """Let go of the device."""


class DeviceExpert(Expert):
    """Acts as a person does; where nobody touches the device, it holds still.

    Register it with a device of your own::

        register_expert("joystick", device_expert(MyJoystick))

    Args:
        device: The device.
        cfg: As for `Expert`.
        action_spec: As for `Expert`.
        num_envs: 1: a person moves one env.
        seed: As for `Expert`.

    Raises:
        ValueError: There are several envs.
    """

    realtime = True

    def __init__(
        self,
        device: Device,
        cfg: Any,
        action_spec: ActionSpec,
        *,
        num_envs: int = 1,
        seed: int = 0,
    ) -> None:
        if num_envs != 1:
            raise ValueError(
                f"a device moves one env, and there are {num_envs}; set collect.num_envs to 1"
            )
        super().__init__(cfg, action_spec, num_envs=num_envs, seed=seed)
        self.device = device
        self._discards = self._touched = False

    def begin(self, slots: Sequence[int], episodes: Sequence[int]) -> None:
        """Tell the device."""
        self._discards = False
        for episode in episodes:
            self.device.begin(episode)

    def act(self, obs: dict[str, Any], slots: Sequence[int]) -> np.ndarray:
        """See `Expert.act`.

        Raises:
            ValueError: The device gave an action of another size.
        """
        reading, dim = self.device.read(), self.action_spec.dim
        self._discards |= reading.discard
        self._touched = reading.action is not None
        if reading.action is None:
            return np.tile(self._still(), (len(slots), 1))
        action = np.asarray(reading.action).reshape(-1)
        if action.shape != (dim,):
            raise ValueError(
                f"{type(self.device).__name__} gave an action of {action.size} numbers; the env "
                f"takes {dim}"
            )
        return np.tile(action, (len(slots), 1))

    def wants_to_act(self, slot: int) -> bool:
        """See `Expert.wants_to_act`: while the person touches the device."""
        return self._touched

    def discards(self, slot: int) -> bool:
        """See `Expert.discards`: what the person said during the episode."""
        return self._discards

    def close(self) -> None:
        """Let go of the device."""
        self.device.close()

    def _still(self) -> np.ndarray:
        """Return the action that is nearest to none: 0, or the bound next to it."""
        spec = self.action_spec
        return np.clip(np.zeros(spec.dim), spec.low, spec.high).astype(spec.dtype)


def device_expert(make_device: Callable[[], Device]) -> Callable[..., DeviceExpert]:
    """Return what makes an expert of a device, for `register_expert`.

    Args:
        make_device: Opens the device.
    """

    def make(
        cfg: Any, action_spec: ActionSpec, *, num_envs: int = 1, seed: int = 0
    ) -> DeviceExpert:
        return DeviceExpert(make_device(), cfg, action_spec, num_envs=num_envs, seed=seed)

    make.realtime = True
    return make
