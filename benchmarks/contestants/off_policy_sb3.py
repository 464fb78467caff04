"""SAC of Stable-Baselines3, for `benchmarks.off_policy`.

Written as its documentation says: `make_vec_env` (a `DummyVecEnv`, whose envs have a `Monitor`) and
`SAC("MlpPolicy", ...)` on the CPU.
"""

from __future__ import annotations

import time
from typing import Any

from answer import serve


class StableBaselines:
    """Trains with SAC."""

    def train(
        self,
        task: str,
        seed: int,
        steps: int,
        every: int,
        episodes: int,
        envs: int,
        batch: int,
        hidden: list[int],
        starts: int,
        horizon: int | None = None,
    ) -> dict[str, Any]:
        """Train a new policy, and evaluate it without noise now and then.

        Args:
            task: id of Gymnasium, or a task of MetaWorld.
            seed: of all.
            steps: env steps.
            every: env steps between evaluations.
            episodes: of each evaluation.
            envs: how many; as many gradient steps follow a step of all of them.
            batch: transitions of a gradient step.
            hidden: units of each hidden layer.
            starts: env steps with random actions before the first gradient step.
            horizon: steps of an episode of MetaWorld; None for an id of Gymnasium.

        Returns:
            As `training_rlinf.Training.train`.
        """
        from stable_baselines3 import SAC
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_vec_env

        def make() -> Any:
            import gymnasium

            if horizon is None:
                return gymnasium.make(task)
            import metaworld  # noqa: F401 - registers its envs

            return gymnasium.make("Meta-World/MT1", env_name=task, max_episode_steps=horizon)

        trained = make_vec_env(make, envs, seed=1000 * seed)
        tested = make_vec_env(make, envs, seed=100_000)
        out: dict[str, Any] = {"env_steps": [], "returns": [], "success": []}

        class Evaluations(BaseCallback):
            seconds = 0.0

            def _on_step(self) -> bool:
                if self.num_timesteps % every < envs or self.num_timesteps >= steps:
                    begin = time.perf_counter()
                    returns, success = play(self.model, tested, episodes)
                    out["env_steps"].append(self.num_timesteps)
                    out["returns"].append(returns)
                    out["success"].append(success)
                    self.seconds += time.perf_counter() - begin
                return True

        class Timed(SAC):
            seconds = 0.0

            def train(self, *args: Any, **kwargs: Any) -> None:
                begin = time.perf_counter()
                super().train(*args, **kwargs)
                self.seconds += time.perf_counter() - begin

        model = Timed(
            "MlpPolicy",
            trained,
            train_freq=1,
            gradient_steps=envs,
            batch_size=batch,
            learning_starts=starts,
            policy_kwargs={"net_arch": hidden},
            device="cpu",
            seed=seed,
        )
        evaluations = Evaluations()
        begin = time.perf_counter()
        model.learn(total_timesteps=steps, callback=evaluations)
        wall = time.perf_counter() - begin
        trained.close()
        tested.close()
        return {
            **out,
            "updates": model._n_updates,
            "training_seconds": wall - evaluations.seconds,
            "update_seconds": model.seconds,
            "wall_seconds": wall,
            "demo_episodes": 0,
        }

    def stop(self) -> None:
        """Nothing is to be ended."""


def play(model: Any, envs: Any, episodes: int) -> tuple[float, float]:
    """Return mean return and share of successes of episodes without noise."""
    import numpy as np

    obs = envs.reset()
    count = envs.num_envs
    quota = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    total, solved = np.zeros(count), np.zeros(count, bool)
    returns: list[float] = []
    success: list[float] = []
    while (quota > 0).any():
        actions, _ = model.predict(obs, deterministic=True)
        obs, rewards, dones, infos = envs.step(actions)
        total += rewards
        solved |= np.array([float(info.get("success", 0.0)) > 0 for info in infos])
        for env in np.flatnonzero(dones):
            if quota[env] > 0:
                returns.append(float(total[env]))
                success.append(float(solved[env]))
                quota[env] -= 1
            total[env], solved[env] = 0.0, False
    return float(np.mean(returns)), float(np.mean(success))


if __name__ == "__main__":
    serve(StableBaselines())
