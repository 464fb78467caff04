"""The EnvPool adapter.

EnvPool 1.2.5 has all 50 tasks of MetaWorld. Compared with the Python ones (MetaWorld 3.1.1 on
MuJoCo 3.3.0), from the same initial state and with the same actions:

- Initial observations agree to 1e-15. Until something is touched, observations and rewards agree to
  about 1e-9; after that they drift apart (1e-4 to 1e-2), since EnvPool has MuJoCo 3.6.0 inside. The
  scripted experts solve the tasks at the same step, give or take one or two. Rewards are float32.
- Goals cannot be chosen: each env draws its own from a seed that is fixed when it is made. So there
  are no trials, no fixed, ordered or specific reset states, and other goals than in Python. Members
  of a group have the same seed, so their n-th episodes begin alike.
- So episodes of an evaluation cannot be fixed: as `env.eval` use `metaworld` or `gymnasium`.
- There is no way to save the state of a simulation: a resumed run begins new episodes, with other
  seeds than the run began with.
- An env begins anew by itself in the step after it ended; `ignore_terminations` is refused where
  envs terminate (MetaWorld's never do).
- The goal is in the observation here, as in the MT benchmarks; EnvPool's own default hides it.

With one thread it is about as fast as the `metaworld` env; with more, one process uses many cores.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np

from rlinf.config.suggest import near
from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.base import VectorEnv
from rlinf.envs.errors import EnvError, MissingSimulator
from rlinf.envs.metaworld.tasks import DESCRIPTIONS
from rlinf.envs.options import map_option, option
from rlinf.envs.reset_plan import ResetPlan
from rlinf.envs.starts import Start
from rlinf.envs.step_result import ObsSpec, StepResult

_SUCCESS_KEYS = ("success", "is_success")


class EnvPoolEnv(VectorEnv):
    """Slots of one EnvPool task."""

    env_type = "envpool"
    chooses_starts = False

    def __init__(
        self,
        cfg: Any,
        num_envs: int,
        seed_offset: int = 0,
        total_num_processes: int = 1,
        worker_info: Any = None,
    ) -> None:
        """Make the pool; see the base class."""
        self._place = (seed_offset, total_num_processes)
        super().__init__(cfg, num_envs, seed_offset, total_num_processes, worker_info)

    def _open(self) -> None:
        options = self.options
        for name, given in (
            ("use_fixed_reset_state_ids", options.fixed_reset_ids),
            ("use_ordered_reset_state_ids", options.ordered_reset_ids),
            ("specific_reset_id", options.specific_reset_id is not None),
        ):
            if given:
                raise ValueError(
                    f"{name} does not work with EnvPool: its envs draw their initial states "
                    "themselves; use env_type metaworld or gymnasium"
                )
        try:
            import envpool
        except ImportError as error:
            raise MissingSimulator(
                f"EnvPool cannot be imported ({error}): pip install 'envpool>=1.2.5' (it needs "
                "Python 3.11 or newer), or use env_type metaworld or gymnasium"
            ) from error
        self._id = _pool_id(str(option(self.cfg, "id", "")), envpool.list_all_envs())
        kwargs = map_option(self.cfg, "init_params")
        if self._id.startswith("MetaWorld/"):
            kwargs.setdefault("partially_observable", False)
        if options.max_episode_steps:
            kwargs["max_episode_steps"] = options.max_episode_steps
        threads = option(self.cfg, "num_threads")
        if threads:
            kwargs["num_threads"] = threads
        self._make_pool = partial(
            envpool.make_gymnasium, self._id, num_envs=self.num_envs, **kwargs
        )
        self._seed_pool(ResetPlan(options, self.num_envs, *self._place, None))
        space = self._pool.observation_space
        self._keys = list(space.spaces) if hasattr(space, "spaces") else []
        parts = [space[key] for key in self._keys] or [space]
        self._size = sum(int(np.prod(part.shape)) for part in parts)

    def _seed_pool(self, plan: ResetPlan) -> None:
        # EnvPool's seeds are signed.
        seeds = [plan.next(slot).seed % 2**31 for slot in range(self.num_envs)]
        self._pool = self._make_pool(seed=seeds)

    def _renew(self) -> None:
        self._pool.close()
        self._seed_pool(self._plan)

    @cached_property
    def obs_spec(self) -> dict[str, ObsSpec]:
        """All numbers of the observation, joined."""
        return {"states": ObsSpec((self._size,))}

    @cached_property
    def action_spec(self) -> ActionSpec:
        """As the pool says."""
        space = self._pool.action_space
        if hasattr(space, "n"):
            return ActionSpec.choice(int(space.n))
        return ActionSpec.box(space.low, space.high)

    @property
    def default_max_episode_steps(self) -> int | None:
        """The pool's own limit."""
        return int(self._pool.config["max_episode_steps"])

    @property
    def num_reset_states(self) -> None:
        """Reset states cannot be chosen."""
        return None

    def _reset_slots(self, slots: list[int], starts: list[Start], obs: dict) -> None:
        raw, info = self._pool.reset(np.array(slots, dtype=np.int32))
        obs["states"][info["env_id"]] = self._join(raw)

    def _step_slots(
        self, slots: list[int], actions: np.ndarray, obs: dict, result: StepResult
    ) -> list[int]:
        space = self._pool.action_space
        if hasattr(space, "n"):
            rows = actions[slots, 0].astype(np.int32)
        else:
            rows = np.ascontiguousarray(actions[slots], dtype=space.dtype)
        raw, reward, terminated, truncated, info = self._pool.step(
            rows, np.array(slots, dtype=np.int32)
        )
        done = info["env_id"]
        if self.options.ignore_terminations and terminated.any():
            raise EnvError(
                f"{self._id} terminated an episode, and EnvPool then begins a new one by itself: "
                "ignore_terminations does not work with it; use env_type gymnasium"
            )
        obs["states"][done] = self._join(raw)
        result.reward[done] = reward
        key = next((key for key in _SUCCESS_KEYS if key in info), None)
        self.reports_success = key is not None
        success = info[key] > 0 if key else np.zeros(len(slots), bool)
        result.mark_all(done, terminated, truncated, success)
        return []

    def close(self) -> None:
        """Stop the threads of the pool."""
        self._pool.close()

    def _join(self, raw: Any) -> np.ndarray:
        if not self._keys:
            return np.asarray(raw).reshape(len(raw), -1)
        return np.concatenate([raw[key].reshape(len(raw[key]), -1) for key in self._keys], axis=1)

    def _describe(self, slot: int) -> str:
        return next(
            (text for name, text in DESCRIPTIONS.items() if _camel(name) == self._id), self._id
        )


def _camel(task: str) -> str:
    name, _, version = task.rpartition("-")
    return "MetaWorld/" + "".join(part.capitalize() for part in name.split("-")) + f"-{version}"


def _pool_id(name: str, known: list[str]) -> str:
    if name in DESCRIPTIONS:
        return _camel(name)
    if name in known:
        return name
    close = near(name, [*known, *DESCRIPTIONS], 5)
    hint = f"near ones: {', '.join(close)}" if close else "envpool.list_all_envs() has all"
    raise ValueError(f"EnvPool has no task '{name}'; {hint}")
