"""Config keys that every environment of the package has beside those of the common schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, create_model

from rlinf.config.schema.base import Int, Section


class NotFiniteKeys(Section):
    """Keys of every env."""

    on_nan: Literal["error", "skip"] | None = Field(
        None,
        description="What a NaN in an observation or reward does: stop the run, or drop the "
        "episode and count it; null is as runner.on_nan says.",
    )

    @classmethod
    def observed(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """Return those keys that say what a policy sees, or what its actions do.

        Training and evaluation agree in them.

        Args:
            section: `env.train` or `env.eval`, with defaults filled in.

        Returns:
            What keys come to, by name; those that have no effect are left out.
        """
        return {}


class VectorEnvKeys(NotFiniteKeys):
    """Keys of envs that need not have a list of initial states."""

    num_reset_states: Int | None = Field(
        None,
        gt=0,
        description="Initial states to choose from, where the env has no list of its own; null "
        "draws without end. Evaluation in order needs it.",
    )


class SimulatorKeys(Section):
    """Keys of envs whose simulator takes arguments."""

    init_params: dict[str, Any] = Field(
        default_factory=dict, description="Passed to the simulator as they are."
    )


def arguments(section: Mapping[str, Any], *names: str, key: str = "init_params") -> dict[str, Any]:
    """Return what a section passes to its simulator under some names, for `observed`.

    Args:
        section: `env.train` or `env.eval`.
        names: Of arguments.
        key: Key of the section that holds them.

    Returns:
        Values by the path of their key; None where the simulator's own is used.
    """
    return {f"{key}.{name}": section[key].get(name) for name in names}


def with_base_keys(
    schema: type[BaseModel] | None, base: type[BaseModel] = VectorEnvKeys
) -> type[BaseModel]:
    """Add the keys of a base class to the schema of an env.

    Args:
        schema: The env's own keys; None when it has none.
        base: The keys to add.

    Returns:
        A schema with both.
    """
    if schema is None:
        return base
    if issubclass(schema, base):
        return schema
    return create_model(schema.__name__, __base__=(schema, base), __doc__=schema.__doc__)
