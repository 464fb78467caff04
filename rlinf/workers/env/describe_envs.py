"""What others have to know of the envs of a worker, and whether these can be evaluated in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.utils.env_spec import EnvSpec


def describe_envs(train: Sequence[Any], evaluation: Sequence[Any]) -> EnvSpec:
    """Return what a policy has to know of envs, which are all alike.

    Args:
        train: vector envs for training; may be empty.
        evaluation: vector envs for evaluation; may be empty if there are others.
    """
    env = (train or evaluation)[0]
    image, states = env.obs_spec.get("main_images"), env.obs_spec.get("states")
    actions = env.policy_spec
    return EnvSpec(
        obs_dim=states.shape[-1] if states is not None else None,
        action_dim=actions.dim,
        action_low=actions.low,
        action_high=actions.high,
        image_shape=image.shape if image is not None else None,
        train_steps=train[0].max_episode_steps if train else None,
        action_choices=actions.choices,
        tasks=tuple(train[0].task_names) if train else (),
        instructions=tuple(env.instructions),
    )


def check_evaluation(env: Any) -> None:
    """See to it, before training, that an env can be evaluated in.

    Raises:
        ValueError: its episodes cannot be chosen, or need not end.
    """
    name = env.options.env_type
    if not env.chooses_starts:
        raise ValueError(
            f"env.eval.env_type {name} draws its initial states itself, so an evaluation cannot "
            "have fixed episodes: use another env type there, such as metaworld or gymnasium"
        )
    if env.max_episode_steps is None:
        raise ValueError(
            f"nobody says how long an episode of an evaluation is: {name} has no step limit of its "
            "own; set env.eval.max_episode_steps"
        )
