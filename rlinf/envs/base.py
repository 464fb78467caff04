"""The vector env: many environments in one process, stepped together, a chunk of actions at a time.

`VectorEnv` owns what all environments have in common; an adapter owns a simulator. Terms:

- A *slot* is one of the `B = num_envs` environments here.
- A slot is *live* while an episode runs in it. A slot whose episode ended inside a chunk rests
  until the chunk ends; without auto-reset it rests until `reset`; with ordered reset states and in
  evaluations it rests for good once there is no episode left for it. A resting slot is not stepped:
  its observation stays, its reward is 0, its flags are false and `infos["_valid"]` is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rlinf.envs.action_utils import (
    ActionConvention,
    ActionSpec,
    policy_spec,
    prepare_actions,
    restore_actions,
)
from rlinf.envs.adapter import Adapter
from rlinf.envs.episodes import EpisodeTotals
from rlinf.envs.errors import EnvError, EnvSlotError, NotFiniteError, StateNotSupported
from rlinf.envs.fixed_episodes import EpisodePlan, EpisodeQueue, FixedEpisode
from rlinf.envs.guard import bad_action, find_not_finite
from rlinf.envs.obs_rows import ObsArrays, ObsRows
from rlinf.envs.options import VectorEnvOptions, option
from rlinf.envs.reset_plan import ResetPlan
from rlinf.envs.starts import NEVER, Start
from rlinf.envs.step_result import StepResult
from rlinf.envs.task_draw import first_weights, make_task_draw
from rlinf.envs.tasks import TaskTable

Obs = dict[str, Any]
"""Observations of all slots: tensors by key, and `task_descriptions`, a list of texts."""


class VectorEnv(Adapter):
    """Environments with one contract, whatever simulates them.

    Observations are dicts of CPU tensors: `states` float32 `[B, S]`, `main_images` uint8
    `[B, H, W, 3]` (and `wrist_images`, `extra_view_images`) where the env has them, and
    `task_descriptions`, a list of `B` texts. Nobody writes into them again: they may be kept.

    Infos of each sub-step hold `success` and `_valid` (bool `[B]`, whether the slot was stepped)
    and, where somebody else than the policy chose an action, `intervene_flag` (bool `[B]`) and
    `intervene_action` (`[B, A]`, what was carried out). Those of the last also hold `restarts` and
    `nan_skipped` (counts so far) and, when episodes ended:

    - `final_observation`: the observations in which they ended; mask `_final_observation`. With
      auto-reset the returned observation is already that of the next episode.
    - `episode`: `success_once`, `success_at_end`, `return`, `episode_len`, `reward` (per step),
      each float32 `[B]`; mask `_episode` (dropped episodes are in the first mask only).
    - `episode_reset_ids`: int64 `[B]`, with which reset state each of them began.
    - `episode_tasks`: int64 `[B]`, the number of the task of each of them.
    - `fixed_episodes`: of numbered episodes, for each slot which it played; None if it rested.

    Termination and truncation exclude each other: an episode that reaches its limit in the step in
    which it terminates has terminated.

    Seeding: see `rlinf.envs.reset_plan`. The same `cfg.seed` gives slot `k` of the whole run the
    same sequence of initial states, however slots are spread over processes and pipeline stages.

    Attributes:
        seed: `cfg.seed + seed_offset`, a label; streams are finer than that.
        max_episode_steps: Step limit of episodes; None for no limit.
        is_start: The next observation has to come from `reset`.
        reports_success: The env tells whether a task is solved; where it does not, success counts
            as false and is not shown.
        worker_info: What the worker passed.
        early: Actions before the end of a chunk when images are rendered, too; 0 for none.
    """

    early: int = 0

    def __init__(
        self,
        cfg: Any,
        num_envs: int,
        seed_offset: int = 0,
        total_num_processes: int = 1,
        worker_info: Any = None,
    ) -> None:
        """Make the simulators.

        Args:
            cfg: `env.train` or `env.eval`.
            num_envs: Slots here; every process and stage has the same number.
            seed_offset: `rank * stages + stage`.
            total_num_processes: `world_size * stages`.
            worker_info: Kept for adapters that need to know where they run.

        Raises:
            ValueError: The config does not fit.
            MissingSimulator: Something has to be installed.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; at least 1 is needed")
        self.cfg, self.num_envs, self.worker_info = cfg, num_envs, worker_info
        self.options = VectorEnvOptions.from_cfg(cfg, self.env_type)
        self.seed = self.options.seed + seed_offset
        self.is_start = True
        self.reports_success = True
        self._open()
        self.max_episode_steps: int | None = (
            self.options.max_episode_steps or self.default_max_episode_steps
        )
        self._limit: int = self.max_episode_steps or int(np.iinfo(np.int64).max)
        self._plan = ResetPlan(
            self.options, num_envs, seed_offset, total_num_processes, self.num_reset_states
        )
        convention = option(cfg, "action_convention")
        self._convention = ActionConvention.from_cfg(convention)
        self._tasks = TaskTable(
            self.task_names, None if self.num_reset_states is None else self.task_states
        )
        self._task_draw = make_task_draw(cfg, self.options, self._tasks, self._plan.num_groups)
        self._plan.draw_tasks(self._task_draw)
        self._totals = EpisodeTotals(num_envs)
        self._result = StepResult(num_envs)
        self._live = np.zeros(num_envs, dtype=bool)
        self._evaluates = False
        self._episodes: EpisodeQueue | None = None
        self._starts = [NEVER] * num_envs
        self._redo: set[int] = set()
        self._restarts = self._nan_skipped = 0
        self._descriptions = [""] * num_envs
        arrays = {
            key: np.zeros((num_envs, *spec.shape), spec.dtype)
            for key, spec in self.obs_spec.items()
        }
        self._images = ObsArrays.of({key: arrays.pop(key) for key in self.rendered_keys})
        self._obs = ObsArrays.of(arrays)
        self._rows = ObsRows()

    # What a worker calls.

    def set_task_weights(self, weights: Sequence[float]) -> None:
        """Say how often the tasks are played from now on; see `rlinf.envs.task_draw`.

        Args:
            weights: One per task; with a single task they mean nothing.
        """
        if self._task_draw is not None:
            self._task_draw.set_weights(weights)

    @cached_property
    def policy_spec(self) -> ActionSpec:
        """The actions that `step` takes: the env's own, or as `action_convention` says."""
        return policy_spec(self.action_spec, self._convention)

    def policy_actions(self, actions: Any) -> Any:
        """Return actions of the env, `[..., A]`, as a policy would have given them."""
        return restore_actions(actions, self.action_spec, self._convention)

    @property
    def has_work(self) -> bool:
        """Whether an episode runs in any slot."""
        return bool(self._live.any())

    @property
    def numbered(self) -> bool:
        """Whether slots play numbered episodes; until the next `reset`."""
        return self._episodes is not None

    @property
    def evaluates(self) -> bool:
        """Whether these are episodes of an evaluation, which begin otherwise than training."""
        return self.numbered and self._evaluates

    @property
    def playing(self) -> list[FixedEpisode | None]:
        """Which numbered episode each slot plays; None where it plays none."""
        return [None] * self.num_envs if self._episodes is None else list(self._episodes.playing)

    @property
    def rounds(self) -> int:
        """Without auto-reset: resets after which ordered reset states have all been used."""
        return self._plan.rounds

    @property
    def last_obs(self) -> Obs:
        """The observation that was returned last."""
        return self._pack()

    @property
    def begins(self) -> torch.Tensor:
        """Whether the observation that was returned last is the first of an episode, bool `[B]`."""
        return torch.from_numpy(self._totals.length == 0)

    def episode_metrics(self) -> dict[str, torch.Tensor]:
        """Return the metrics of the current episodes, ended or not, each float32 `[B]`."""
        return self._totals.metrics()

    def reserve(self, steps: int) -> None:
        """Let the observations of the next steps follow the present one in one tensor per key.

        Args:
            steps: Actions, or chunks of them; a reset counts as one.
        """
        self._obs = self._rows.reserve(self._obs, steps + 1)
        self._images = self._rows.reserve(self._images, steps + 1)

    def update_reset_state_ids(self) -> None:
        """Draw new reset states for fixed ids; called between rollout epochs."""
        self._plan.redraw()

    def reset(self) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode in every slot.

        Returns:
            Observations and infos; `infos["_valid"]` is false for slots without work.
        """
        self._episodes = None
        self._plan.begin_pass(list(range(self.num_envs)))
        return self._begin_all()

    def begin_episodes(
        self, numbers: Iterable[int], evaluation: bool = True
    ) -> tuple[Obs, dict[str, Any]]:
        """Begin numbered episodes, as many as there are slots.

        A slot whose episode ends begins the next one that nobody plays; when none is left it rests.
        Without `has_work` all of them have been played. An episode whose simulator failed is played
        again; one with a NaN, where `on_nan` is `skip`, is not.

        Args:
            numbers: Which, each from 0.
            evaluation: Begin as evaluations do; else as training does, with the weights of tasks
                that a run begins with.

        Returns:
            As `reset`.

        Raises:
            EnvError: The simulator cannot begin a given episode.
            ValueError: There is no such episode.
        """
        if not self.chooses_starts:
            raise EnvError(
                f"{self.options.env_type} draws its initial states itself, so an evaluation cannot "
                "have fixed episodes: use another env_type in env.eval"
            )
        weights = None if evaluation else first_weights(self.cfg, self._tasks)
        plan = EpisodePlan(self.options, self._tasks, evaluation, weights)
        self._evaluates = evaluation
        self._episodes = EpisodeQueue(map(plan.episode, numbers), self.num_envs)
        return self._begin_all()

    def step(
        self, actions: Any, auto_reset: bool | None = None
    ) -> tuple[Obs, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Make one step; the same as a chunk of one.

        Args:
            actions: `[B, A]`.
            auto_reset: Overrides the config.

        Returns:
            Observations, rewards `[B]`, terminations `[B]`, truncations `[B]`, infos.
        """
        actions = self._check_actions(actions, 2)[:, None]
        obs, rewards, terminations, truncations, infos = self._run(actions, auto_reset)
        return obs[-1], rewards[:, 0], terminations[:, 0], truncations[:, 0], infos[-1]

    def chunk_step(
        self, actions: Any
    ) -> tuple[list[Obs], torch.Tensor, torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
        """Make `C` steps and begins new episodes, at the end, where old ones ended.

        Rewards and flags are in the column of their step. The actions that follow the end of an
        episode in the chunk are not carried out: `infos[c]["_valid"]` is false for them. Images
        that are rendered are in the last observation only, and in that of `early`.

        Args:
            actions: `[B, C, A]`, tensor or array.

        Returns:
            `C` observations, rewards float32 `[B, C]`, terminations and truncations bool `[B, C]`,
            `C` infos.

        Raises:
            EnvSlotError: A simulator failed once too often.
            NotFiniteError: A NaN, and `on_nan` is `error`.
        """
        return self._run(self._check_actions(actions, 3), None)

    # What a checkpoint holds.

    def get_state(self) -> dict[str, Any]:
        """Return everything needed to go on from here, in plain data and arrays.

        Evaluations are not saved: their episodes can be played again. If the simulator cannot save
        its state, `sim` is None and `not_saved` says why; else `not_saved` is empty.
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

    def set_state(self, state: dict[str, Any]) -> str:
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
        self._episodes = None
        self._plan.set_state(state["plan"])
        self._totals.set_state(state["totals"])
        self._live = np.array(state["live"])
        self._starts = [Start(*start) for start in state["starts"]]
        self._obs, self._images = ObsArrays.of(state["obs"]), ObsArrays.of(state["images"])
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
            self._renew()
        return reason

    # How it works.

    def _run(self, actions: np.ndarray, auto_reset: bool | None) -> tuple:
        if self.is_start:
            raise EnvError(f"{self.options.env_type} has to be reset before it is stepped")
        if auto_reset is None:
            auto_reset = self.options.auto_reset or self.numbered
        chunk = actions.shape[1]
        shape = (self.num_envs, chunk)
        rewards = np.zeros(shape, np.float32)
        terminations, truncations = np.zeros(shape, bool), np.zeros(shape, bool)
        dropped: list[int] = []
        obs_list, infos_list = [], []
        for column in range(chunk):
            valid = torch.from_numpy(self._live.copy())
            dropped += self._advance(actions[:, column])
            result = self._result
            rewards[:, column] = result.reward
            terminations[:, column] = result.terminated
            truncations[:, column] = result.truncated
            drawn = column in (chunk - 1, chunk - 1 - self.early)
            if drawn:
                self._draw()
            obs_list.append(self._pack(images=drawn))
            success = torch.from_numpy(self._totals.success_now.copy())
            infos_list.append({"success": success, "_valid": valid})
            if result.interventions:
                infos_list[-1] |= self._intervened(actions[:, column])
        infos = infos_list[-1]
        done = (terminations | truncations).any(axis=1)
        if done.any():
            counted = done.copy()
            counted[dropped] = False
            infos["final_observation"] = final = obs_list[-1]
            infos["_final_observation"] = torch.from_numpy(done)
            infos["episode"] = self._totals.metrics()
            infos["_episode"] = torch.from_numpy(counted)
            infos["episode_reset_ids"] = self._reset_ids()
            infos["episode_tasks"] = self._task_numbers()
            if self.numbered:
                infos["fixed_episodes"] = self.playing
            if auto_reset:
                # The arrays of this step are the policy's; what they held so far is kept apart.
                infos["final_observation"] = _cloned(final)
                obs_list[-1] = self._begin(np.flatnonzero(done).tolist())
        infos["restarts"], infos["nan_skipped"] = self._restarts, self._nan_skipped
        return (
            obs_list,
            torch.from_numpy(rewards),
            torch.from_numpy(terminations),
            torch.from_numpy(truncations),
            infos_list,
        )

    def _advance(self, actions: np.ndarray) -> list[int]:
        """Make one step in all live slots; return those whose episode was dropped."""
        result, before = self._result, self._obs
        obs, slots = self._rows.copy(before), np.flatnonzero(self._live).tolist()
        result.clear()
        dropped = self._step_slots(slots, actions, obs, result) if slots else []
        if dropped:
            self._redo.update(dropped)
            self._drop(dropped, before, obs)
        dropped += self._guard(slots, before, obs)
        self._shape_reward(dropped)
        self._totals.add(self._live, result.reward, result.success)
        self._obs = obs
        if self.options.ignore_terminations:
            result.terminated[:] = False
        result.truncated |= self._live & (self._totals.length >= self._limit)
        result.truncated &= ~result.terminated
        ended = np.flatnonzero(result.terminated | result.truncated).tolist()
        return dropped + self._end(ended, dropped)

    def _shape_reward(self, dropped: list[int]) -> None:
        """Scale the rewards of a step and, if the config says so, takes their differences."""
        reward, last = self._result.reward, self._totals.last_reward
        reward *= self.options.reward_coef
        if self.options.use_rel_reward:
            absolute = reward.copy()
            reward -= np.where(self._live, last, 0)
            reward[dropped] = 0
            np.copyto(last, absolute, where=self._live)

    def _intervened(self, actions: np.ndarray) -> dict[str, torch.Tensor]:
        """Return what was carried out instead of actions, and where."""
        flag, done = np.zeros(self.num_envs, bool), actions.copy()
        for slot, action in self._result.interventions.items():
            flag[slot], done[slot] = True, action
        return {
            "intervene_flag": torch.from_numpy(flag),
            "intervene_action": torch.from_numpy(self.policy_actions(done)),
        }

    def _end(self, slots: list[int], dropped: list[int]) -> list[int]:
        """Let slots rest; return those whose physics turn out to have diverged."""
        self._live[slots] = False
        diverged = []
        for slot in slots:
            reason = "" if slot in dropped else self._diverged(slot)
            if reason:
                self._not_finite(slot, int(self._totals.length[slot]), reason)
                diverged.append(slot)
        return diverged

    def _guard(self, slots: list[int], before: dict, obs: dict) -> list[int]:
        """Drop the episodes of those slots that have a NaN; return them."""
        found = find_not_finite(slots, self._result.reward, obs.get("states"))
        for slot, reason in found:
            self._not_finite(slot, int(self._totals.length[slot]) + 1, reason)
        bad = [slot for slot, _ in found]
        if bad:
            self._drop(bad, before, obs)
        return bad

    def _not_finite(self, slot: int, step: int, reason: str) -> None:
        if self.options.on_nan == "error":
            hint = "on_nan: skip drops such episodes and counts them"
            raise self._error(slot, step, reason, hint, NotFiniteError)
        self._nan_skipped += 1

    def _drop(self, slots: list[int], before: dict, obs: dict) -> None:
        """End episodes that cannot go on, as if cut off in their last good observation."""
        for slot in slots:
            for key, array in obs.items():
                array[slot] = before[key][slot]
        self._result.drop(slots)

    def _begin_all(self) -> tuple[Obs, dict[str, Any]]:
        self.is_start = False
        self._redo.clear()
        self._obs, self._images = self._rows.copy(self._obs), self._rows.copy(self._images)
        return self._begin(list(range(self.num_envs))), {
            "_valid": torch.from_numpy(self._live.copy()),
            "reset_state_ids": self._reset_ids(),
            "restarts": self._restarts,
            "nan_skipped": self._nan_skipped,
        }

    def _begin(self, slots: list[int]) -> Obs:
        """Begin the next episodes of slots, in the present arrays; return what all observe."""
        begun = []
        plan = self._plan if self._episodes is None else self._episodes
        for slot in slots:
            start = self._starts[slot] if slot in self._redo else plan.next(slot)
            self._live[slot] = start is not None
            if start is not None:
                self._starts[slot] = start
                begun.append(slot)
        self._redo.difference_update(slots)
        self._totals.begin(begun)
        if not begun:
            return self._pack()
        self._reset_slots(begun, [self._starts[slot] for slot in begun], self._obs)
        states, descriptions = self._obs.get("states"), list(self._descriptions)
        for slot in begun:
            descriptions[slot] = self._describe(slot)
            if states is not None and not np.isfinite(states[slot]).all():
                # Nothing to fall back on: a reset that gives NaN cannot be skipped.
                raise self._error(slot, 0, "observation 'states' after reset", "", NotFiniteError)
        self._descriptions = descriptions
        if self.rendered_keys:
            self._draw_images(begun, self._images)
        return self._pack()

    def _draw(self) -> None:
        """Render all slots, into new arrays."""
        if self.rendered_keys:
            images = self._rows.copy(self._images)
            self._draw_images(range(self.num_envs), images)
            self._images = images

    def _pack(self, images: bool = True) -> Obs:
        obs: Obs = dict(self._obs.tensors)
        if images:
            obs |= self._images.tensors
        obs["task_descriptions"] = self._descriptions
        return obs

    def _task_numbers(self) -> torch.Tensor:
        return torch.tensor([self._tasks.task_of(start.reset_id) for start in self._starts])

    def _reset_ids(self) -> torch.Tensor:
        return torch.tensor([start.reset_id for start in self._starts])

    def _check_actions(self, actions: Any, ndim: int) -> np.ndarray:
        actions = actions.numpy(force=True) if torch.is_tensor(actions) else np.asarray(actions)
        dim, wanted = self.policy_spec.dim, "[envs, chunk, dim]" if ndim == 3 else "[envs, dim]"
        if actions.ndim != ndim or len(actions) != self.num_envs or actions.shape[-1] != dim:
            raise ValueError(
                f"actions have shape {list(actions.shape)}; expected {wanted} with "
                f"{self.num_envs} envs and {dim} entries"
            )
        found = bad_action(actions)
        if found:
            slot, reason = found
            step = int(self._totals.length[slot]) + 1
            raise self._error(slot, step, reason, "look at the policy", NotFiniteError)
        spec = self.action_spec
        if self._convention is not None:
            chunks = actions if ndim == 3 else actions[:, None]
            return prepare_actions(chunks, spec, self._convention).reshape(
                *actions.shape[:-1], spec.dim
            )
        return actions if spec.choices is None else spec.as_choices(actions, self._live)

    def _error(
        self, slot: int, step: int, reason: str, hint: str, kind: type[EnvSlotError] = EnvSlotError
    ) -> EnvSlotError:
        start = self._starts[slot]
        message = (
            f"{self.options.env_type}: slot {slot}, step {step} of its episode (reset id "
            f"{start.reset_id}, seed {start.seed}): {reason}"
        )
        return kind(f"{message}; {hint}" if hint else message, slot, step, *start)


def _cloned(obs: Obs) -> Obs:
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in obs.items()}
