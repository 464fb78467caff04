"""The list of model types, which grows at run time but reads like an enum."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlinf.config.suggest import did_you_mean, listed

CATEGORIES = ("embodied", "reasoning")


class _Members(type):
    """Makes the class behave like an enum: members as attributes, iteration, call by value."""

    def __init__(cls, name: str, bases: tuple, namespace: dict) -> None:
        super().__init__(name, bases, namespace)
        cls._members: dict[str, SupportedModel] = {}
        for member_name, content in namespace.items():
            if member_name.isupper() and isinstance(content, tuple):
                cls._add(member_name, *content)

    def _add(cls, member_name: str, value: str, category: str) -> SupportedModel:
        member = object.__new__(cls)
        member.name, member.value, member.category = member_name, value, category
        cls._members[value] = member
        setattr(cls, member_name, member)
        return member

    def __call__(cls, value: object) -> SupportedModel:
        if isinstance(value, cls):
            return value
        member = cls._members.get(str(value).lower())
        if member is None:
            raise ValueError(f"'{value}' is not a supported model type")
        return member

    def __iter__(cls) -> Iterator[SupportedModel]:
        return iter(cls._members.values())

    def __len__(cls) -> int:
        return len(cls._members)

    def __contains__(cls, value: object) -> bool:
        return isinstance(value, cls) or str(value).lower() in cls._members


class SupportedModel(metaclass=_Members):
    """A model type and its category.

    `SupportedModel.MLP_POLICY`, `SupportedModel("mlp_policy")` and iteration work as with an
    enum; `SupportedModel.register` adds a member.

    Attributes:
        name: Name of the member, such as `MLP_POLICY`.
        value: What the user writes as `model_type`.
        category: `embodied` or `reasoning`.
    """

    name: str
    value: str
    category: str

    MLP_POLICY = ("mlp_policy", "embodied")
    CNN_POLICY = ("cnn_policy", "embodied")
    QWEN2_5 = ("qwen2.5", "reasoning")
    QWEN3 = ("qwen3", "reasoning")
    LLAMA = ("llama", "reasoning")
    HF_CAUSAL_LM = ("hf_causal_lm", "reasoning")

    @classmethod
    def register(cls, value: str, category: str) -> SupportedModel:
        """Adds a model type.

        Args:
            value: What the user writes as `model_type`; kept in lower case.
            category: One of `CATEGORIES`.

        Returns:
            The new member, or the one that is already there with the same category.

        Raises:
            ValueError: Unknown category, or the type exists with another one.
        """
        if category not in CATEGORIES:
            raise ValueError(f"unknown category '{category}'; known: {', '.join(CATEGORIES)}")
        value = value.lower()
        present = cls._members.get(value)
        if present is None:
            return cls._add(re.sub(r"\W+", "_", value).upper(), value, category)
        if present.category != category:
            raise ValueError(f"model type '{value}' is already registered as {present.category}")
        return present

    def __repr__(self) -> str:
        """Name, value and category."""
        return f"<SupportedModel.{self.name}: '{self.value}' ({self.category})>"

    def __reduce__(self) -> tuple:
        """Finds, or adds, the same member in another process."""
        return (SupportedModel.register, (self.value, self.category))

    def __copy__(self) -> SupportedModel:
        """A member is itself: there is only one."""
        return self

    def __deepcopy__(self, memo: dict) -> SupportedModel:
        """A member is itself: there is only one."""
        return self


def get_supported_model(model_type: str) -> SupportedModel:
    """Returns the member for a model type.

    Args:
        model_type: As written in the config.

    Returns:
        The member.

    Raises:
        ValueError: The type is unknown; the message names the near ones and all known ones.
    """
    if model_type in SupportedModel:
        return SupportedModel(model_type)
    names = [member.value for member in SupportedModel]
    hint = did_you_mean(model_type, names)
    raise ValueError(
        f"model type '{model_type}' is not supported; known: {listed(names)}"
        + (f"; {hint}" if hint else "")
    )
