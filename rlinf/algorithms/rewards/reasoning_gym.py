"""The reward of `reasoning-gym` tasks: the task itself scores the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlinf.algorithms.rewards import register_reward
from rlinf.algorithms.rewards.base import Reward, tagged
from rlinf.algorithms.rewards.plain_answer import is_plain
from rlinf.utils.extras import install_hint


class ReasoningGymReward(Reward):
    """What the task gives for the text in the last `<answer>`; 0 without one.

    Some tasks evaluate that text as Python. So this belongs into a process that can do no harm, and
    a text that does more than be a value or a formula gets 0, unless it is the right answer.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        try:
            import reasoning_gym
        except ImportError as error:
            raise ValueError(
                "the reward 'reasoning_gym' needs the package reasoning-gym: "
                f"{install_hint('reasoning')}"
            ) from error
        self._gym = reasoning_gym
        self._tasks: dict[tuple[str, str], Any] = {}

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> tuple[float, Mapping[str, float]]:
        """Ask the task.

        Args:
            response: Text with `<answer>...</answer>`, or just an answer if `answer_tag` is null.
            answer: One right answer; the task may know others.
            prompt: Not used.
            metadata: `gym_task`, `gym_config` and `gym_entry`, as that dataset gives them.
        """
        if self.cfg.answer_tag is None:
            found = [response.strip()]
        else:
            found = tagged(response, self.cfg.answer_tag)
        if not found or not found[-1]:
            return 0.0, {"answered": 0.0}
        task = self._task(metadata)
        if found[-1] != answer and not is_plain(found[-1]):
            return 0.0, {"answered": 1.0, "refused": 1.0}
        return float(task.score_answer(found[-1], dict(metadata["gym_entry"]))), {"answered": 1.0}

    def _task(self, metadata: Mapping[str, Any]) -> Any:
        if "gym_task" not in metadata:
            raise ValueError(
                "the reward 'reasoning_gym' scores prompts of the dataset 'reasoning_gym'; "
                "set data.type: reasoning_gym, or another reward.reward_type"
            )
        name, config = metadata["gym_task"], dict(metadata["gym_config"])
        key = name, json.dumps(config, sort_keys=True)
        if key not in self._tasks:
            self._tasks[key] = self._gym.create_dataset(name, **config, seed=0, size=1)
        return self._tasks[key]


register_reward("reasoning_gym", ReasoningGymReward)
