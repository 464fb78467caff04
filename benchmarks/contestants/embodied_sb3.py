"""PPO of Stable-Baselines3 on stock MetaWorld envs, for `benchmarks.embodied`.

Written as its documentation says: `make_vec_env` (which adds a `Monitor` to each env),
`VecNormalize` for observations and returns, `PPO("MlpPolicy", ...)` on the CPU. `SubprocVecEnv` has
one process per env, `DummyVecEnv` steps all envs in the process that trains.
"""

from __future__ import annotations

import time
from typing import Any

from answer import serve


class StableBaselines:
    """Trains with PPO."""

    def prepare(self, vec_env: str, task: str, envs: int, horizon: int) -> None:
        """Make the envs.

        Args:
            vec_env: "SubprocVecEnv" or "DummyVecEnv".
            task: of MetaWorld.
            envs: how many.
            horizon: steps of an episode.
        """
        from stable_baselines3.common import env_util
        from stable_baselines3.common import vec_env as kinds

        def make() -> Any:
            # Here, since it runs in the env's process.
            import gymnasium
            import metaworld  # noqa: F401 - registers its envs

            return gymnasium.make("Meta-World/MT1", env_name=task, max_episode_steps=horizon)

        self._envs = env_util.make_vec_env(make, envs, vec_env_cls=getattr(kinds, vec_env))

    def train(self, updates: int, rollout_steps: int, batch: int, epochs: int) -> dict[str, float]:
        """Train a new policy.

        Args:
            updates: rollouts, with an update after each.
            rollout_steps: steps per env in a rollout.
            batch: samples of a minibatch.
            epochs: passes over a rollout.

        Returns:
            Env steps per second end to end (`total`) and in the rollout phase (`rollout`), and
            seconds per update (`update`).
        """
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.vec_env import VecNormalize
        from torch import nn

        class Rollouts(BaseCallback):
            seconds = 0.0

            def _on_rollout_start(self) -> None:
                self._begin = time.perf_counter()

            def _on_rollout_end(self) -> None:
                self.seconds += time.perf_counter() - self._begin

            def _on_step(self) -> bool:
                return True

        model = PPO(
            "MlpPolicy",
            VecNormalize(self._envs, gamma=0.97),
            n_steps=rollout_steps,
            batch_size=batch,
            n_epochs=epochs,
            learning_rate=1e-3,
            gamma=0.97,
            gae_lambda=0.95,
            vf_coef=0.5,
            max_grad_norm=0.5,
            policy_kwargs={
                "net_arch": {"pi": [128, 128], "vf": [128, 128]},
                "activation_fn": nn.Tanh,
            },
            device="cpu",
            seed=0,
        )
        rollouts = Rollouts()
        steps = updates * rollout_steps * self._envs.num_envs
        begin = time.perf_counter()
        model.learn(total_timesteps=steps, callback=rollouts)
        seconds = time.perf_counter() - begin
        assert model.num_timesteps == steps
        return {
            "total": steps / seconds,
            "rollout": steps / rollouts.seconds,
            "update": (seconds - rollouts.seconds) / updates,
        }

    def stop(self) -> None:
        """End the envs."""
        self._envs.close()


if __name__ == "__main__":
    serve(StableBaselines())
