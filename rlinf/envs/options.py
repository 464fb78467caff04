"""The config keys that all vector envs share, read once into typed fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def option(cfg: Any, name: str, default: Any = None) -> Any:
    """Read a key of an env config; null counts as absent.

    Args:
        cfg: A map, a `DictConfig` or an object with attributes.
        name: Key.
        default: Returned when the key is absent or null.

    Returns:
        The value.
    """
    if isinstance(cfg, Mapping) or hasattr(cfg, "get"):
        value = cfg.get(name, None)
    else:
        value = getattr(cfg, name, None)
    return default if value is None else value


def map_option(cfg: Any, name: str) -> dict[str, Any]:
    """Read a key that holds a map, as plain data; absent or null is an empty one."""
    value = option(cfg, name, {})
    if hasattr(value, "_metadata"):
        from omegaconf import OmegaConf

        value = OmegaConf.to_container(value, resolve=True)
    return dict(value)


@dataclass(frozen=True)
class VectorEnvOptions:
    """What `env.train` and `env.eval` say to every env; see the config reference for the keys.

    Attributes:
        env_type: Name under which the env is registered.
        seed: `cfg.seed`; 0 when null.
        group_size: Contiguous slots that share task and initial state.
        max_episode_steps: Steps after which an episode is cut; None is the adapter's own limit.
        auto_reset: Start a new episode, at the end of the chunk, where one ended.
        ignore_terminations: Only the step limit ends an episode.
        fixed_reset_ids: Keep the drawn reset states until `update_reset_state_ids`.
        ordered_reset_ids: Go through all reset states in order, each once.
        specific_reset_id: The only reset state to use; None draws.
        reward_coef: Factor on the reward.
        use_rel_reward: Emit the change of the reward since the last step.
        max_restarts: Failed slots that are made anew before the failure is raised.
        on_nan: `error` raises; `skip` drops the episode and counts it.
    """

    env_type: str
    seed: int
    group_size: int
    max_episode_steps: int | None
    auto_reset: bool
    ignore_terminations: bool
    fixed_reset_ids: bool
    ordered_reset_ids: bool
    specific_reset_id: int | None
    reward_coef: float
    use_rel_reward: bool
    max_restarts: int
    on_nan: str

    @classmethod
    def from_cfg(cls, cfg: Any, env_type: str) -> VectorEnvOptions:
        """Read the keys of an env section.

        Args:
            cfg: `env.train` or `env.eval`.
            env_type: Name to use when the section does not say it.

        Returns:
            The options.

        Raises:
            ValueError: A value is not allowed.
        """
        options = cls(
            env_type=str(option(cfg, "env_type", env_type)),
            seed=int(option(cfg, "seed", 0)),
            group_size=int(option(cfg, "group_size", 1)),
            max_episode_steps=option(cfg, "max_episode_steps"),
            auto_reset=bool(option(cfg, "auto_reset", True)),
            ignore_terminations=bool(option(cfg, "ignore_terminations", False)),
            fixed_reset_ids=bool(option(cfg, "use_fixed_reset_state_ids", False)),
            ordered_reset_ids=bool(option(cfg, "use_ordered_reset_state_ids", False)),
            specific_reset_id=option(cfg, "specific_reset_id"),
            reward_coef=float(option(cfg, "reward_coef", 1.0)),
            use_rel_reward=bool(option(cfg, "use_rel_reward", False)),
            max_restarts=int(option(cfg, "max_restarts", 0)),
            on_nan=str(option(cfg, "on_nan", "error")),
        )
        if options.on_nan not in ("error", "skip"):
            raise ValueError(f"on_nan is '{options.on_nan}'; allowed: error, skip")
        if options.ordered_reset_ids and options.fixed_reset_ids:
            raise ValueError(
                "use_ordered_reset_state_ids and use_fixed_reset_state_ids exclude each other: "
                "set one of them"
            )
        return options
