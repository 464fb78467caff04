"""The env types that a config may name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlinf.config.suggest import did_you_mean, how_to_register, listed


class _Members(type):
    """Makes the class behave like an enum: members as attributes, iteration, call by value."""

    def __init__(cls, name: str, bases: tuple, namespace: dict) -> None:
        super().__init__(name, bases, namespace)
        cls._members: dict[str, SupportedEnvType] = {}
        for member_name, value in namespace.items():
            if member_name.isupper() and isinstance(value, str):
                cls._add(member_name, value)

    def _add(cls, member_name: str, value: str) -> SupportedEnvType:
        member = object.__new__(cls)
        member.name, member.value = member_name, value
        cls._members[value] = member
        setattr(cls, member_name, member)
        return member

    def __call__(cls, value: object) -> SupportedEnvType:
        if isinstance(value, cls):
            return value
        member = cls._members.get(str(value).lower())
        if member is None:
            names = list(cls._members)
            hint = did_you_mean(value, names)
            raise ValueError(
                f"env type '{value}' is not supported; known: {listed(names)}"
                f"; {hint + ' ' if hint else ''}{how_to_register('env')}"
            )
        return member

    def __iter__(cls) -> Iterator[SupportedEnvType]:
        return iter(cls._members.values())

    def __len__(cls) -> int:
        return len(cls._members)

    def __contains__(cls, value: object) -> bool:
        return isinstance(value, cls) or str(value).lower() in cls._members


class SupportedEnvType(metaclass=_Members):
    """An env type.

    `SupportedEnvType.METAWORLD`, `SupportedEnvType("metaworld")` and iteration work as with an
    enum; `register_env` adds a member.

    Attributes:
        name: Name of the member, such as `METAWORLD`.
        value: What the user writes as `env_type`.
    """

    name: str
    value: str

    METAWORLD = "metaworld"
    GYMNASIUM = "gymnasium"
    ENVPOOL = "envpool"
    MANISKILL = "maniskill"
    LIBERO = "libero"
    NAVIGATION = "navigation"

    @classmethod
    def register(cls, value: str) -> SupportedEnvType:
        """Add an env type, or return the one that is there; names are kept in lower case."""
        value = value.lower()
        present = cls._members.get(value)
        return present or cls._add(re.sub(r"\W+", "_", value).upper(), value)

    def __repr__(self) -> str:
        """Name and value."""
        return f"<SupportedEnvType.{self.name}: '{self.value}'>"

    def __reduce__(self) -> tuple:
        """Find, or adds, the same member in another process."""
        return (SupportedEnvType.register, (self.value,))

    def __copy__(self) -> SupportedEnvType:
        """Return a member is itself: there is only one."""
        return self

    def __deepcopy__(self, memo: dict) -> SupportedEnvType:
        """Return a member is itself: there is only one."""
        return self
