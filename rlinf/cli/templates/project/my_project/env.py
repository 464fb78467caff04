"""The task: a point with inertia has to be brought to a stop at a goal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from pydantic import Field
from rlinf.config import Float, Section
from rlinf.envs import register_env

from .reward import reward

FRICTION = 0.1
"""Share of its speed that the point loses in a step."""
THRUST = 0.02
"""Speed that the largest action adds in a step."""
EDGE = 2.0
"""Largest coordinate of the point."""


class PointMassKeys(Section):
    """Keys of `env.train` and `env.eval`; they are arguments of the env."""

    goal_radius: Float = Field(0.1, gt=0, description="Distance from the goal that is near enough.")
    goal_speed: Float = Field(0.05, gt=0, description="Speed at the goal that is slow enough.")
    effort_cost: Float = Field(0.01, ge=0, description="What a unit of squared action costs.")


@register_env("point_mass", schema=PointMassKeys)
class PointMass(gymnasium.Env):
    """Observes position, velocity and the way to the goal, [6]; acts with a force, [2]."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(
        self, goal_radius: float = 0.1, goal_speed: float = 0.05, effort_cost: float = 0.01
    ) -> None:
        self.goal_radius = goal_radius
        self.goal_speed = goal_speed
        self.effort_cost = effort_cost

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode; all that is random in it follows from the seed."""
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2)
        self.goal = self.np_random.uniform(-1, 1, 2)
        self.velocity = np.zeros(2)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Push, move, and end the episode at the goal."""
        force = np.clip(action, -1, 1)
        before = self._distance()
        self.velocity = (1 - FRICTION) * self.velocity + THRUST * force
        self.place = np.clip(self.place + self.velocity, -EDGE, EDGE)
        after, speed = self._distance(), float(np.linalg.norm(self.velocity))
        solved = after < self.goal_radius and speed < self.goal_speed
        worth = reward(before, after, float(force @ force), solved, self.effort_cost)
        # The step limit is `max_episode_steps` of the recipe: nothing is cut short here.
        return self._observe(), worth, solved, False, {"is_success": solved}

    def _distance(self) -> float:
        return float(np.linalg.norm(self.goal - self.place))

    def _observe(self) -> np.ndarray:
        way = self.goal - self.place
        # Numbers of about the same size are learnt from faster.
        return np.concatenate([self.place, 10 * self.velocity, way]).astype(np.float32)
