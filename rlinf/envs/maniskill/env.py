"""The ManiSkill adapter.

Written against the public API of ManiSkill 3.0 (`gymnasium.make(id, num_envs=...)`, batched
tensors, `reset(seed=..., options={"env_idx": ...})`, `get_state_dict`, `set_state_dict`) and tested
against a small fake of it: the simulator (SAPIEN) was not available where this was written. It has
not run with the real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.base import VectorEnv
from rlinf.envs.errors import MissingSimulator
from rlinf.envs.options import map_option, option
from rlinf.envs.starts import Start
from rlinf.envs.step_result import ObsSpec, StepResult


class ManiSkillEnv(VectorEnv):
    """Slots of one ManiSkill task, simulated as one batch.

    Resting slots are stepped along with the others, since the batch is one; what they do is
    ignored.

    ManiSkill draws the initial states of all slots that are reset together from the seed of the
    first one. Where slots have to begin in given states (groups, fixed, ordered or specific reset
    ids, evaluations), they are reset one by one, which is exact and slower.

    Success is `info["success"]`. ManiSkill terminates when it succeeds or fails.
    """

    env_type = "maniskill"

    def _open(self) -> None:
        try:
            import gymnasium
            import mani_skill.envs  # noqa: F401 (registers the ids)
        except ImportError as error:
            raise MissingSimulator(
                f"ManiSkill cannot be imported ({error}): pip install mani-skill (Linux on x86_64, "
                "with a Vulkan driver)"
            ) from error
        cfg = self.cfg
        self._id = str(option(cfg, "id", ""))
        kwargs: dict[str, Any] = {
            "obs_mode": option(cfg, "obs_mode", "state"),
            "sim_backend": option(cfg, "sim_backend", "auto"),
            "render_mode": "rgb_array",
            "disable_env_checker": True,
        }
        for name in ("control_mode", "reward_mode"):
            if option(cfg, name) is not None:
                kwargs[name] = option(cfg, name)
        size = option(cfg, "image_size")
        if size:
            kwargs["sensor_configs"] = {"width": size, "height": size}
        kwargs.update(map_option(cfg, "init_params"))
        made = gymnasium.make(self._id, num_envs=self.num_envs, **kwargs)
        self._limit_of_id = getattr(made.spec, "max_episode_steps", None)
        # Without its wrappers: step limits are the business of the base class.
        self._env = made.unwrapped
        first, _ = self._env.reset(seed=[0] * self.num_envs)
        self._spec = {
            key: ObsSpec(tuple(value.shape[1:]), value.dtype.type)
            for key, value in self._read(first).items()
        }
        options = self.options
        self._one_by_one = (
            options.group_size > 1
            or options.fixed_reset_ids
            or options.ordered_reset_ids
            or options.specific_reset_id is not None
        )

    @property
    def obs_spec(self) -> dict[str, ObsSpec]:
        """States, and images in the modes that have them."""
        return self._spec

    @cached_property
    def action_spec(self) -> ActionSpec:
        """Bounds of one slot's actions."""
        space = self._env.single_action_space
        return ActionSpec.box(space.low, space.high)

    @property
    def default_max_episode_steps(self) -> int | None:
        """The limit registered with the id."""
        return self._limit_of_id

    def _reset_slots(self, slots: list[int], starts: list[Start], obs: dict) -> None:
        one_by_one = self._one_by_one or self.numbered
        parts = [[slot] for slot in slots] if one_by_one else [slots]
        seed_of = dict(zip(slots, (start.seed % 2**31 for start in starts), strict=True))
        raw: Any = None
        for part in parts:
            # Seeds of all slots, with the first slot's first: it seeds what torch draws.
            seeds = [seed_of[part[0]]] * self.num_envs
            for slot in part:
                seeds[slot] = seed_of[slot]
            seeds[0] = seed_of[part[0]]
            index = torch.tensor(part, device=self._env.device)
            raw, _ = self._env.reset(seed=seeds, options={"env_idx": index})
        content = self._read(raw)
        for key, array in obs.items():
            array[slots] = content[key][slots]

    def _step_slots(
        self, slots: list[int], actions: np.ndarray, obs: dict, result: StepResult
    ) -> list[int]:
        batch = torch.as_tensor(actions, dtype=torch.float32, device=self._env.device)
        raw, reward, terminated, _, info = self._env.step(batch)
        content = self._read(raw)
        for key, array in obs.items():
            array[slots] = content[key][slots]
        result.reward[slots] = _numpy(reward)[slots]
        none = np.zeros(len(slots), bool)
        self.reports_success = "success" in info
        success = _numpy(info["success"])[slots] if self.reports_success else none
        result.mark_all(slots, _numpy(terminated)[slots], none, success)
        return []

    def _read(self, raw: Any) -> dict[str, np.ndarray]:
        if not isinstance(raw, Mapping):
            return {"states": _numpy(raw).astype(np.float32)}
        rest = {key: raw[key] for key in raw if key not in ("sensor_data", "sensor_param")}
        read = {}
        numbers = [value.reshape(self.num_envs, -1) for value in _flat(rest)]
        if numbers:
            read["states"] = np.concatenate(numbers, axis=1).astype(np.float32)
        pictures = [_numpy(camera["rgb"]) for camera in raw.get("sensor_data", {}).values()]
        if pictures:
            read["main_images"] = pictures[0]
        if len(pictures) > 1:
            read["extra_view_images"] = np.stack(pictures[1:], axis=1)
        return read

    def _describe(self, slot: int) -> str:
        return str(option(self.cfg, "task_description", self._id))

    def _get_sim_state(self) -> Any:
        return _to_cpu(self._env.get_state_dict())

    def _set_sim_state(self, state: Any) -> None:
        device = self._env.device
        self._env.set_state_dict(_map(state, lambda value: torch.as_tensor(value, device=device)))

    def capture_image(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """Render slots with the cameras meant for people."""
        pictures = _numpy(self._env.render_rgb_array()).astype(np.uint8)
        return pictures if slots is None else pictures[list(slots)]

    def close(self) -> None:
        """Free the simulator."""
        if self._env is not None:
            self._env.close()
            self._env = None


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _flat(content: Any) -> list[np.ndarray]:
    if isinstance(content, Mapping):
        return [array for value in content.values() for array in _flat(value)]
    return [_numpy(content)]


def _map(content: Any, function: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _map(value, function) for key, value in content.items()}
    return function(content)


def _to_cpu(content: Any) -> Any:
    return _map(content, lambda value: _numpy(value).copy())
