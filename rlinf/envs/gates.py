"""Gates: when an expert takes over from a policy that acts, by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf.config.signatures import Call
from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.experts import Expert
from rlinf.envs.target_table import TargetTable

_CONSTRUCTOR = Call(("cfg", "action_spec"), ("expert",))
_METHODS = {"takes_over": Call(("obs", "own", "label", "active"))}


class Gate(ABC):
    """Decides, step by step, in which envs the expert acts.

    Args:
        cfg: `algorithm.dagger`.
        action_spec: The actions that the env takes.
        expert: Who takes over.
    """

    def __init__(self, cfg: Any, action_spec: ActionSpec, *, expert: Expert) -> None:
        self.cfg, self.action_spec, self.expert = cfg, action_spec, expert

    @abstractmethod
    def takes_over(
        self, obs: dict[str, Any], own: np.ndarray, label: np.ndarray, active: np.ndarray
    ) -> np.ndarray:
        """Return where the expert acts now, bool `[B]`.

        Args:
            obs: Observations of all envs.
            own: The policy's actions, `[B, A]`.
            label: The expert's actions, `[B, A]`.
            active: Where it acted in the step before, bool `[B]`; false where an episode begins.
        """


class DeviationGate(Gate):
    """Takes over where the policy is far from the expert, until it is near again."""

    def __init__(self, cfg: Any, action_spec: ActionSpec, *, expert: Expert) -> None:
        super().__init__(cfg, action_spec, expert=expert)
        bounded = np.isfinite(action_spec.low) & np.isfinite(action_spec.high)
        radius = np.where(bounded, (action_spec.high - action_spec.low) / 2, 1.0)
        # A choice is another one or it is not.
        self._scale = np.ones_like(radius) if action_spec.choices is not None else radius

    def takes_over(
        self, obs: dict[str, Any], own: np.ndarray, label: np.ndarray, active: np.ndarray
    ) -> np.ndarray:
        """See `Gate.takes_over`."""
        far = (np.abs(own - label) / self._scale).max(-1)
        return np.where(active, far >= self.cfg.gate_release, far > self.cfg.gate_threshold)


class ExpertGate(Gate):
    """Lets the expert decide: a person takes over by touching the device."""

    def takes_over(
        self, obs: dict[str, Any], own: np.ndarray, label: np.ndarray, active: np.ndarray
    ) -> np.ndarray:
        """See `Gate.takes_over`."""
        return np.array([self.expert.wants_to_act(slot) for slot in range(len(own))])


_gates = TargetTable(
    "gate", {("", "deviation"): DeviationGate, ("", "expert"): ExpertGate}, _CONSTRUCTOR, _METHODS
)


def register_gate(
    name: str, target: Any = None, *, replaces: bool = False
) -> Callable[[Any], Any] | None:
    """Register a gate, as a call or as a decorator.

    Args:
        name: What the user writes as `algorithm.dagger.gate`; case does not matter.
        target: A `Gate` class, or a function that is called like one. None to use as a decorator.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator if `target` is None.

    Raises:
        ValueError: The name is taken, or the gate cannot be called as gates are.
    """
    return _gates.register(name, target, replaces=replaces)


def make_gate(name: str, cfg: Any, action_spec: ActionSpec, *, expert: Expert) -> Gate:
    """Make the gate of a name.

    Args:
        name: As registered.
        cfg: `algorithm.dagger`.
        action_spec: The actions that the env takes.
        expert: Who takes over.

    Raises:
        ValueError: There is no such gate; the message says which there are.
    """
    return _gates.lookup(name)(cfg, action_spec, expert=expert)
