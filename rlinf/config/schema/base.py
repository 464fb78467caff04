"""The building blocks that every section of the schema is made of."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """One section of the config: typed fields, nothing else allowed in it.

    Types are strict (`true` is not 1, `"12"` is not 12), so that a slip of the keyboard is an
    error and not a value.

    Attributes:
        plugin_selectors: Which plug-ins may add keys to this section: plug-in kind to the key
            that names the plug-in, such as `{"env": "env_type"}`.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )
    plugin_selectors: ClassVar[dict[str, str]] = {}


def _whole(value: Any) -> Any:
    # 1e6 is how people write a million, and YAML reads it as a float.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _number(value: Any) -> Any:
    # YAML 1.1 reads 1e-4 (no dot) as text.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


Int = Annotated[int, BeforeValidator(_whole)]
"""A whole number; `1e6` is one."""

Float = Annotated[float, BeforeValidator(_number)]
"""A number; whole numbers and `1e-4` are."""


def free(default: Any, words: str, description: str) -> Any:
    """Declare a key whose values have a grammar that is checked elsewhere.

    Args:
        default: The value when the key is absent; `...` makes the key mandatory.
        words: What a value is, in a few words.
        description: What the key does.

    Returns:
        A pydantic field, to be annotated `Any`.
    """
    return Field(default, description=description, json_schema_extra={"words": words})
