"""Names of the plug-ins that env processes make: experts and gates, of one env type or of all."""

from __future__ import annotations

from pathlib import Path

from rlinf.config.suggest import did_you_mean, how_to_register, listed

_names: dict[str, set[tuple[str, str]]] = {
    "expert": {("", "random"), ("metaworld", "scripted")},
    "gate": {("", "deviation"), ("", "expert")},
}
"""By kind: env types, empty for all of them, and names."""


class UnknownName(ValueError):
    """A name that nobody registered; `hint` holds the near ones, and how to add one."""

    def __init__(self, kind: str, name: str, env_type: str) -> None:
        """Say which names are known and which of them are near."""
        known = known_names(kind, env_type)
        self.hint = "\n".join(filter(None, [did_you_mean(name, known), how_to_register(kind)]))
        whose = f" for env type {env_type}" if env_type else ""
        super().__init__(f"no {kind} is registered{whose} under this name; known: {listed(known)}")


def register_name(kind: str, name: str, env_type: str = "") -> None:
    """Let the config accept a name; case does not matter.

    Args:
        kind: `expert` or `gate`.
        name: What the user writes.
        env_type: The env type that it is for; empty is all.
    """
    _names[kind].add((env_type.lower(), name.lower()))


def known_names(kind: str, env_type: str = "") -> list[str]:
    """Return the names that an env type has, sorted."""
    return sorted({name for of, name in _names[kind] if of in ("", env_type.lower())})


def require_name(kind: str, name: str, env_type: str = "") -> None:
    """Check that a name is registered.

    Raises:
        UnknownName: It is not.
    """
    if name.lower() not in known_names(kind, env_type):
        raise UnknownName(kind, name, env_type)


def is_folder(name: str) -> bool:
    """Return whether the name of an expert is the folder of a trained policy instead."""
    return "/" in name or Path(name).is_dir()
