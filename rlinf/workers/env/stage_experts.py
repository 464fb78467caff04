"""The experts of an env worker, one for each pipeline stage, and the rollouts that they saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rlinf.data.env_share import env_ids
from rlinf.envs.options import option
from rlinf.workers.env.supervision import Decision, Supervision


class StageExperts:
    """Experts where the learner needs labels, and nobody elsewhere.

    Args:
        stages: the expert of each stage; empty if there are none.
    """

    def __init__(self, stages: Sequence[Supervision]) -> None:
        self._stages = list(stages)
        self.rollouts = 0
        self._first_step = self._epoch_steps = 0

    @classmethod
    def of(cls, cfg: Any, envs: Sequence[Any], rank: int, world_size: int) -> StageExperts:
        """Make those that a config asks for.

        Args:
            cfg: the configuration.
            envs: vector env of each stage; empty if there is no training.
            rank: of the env worker.
            world_size: env workers.
        """
        algorithm = cfg.algorithm
        if not envs or "dagger" not in algorithm or algorithm.dagger.expert is None:
            return cls([])
        train = cfg.env.train
        if option(train, "action_convention") is not None:
            raise ValueError(
                "env.train.action_convention is set, and algorithm.dagger.expert labels actions in "
                "the units of the env: let the policy act in these, without a convention"
            )
        return cls(
            [
                Supervision(
                    algorithm.dagger,
                    train,
                    env.action_spec,
                    env_ids(
                        train.total_num_envs,
                        env_workers=world_size,
                        stages=len(envs),
                        stage=stage,
                        ranks=world_size,
                        rank=rank,
                    ),
                    cfg.runner.seed if train.seed is None else train.seed,
                )
                for stage, env in enumerate(envs)
            ]
        )

    @property
    def present(self) -> bool:
        """Whether anybody is asked."""
        return bool(self._stages)

    def begin_rollout(self, epochs: int, chunks: int) -> None:
        """Get ready for a rollout of so many epochs of so many chunk steps."""
        self._first_step, self._epoch_steps = self.rollouts * epochs * chunks, chunks
        for stage in self._stages:
            stage.begin_rollout(self.rollouts)

    def end_rollout(self) -> None:
        """Count it; not before, so that one that is played again has the draws of its first try."""
        self.rollouts += 1

    def restart(self, stage: int) -> None:
        """Take note that new episodes begin in all envs of a stage."""
        if self._stages:
            self._stages[stage].restart()

    def decide(
        self, stage: int, obs: dict[str, Any], actions: Tensor, epoch: int, chunk: int
    ) -> Decision | None:
        """Return what is done in a step; None if nobody is asked.

        Args:
            stage: whose observations these are.
            obs: of all envs of the stage, as experts see them.
            actions: of the policy, `[B, 1, A]`.
            epoch: of the rollout.
            chunk: step of the epoch.
        """
        if not self._stages:
            return None
        step = self._first_step + epoch * self._epoch_steps + chunk
        return self._stages[stage].decide(obs, actions, step)

    def note_ends(self, stage: int, ended: Tensor, resets: bool) -> None:
        """Take note of the episodes that ended in a chunk; see `Supervision.note_ends`.

        Args:
            stage: whose.
            ended: which actions ended one, bool `[B, C]`.
            resets: whether new ones begin in the next step.
        """
        if self._stages:
            self._stages[stage].note_ends(ended.any(1), resets)

    # -- checkpoints ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what the experts remember, plain data."""
        return {"rollouts": self.rollouts, "stages": [stage.state() for stage in self._stages]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.rollouts = state["rollouts"]
        for stage, saved in zip(self._stages, state["stages"], strict=True):
            stage.load_state(saved)

    def close(self) -> None:
        """Let the experts free what they hold."""
        for stage in self._stages:
            stage.close()
