"""What of a vector env has to be kept to go on from where it was, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf.envs.errors import StateNotSupported
from rlinf.envs.reset_plan import Start

if TYPE_CHECKING:
    from rlinf.envs.base import VectorEnv


class SavedState:
    """The part of a vector env that saves and restores it.

    Reset plan, totals, observations and counts are plain arrays; the state of the simulators is the
    adapter's business. Evaluations are not saved: their episodes can be played again.
    """

    def get_state(self: VectorEnv) -> dict[str, Any]:
        """Return everything needed to go on from here, in plain data and arrays.

        If the simulator cannot save its state, `sim` is None and `not_saved` says why; else
        `not_saved` is empty.
        """
        sim, not_saved = None, ""
        try:
            sim = self._get_sim_state()
        except StateNotSupported as error:
            not_saved = str(error)
        return {
            "env_type": self.options.env_type,
            "num_envs": self.num_envs,
            "plan": self._plan.get_state(),
            "totals": self._totals.get_state(),
            "live": self._live.copy(),
            "starts": [tuple(start) for start in self._starts],
            "obs": {key: array.copy() for key, array in self._obs.items()},
            "images": {key: array.copy() for key, array in self._images.items()},
            "descriptions": list(self._descriptions),
            "is_start": self.is_start,
            "counts": (self._restarts, self._nan_skipped),
            "sim": sim,
            "not_saved": not_saved,
        }

    def set_state(self: VectorEnv, state: dict[str, Any]) -> str:
        """Go on from a state that `get_state` returned, here or in another process.

        Args:
            state: The state.

        Returns:
            Why the episodes cannot go on; empty if they do. If they cannot, the env has to be
            reset; each slot then begins the episode after the one that was lost.

        Raises:
            ValueError: It is of another env or another number of slots.
        """
        for name, own in (("env_type", self.options.env_type), ("num_envs", self.num_envs)):
            if state[name] != own:
                raise ValueError(f"the saved state has {name} {state[name]}, this env has {own}")
        self._queue = None
        self._plan.set_state(state["plan"])
        self._totals.set_state(state["totals"])
        self._live = np.array(state["live"])
        self._solved = True
        self._find_live()
        self._starts = [Start(*start) for start in state["starts"]]
        self._obs = {key: array.copy() for key, array in state["obs"].items()}
        self._images = {key: array.copy() for key, array in state["images"].items()}
        self._descriptions = list(state["descriptions"])
        self.is_start = state["is_start"]
        self._restarts, self._nan_skipped = state["counts"]
        self._redo.clear()
        reason = state["not_saved"]
        if not reason:
            try:
                self._set_sim_state(state["sim"])
            except StateNotSupported as error:
                reason = str(error)
        if reason:
            self.is_start = True
            self._live[:] = False
            self._find_live()
            self._renew()
        return reason
