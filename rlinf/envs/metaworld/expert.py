"""MetaWorld's scripted policies, one per task, as an expert."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.errors import MissingSimulator
from rlinf.envs.experts import Expert
from rlinf.envs.metaworld.tasks import DESCRIPTIONS, STATE_DIM
from rlinf.utils.extras import install_hint

# They warn of actions beyond the bounds, which whoever executes them clips.
warnings.filterwarnings("ignore", message="Constant", module=r"metaworld\.policies")


class MetaWorldExpert(Expert):
    """Acts by the policy that MetaWorld ships for the task of each slot.

    These policies are functions of the state, so nothing but the observation counts. Many of their
    actions exceed the bounds.
    """

    def __init__(
        self, cfg: Any, action_spec: ActionSpec, *, num_envs: int = 1, seed: int = 0
    ) -> None:
        super().__init__(cfg, action_spec, num_envs=num_envs, seed=seed)
        try:
            from metaworld.policies import ENV_POLICY_MAP
        except ImportError as error:
            raise MissingSimulator(
                f"MetaWorld cannot be imported ({error}): {install_hint('embodied')}"
            ) from error
        self._classes = ENV_POLICY_MAP
        self._policies: dict[str, Any] = {}
        self._tasks = {text: task for task, text in DESCRIPTIONS.items()}

    def act(self, obs: dict[str, Any], slots: Sequence[int]) -> np.ndarray:
        """See `Expert.act`."""
        states = np.asarray(obs["states"])[:, :STATE_DIM].astype(np.float64)
        words = obs["task_descriptions"]
        actions = [self._policy(words[slot]).get_action(states[slot]) for slot in slots]
        return np.array(actions, np.float32).reshape(len(slots), self.action_spec.dim)

    def _policy(self, words: str) -> Any:
        if words not in self._policies:
            self._policies[words] = self._classes[self._tasks[words]]()
        return self._policies[words]
