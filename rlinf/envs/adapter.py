"""What an adapter of a simulator has to say; `VectorEnv` does the rest."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np

from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.errors import EnvError, StateNotSupported
from rlinf.envs.options import VectorEnvOptions, option
from rlinf.envs.starts import Start
from rlinf.envs.step_result import ObsSpec, StepResult


class Adapter(abc.ABC):
    """The part of a vector env that knows its simulator.

    Simulators that hold one environment per object are easier to adapt through
    `rlinf.envs.slots.SlotVectorEnv`, which asks for less.

    Attributes:
        env_type: Name in messages when the config has none.
        chooses_starts: A slot can be made to begin the episode that a `Start` says.
        opens_quickly: One slot can be made in a second or so, without a GPU or a server; then
            `rlinf check` makes one to ask it for its sizes.
        rendered_keys: Keys of the observation that `_draw_images` writes, where a policy looks;
            the others are written in every step.
        cfg: `env.train` or `env.eval`.
        options: The keys of it that all envs share.
        num_envs: Slots here, `B`.
    """

    env_type: ClassVar[str] = "env"
    chooses_starts: ClassVar[bool] = True
    opens_quickly: ClassVar[bool] = False
    rendered_keys: frozenset[str] = frozenset()
    cfg: Any
    options: VectorEnvOptions
    num_envs: int

    @property
    @abc.abstractmethod
    def obs_spec(self) -> dict[str, ObsSpec]:
        """Shape and dtype of one slot's observation by key."""

    @property
    @abc.abstractmethod
    def action_spec(self) -> ActionSpec:
        """The actions it takes."""

    @property
    def default_max_episode_steps(self) -> int | None:
        """Step limit when the config names none."""
        return None

    @property
    def num_reset_states(self) -> int | None:
        """Number of initial states, numbered from 0; None when a seed is all there is."""
        return option(self.cfg, "num_reset_states")

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks that it has, for reports; one unless the adapter says otherwise."""
        return [str(option(self.cfg, "id", self.options.env_type))]

    @property
    def instructions(self) -> list[str]:
        """Texts of the tasks, in their order; empty if they are not known beforehand."""
        return []

    def task_states(self, task: int) -> Sequence[int]:
        """Return the reset states of a task; asked only where there is a list of them."""
        return range(self.num_reset_states or 0)

    def start_list(self, evaluation: bool) -> Hashable | None:
        """Return what identifies the list of states in which episodes begin.

        Args:
            evaluation: Of an evaluation; else of training.

        Returns:
            None if seeds make the states, as an evaluation has other seeds than training. Where it
            is the same for both, an evaluation begins as training does.
        """
        return None

    @abc.abstractmethod
    def _open(self) -> None:
        """Make the simulators; `cfg`, `options` and `num_envs` are set."""

    @abc.abstractmethod
    def _reset_slots(self, slots: list[int], starts: list[Start], obs: dict) -> None:
        """Begin episodes and write their first observations into the rows of `obs`."""

    @abc.abstractmethod
    def _step_slots(
        self, slots: list[int], actions: np.ndarray, obs: dict, result: StepResult
    ) -> list[int]:
        """Step slots and write into their rows of `obs` and `result`.

        Args:
            slots: Live slots, in order.
            actions: `[B, A]`, numbers, or for choices int64.
            obs: Arrays to write, by key.
            result: Rewards and flags to write.

        Returns:
            Slots whose simulator failed and was made anew; their episodes are dropped.
        """

    def _draw_images(self, slots: Sequence[int], images: dict) -> None:  # noqa: B027
        """Write the rows of `rendered_keys`."""

    def expert_obs(self, obs: dict[str, Any]) -> dict[str, Any]:
        """Return the present observations as scripted experts see them: with nothing hidden.

        Args:
            obs: What the policy sees.
        """
        return obs

    def _describe(self, slot: int) -> str:
        """Say in words what is to be done in a slot."""
        return ""

    def _diverged(self, slot: int) -> str:
        """Say what the physics of an episode that ended did wrong; empty if nothing."""
        return ""

    def _get_sim_state(self) -> Any:
        """Return the state of all simulators, in plain data and arrays.

        Raises:
            StateNotSupported: The simulator cannot save it. Checkpoints hold all the rest, and a
                resumed run begins new episodes.
        """
        raise StateNotSupported(f"{self.options.env_type} cannot save the state of its simulator")

    def _set_sim_state(self, state: Any) -> None:
        """Go on from such a state; everything else of the vector env is restored already.

        Raises:
            StateNotSupported: The simulator cannot go back to it; new episodes begin.
        """
        raise StateNotSupported(f"{self.options.env_type} cannot set the state of its simulator")

    def _renew(self) -> None:  # noqa: B027
        """Prepare for new episodes where a state was restored without that of the simulator.

        Needed only where the simulator draws its starts itself, so that they are not those that
        the run began with.
        """

    def capture_image(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """Render slots for people.

        Args:
            slots: Which; all by default.

        Returns:
            uint8 `[len(slots), H, W, 3]`.

        Raises:
            EnvError: The env has no pictures.
        """
        raise EnvError(f"{self.options.env_type} has no pictures of its slots")

    def offload(self) -> None:  # noqa: B027
        """Give up device memory until `onload`; on CPU there is none."""

    def onload(self) -> None:  # noqa: B027
        """Take back what `offload` gave up."""

    def close(self) -> None:  # noqa: B027
        """Free the simulators; may be called twice."""
