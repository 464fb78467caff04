"""The experts of an env worker, one for each pipeline stage, and the rollouts that they saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from rlinf.data.env_share import env_ids
from rlinf.envs.options import option
from rlinf.utils.determinism import named_seed
from rlinf.workers.env.supervision import Decision, Supervision

View = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns observations as an expert sees them."""


class StageExperts:
    """Experts where the learner needs labels, and nobody elsewhere.

    Args:
        stages: the expert of each stage; empty if there are none.
        views: of each stage, what makes of observations those that the expert sees.
    """

    def __init__(self, stages: Sequence[Supervision], views: Sequence[View] = ()) -> None:
        self._stages, self._views = list(stages), list(views)
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
        # Imported here: it may be a policy, and other runs need none in processes of envs.
        from rlinf.workers.env.policy_expert import make_env_expert

        train, dagger = cfg.env.train, algorithm.dagger
        if option(train, "action_convention") is not None:
            raise ValueError(
                "env.train.action_convention is set, and algorithm.dagger.expert labels actions in "
                "the units of the env: let the policy act in these, without a convention"
            )
        seed = cfg.runner.seed if train.seed is None else train.seed
        stages: list[Supervision] = []
        views: list[View] = []
        for stage, env in enumerate(envs):
            ids = env_ids(
                train.total_num_envs,
                env_workers=world_size,
                stages=len(envs),
                stage=stage,
                ranks=world_size,
                rank=rank,
            )
            expert = make_env_expert(dagger.expert, env, seed=named_seed(seed, "env", "expert"))
            stages.append(
                Supervision(dagger, expert, env.action_spec, ids, train.total_num_envs, seed)
            )
            views.append(_as_it_is if expert.is_policy else env.expert_obs)
        return cls(stages, views)

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
            obs: of all envs of the stage.
            actions: of the policy, `[B, 1, A]`.
            epoch: of the rollout.
            chunk: step of the epoch.
        """
        if not self._stages:
            return None
        step = self._first_step + epoch * self._epoch_steps + chunk
        return self._stages[stage].decide(self._views[stage](obs), actions, step)

    def note_ends(
        self, stage: int, terminations: Tensor, truncations: Tensor, resets: bool
    ) -> None:
        """Take note of the episodes that ended in a chunk; see `Supervision.note_ends`.

        Args:
            stage: whose.
            terminations: which actions terminated one, bool `[B, C]`.
            truncations: which actions truncated one, bool `[B, C]`.
            resets: whether new ones begin in the next step.
        """
        if self._stages:
            self._stages[stage].note_ends((terminations | truncations).any(1), resets)

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


def _as_it_is(obs: dict[str, Any]) -> dict[str, Any]:
    return obs
