"""How actions and values come from features: the settings that the small policies share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rlinf.models.embodiment.distributions.choice import AUTO

if TYPE_CHECKING:
    from omegaconf import DictConfig

_OF_REAL_NUMBERS = (
    "state_dependent_std",
    "init_log_std",
    "log_std_min",
    "log_std_max",
    "clip_actions",
    "exploration_noise",
)

_OF_DEVIATION = tuple(name for name in _OF_REAL_NUMBERS if name != "exploration_noise")


@dataclass(frozen=True)
class HeadSettings:
    """How actions and values come from features; the config keys of the same names."""

    hidden_sizes: Sequence[int] = (128, 128)
    activation: str = "tanh"
    share_trunk: bool = False
    orthogonal_init: bool = True
    distribution: str = AUTO
    action_choices: Sequence[int] | None = None
    state_dependent_std: bool = False
    init_log_std: float = 0.0
    log_std_min: float = -5.0
    log_std_max: float = 2.0
    clip_actions: bool = True
    exploration_noise: float = 0.1
    normalize_obs: bool = True
    obs_clip: float = 10.0
    num_action_chunks: int = 1
    add_value_head: bool = False
    value_type: str = "chunk_level"
    add_q_head: bool = False
    num_q_heads: int = 2
    q_hidden_sizes: Sequence[int] | None = None
    q_layer_norm: bool = False
    q_head_type: str = "default"

    @classmethod
    def of(cls, cfg: DictConfig) -> HeadSettings:
        """Read the settings from a model section."""
        own = {field.name: cfg[field.name] for field in fields(cls)}
        choices = own["action_choices"]
        own["action_choices"] = None if choices is None else tuple(choices)
        return cls(**{**own, "hidden_sizes": tuple(own["hidden_sizes"])})

    def __post_init__(self) -> None:
        """Check the settings against each other."""
        if not self.log_std_min <= self.init_log_std <= self.log_std_max:
            raise ValueError(
                f"init_log_std {self.init_log_std} is outside of log_std_min {self.log_std_min} "
                f"to log_std_max {self.log_std_max}"
            )

    def refuse_keys_of_deviation(self) -> None:
        """Refuse settings that have no effect on actions without chance.

        Raises:
            ValueError: One of them is not at its default.
        """
        given = [name for name in _OF_DEVIATION if getattr(self, name) != _DEFAULTS[name]]
        if given:
            raise ValueError(
                f"model.{given[0]} is {getattr(self, given[0])}, which has no effect: with "
                "model.distribution deterministic, noise of model.exploration_noise is added to "
                f"actions; leave out {', '.join(given)}"
            )

    def refuse_keys_of_real_numbers(self) -> None:
        """Refuse settings that have no effect on choices.

        Raises:
            ValueError: One of them is not at its default.
        """
        given = [name for name in _OF_REAL_NUMBERS if getattr(self, name) != _DEFAULTS[name]]
        if given:
            raise ValueError(
                f"model.{given[0]} is {getattr(self, given[0])}, which has no effect: the actions "
                f"of the env are choices, not real numbers; leave out {', '.join(given)}"
            )


_DEFAULTS = {field.name: field.default for field in fields(HeadSettings)}
