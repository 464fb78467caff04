"""An env that says that repeated actions do not bring it back, as robots do not."""

import gymnasium

gymnasium.register(
    "Robot-v0",
    "gymnasium.envs.classic_control.pendulum:PendulumEnv",
    max_episode_steps=200,
    nondeterministic=True,
)
