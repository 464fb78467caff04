"""Vector envs made of one simulator object per slot, and how they survive failures."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.envs.base import VectorEnv
from rlinf.envs.errors import EnvError, StateNotSupported
from rlinf.envs.starts import NEVER, Start
from rlinf.envs.step_result import StepResult

SlotObs = np.ndarray | dict[str, np.ndarray]
"""One slot's observation: the state vector `[S]`, or arrays by key."""


class SlotVectorEnv(VectorEnv):
    """A vector env whose adapter handles one slot at a time.

    An adapter implements `make_slot`, `reset_slot`, `step_slot`, and where it applies `render_slot`
    and `close_slot`, besides the properties of `Adapter`.

    The state of a simulator is saved as the actions since its reset, and restored by making them
    again: exact for every env that a seed determines. If that leads to other observations, the
    episodes are given up. Adapters that can do better override `get_slot_state` and
    `set_slot_state` and set `replays` to False. Those that can do neither, such as robots, only set
    `replays` to False: resumed runs begin new episodes in them.

    Attributes:
        replays: Saves and restores by repeating actions.
    """

    replays: bool = True

    @abc.abstractmethod
    def make_slot(self, slot: int) -> None:
        """Make the simulator of a slot, in the place of an old one if there is one."""

    @abc.abstractmethod
    def reset_slot(self, slot: int, start: Start) -> SlotObs:
        """Begin the episode that `start` determines and return its first observation."""

    @abc.abstractmethod
    def step_slot(self, slot: int, action: np.ndarray) -> tuple[SlotObs, float, bool, bool, bool]:
        """Make a step with the action `[A]`.

        Returns:
            Observation, reward, terminated, truncated (by the simulator; the step limit is not its
            business) and success (the task is solved now).
        """

    def render_slot(self, slot: int) -> np.ndarray:
        """Return a picture of a slot for people, uint8 `[H, W, 3]`."""
        raise EnvError(f"{self.options.env_type} has no pictures of its slots")

    def close_slot(self, slot: int) -> None:
        """Free the simulator of a slot."""

    def get_slot_state(self, slot: int) -> Any:
        """Return the state of a simulator; used when `replays` is False."""
        raise StateNotSupported(f"{self.options.env_type} cannot save the state of its simulators")

    def set_slot_state(self, slot: int, state: Any) -> None:
        """Go on from such a state; used when `replays` is False."""
        raise StateNotSupported(f"{self.options.env_type} cannot set the state of its simulators")

    def _open(self) -> None:
        # Actions of all slots since the oldest episode began, and where each episode begins in it.
        self._history: list[np.ndarray] = []
        self._history_begin = [0] * self.num_envs
        for slot in range(self.num_envs):
            self.make_slot(slot)

    def _reset_slots(self, slots: list[int], starts: list[Start], obs: dict) -> None:
        for slot, start in zip(slots, starts, strict=True):
            while True:
                try:
                    self._write(obs, slot, self.reset_slot(slot, start))
                    break
                except Exception as error:
                    self._remake(slot, 0, error)
            self._history_begin[slot] = len(self._history)
        self._trim_history()

    def _step_slots(
        self, slots: list[int], actions: np.ndarray, obs: dict, result: StepResult
    ) -> list[int]:
        failed: list[int] = []
        step_slot, reward, states = self.step_slot, result.reward, obs.get("states")
        only_states = states is not None and len(obs) == 1
        if self.replays:
            self._history.append(actions.copy())
        for slot in slots:
            try:
                row, reward[slot], terminated, truncated, success = step_slot(slot, actions[slot])
                if only_states:
                    states[slot] = row
                else:
                    self._write(obs, slot, row)
            except Exception as error:
                self._remake(slot, int(self._totals.length[slot]) + 1, error)
                failed.append(slot)
            else:
                if terminated or truncated or success:
                    result.mark(slot, terminated, truncated, success)
        return failed

    def _write(self, obs: dict, slot: int, content: SlotObs) -> None:
        if isinstance(content, dict):
            for key, array in obs.items():
                array[slot] = content[key]
        elif "states" in obs:
            if content.shape != obs["states"].shape[1:]:
                raise ValueError(
                    f"the observation has shape {list(content.shape)} where "
                    f"{list(obs['states'].shape[1:])} was announced"
                )
            obs["states"][slot] = content

    def _remake(self, slot: int, step: int, error: Exception) -> None:
        """Make a failed slot anew, or raise if that happened too often."""
        if self._restarts >= self.options.max_restarts:
            hint = (
                f"max_restarts {self.options.max_restarts} is used up"
                if self.options.max_restarts
                else "max_restarts: N would make the slot anew up to N times"
            )
            reason = f"{type(error).__name__}: {error}"
            raise self._error(slot, step, reason, hint) from error
        self._restarts += 1
        self.make_slot(slot)

    def _trim_history(self) -> None:
        oldest = min(self._history_begin)
        if oldest > 512:
            del self._history[:oldest]
            self._history_begin = [begin - oldest for begin in self._history_begin]

    def _get_sim_state(self) -> list[Any]:
        if not self.replays:
            return [self.get_slot_state(slot) for slot in range(self.num_envs)]
        state = []
        for slot, begin in enumerate(self._history_begin):
            rows = self._history[begin : begin + int(self._totals.length[slot])]
            none = np.zeros((0, self.action_spec.dim), self.action_spec.dtype)
            state.append(np.array([row[slot] for row in rows]) if rows else none)
        return state

    def _set_sim_state(self, state: list[Any]) -> None:
        if not self.replays:
            for slot, content in enumerate(state):
                self.set_slot_state(slot, content)
            return
        length = max(len(actions) for actions in state)
        shape = (self.num_envs, self.action_spec.dim)
        dtype = np.result_type(*(actions.dtype for actions in state))
        self._history = [np.zeros(shape, dtype) for _ in range(length)]
        # What comes next is appended, so all episodes so far have to end at the end.
        self._history_begin = [length - len(actions) for actions in state]
        repeated = {key: array.copy() for key, array in self._obs.items()}
        for slot, actions in enumerate(state):
            if self._starts[slot] == NEVER:
                continue
            obs = self.reset_slot(slot, self._starts[slot])
            for row, action in zip(self._history[length - len(actions) :], actions, strict=True):
                row[slot] = action
                obs, *_ = self.step_slot(slot, row[slot])
            if self._live[slot]:
                self._write(repeated, slot, obs)
        self._check_repeated(repeated)

    def _check_repeated(self, repeated: dict[str, np.ndarray]) -> None:
        """Compare the observations that repeated actions led to with those that were saved."""
        for key, array in repeated.items():
            differs = [
                slot for slot, row in enumerate(array) if (row != self._obs[key][slot]).any()
            ]
            if differs:
                raise StateNotSupported(
                    f"{self.options.env_type} does not do the same when actions are repeated "
                    f"('{key}' differs in slots {differs})"
                )

    def capture_image(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """Render slots for people; see the base class."""
        slots = range(self.num_envs) if slots is None else slots
        return np.stack([self.render_slot(slot) for slot in slots])

    def close(self) -> None:
        """Free the simulators; may be called twice."""
        for slot in range(self.num_envs):
            self.close_slot(slot)
