"""The model types that a config may name, and what each is for; extensions add theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlinf.config.suggest import did_you_mean, how_to_register, listed

CATEGORIES = ("embodied", "reward", "reasoning")


@dataclass(frozen=True)
class SupportedModel:
    """A model type.

    Attributes:
        value: What the user writes as `model_type`, in lower case.
        category: One of `CATEGORIES`.
    """

    value: str
    category: str

    _known: ClassVar[dict[str, SupportedModel]] = {}

    @classmethod
    def register(cls, value: str, category: str) -> SupportedModel:
        """Add a model type.

        Args:
            value: What the user writes as `model_type`; kept in lower case.
            category: One of `CATEGORIES`.

        Returns:
            The model type; the one that is there already if it has the same category.

        Raises:
            ValueError: Unknown category, or the type exists with another one.
        """
        if category not in CATEGORIES:
            raise ValueError(f"unknown category '{category}'; known: {', '.join(CATEGORIES)}")
        value = value.lower()
        present = cls._known.setdefault(value, cls(value, category))
        if present.category != category:
            raise ValueError(f"model type '{value}' is already registered as {present.category}")
        return present

    @classmethod
    def find(cls, value: str) -> SupportedModel | None:
        """Return the model type of a name, in any case; None if there is none."""
        return cls._known.get(str(value).lower())

    @classmethod
    def names(cls, category: str | None = None) -> list[str]:
        """Return the names of all model types, or of those of a category."""
        known = cls._known.values()
        return [model.value for model in known if category in (None, model.category)]


for _name, _category in (
    ("mlp_policy", "embodied"),
    ("cnn_policy", "embodied"),
    ("flow_policy", "embodied"),
    ("cma", "embodied"),
    ("openvla", "embodied"),
    ("openvla_oft", "embodied"),
    ("smolvla", "embodied"),
    ("openpi", "embodied"),
    ("gr00t", "embodied"),
    ("mlp_reward_model", "reward"),
    ("cnn_reward_model", "reward"),
    ("qwen2.5", "reasoning"),
    ("qwen3", "reasoning"),
    ("llama", "reasoning"),
    ("hf_causal_lm", "reasoning"),
):
    SupportedModel.register(_name, _category)


def get_supported_model(model_type: str) -> SupportedModel:
    """Return a model type by its name.

    Args:
        model_type: As written in the config.

    Raises:
        ValueError: The type is unknown; the message names the near ones and all known ones.
    """
    found = SupportedModel.find(model_type)
    if found is not None:
        return found
    names = SupportedModel.names()
    hint = did_you_mean(model_type, names)
    raise ValueError(
        f"model type '{model_type}' is not supported; known: {listed(names)}"
        f"; {hint + ' ' if hint else ''}{how_to_register('model')}"
    )
