"""The registry of hardware types: how each is found on a node and configured in YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from rlinf.config.placement.errors import PlacementError, Source, did_you_mean

_H = TypeVar("_H", bound="type[Hardware]")
_C = TypeVar("_C", bound="type[NodeHardwareConfig]")


@dataclass
class HardwareInfo:
    """One piece of hardware on a node."""

    type: str
    model: str = ""


@dataclass
class HardwareResource:
    """All pieces of one hardware type on a node."""

    type: str
    infos: list[HardwareInfo] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of pieces."""
        return len(self.infos)


@dataclass
class NodeHardwareConfig:
    """One entry of ``hardware.configs``; subclasses add the fields of their type."""

    node_rank: int

    registry: ClassVar[dict[str, type[NodeHardwareConfig]]] = {}

    @staticmethod
    def register_hardware_config(hardware_type: str) -> Callable[[_C], _C]:
        """Class decorator: the decorated dataclass configures ``hardware_type``."""

        def decorate(config_cls: _C) -> _C:
            NodeHardwareConfig.registry[hardware_type] = config_cls
            return config_cls

        return decorate

    @staticmethod
    def from_mapping(
        hardware_type: str, entry: Mapping[str, Any], path: str = "hardware"
    ) -> NodeHardwareConfig:
        """Build the config of a hardware type from its YAML entry.

        Raises:
            PlacementError: For an unknown type or field, with the known ones.
        """
        Hardware.get(hardware_type, f"{path}.type")
        config_cls = NodeHardwareConfig.registry.get(hardware_type, NodeHardwareConfig)
        names = [f.name for f in dataclasses.fields(config_cls)]
        for key in entry:
            if key not in names:
                raise Source(path, str(key)).error(
                    f"{hardware_type} has no field {key!r}",
                    allowed=f"the fields {', '.join(names)}",
                    fix=did_you_mean(str(key), names),
                )
        try:
            return config_cls(**entry)
        except (TypeError, ValueError) as error:
            raise PlacementError(path, str(error)) from error


class Hardware:
    """A hardware type; subclasses register themselves and find their pieces on a node."""

    HW_TYPE: ClassVar[str] = ""
    registry: ClassVar[dict[str, type[Hardware]]] = {}
    default_types: ClassVar[list[str]] = []

    @staticmethod
    def register(is_default_hw: bool = False) -> Callable[[_H], _H]:
        """Class decorator that adds a type to the registry.

        Args:
            is_default_hw: Look for it on every node, also when no config names it.
        """

        def decorate(hardware_cls: _H) -> _H:
            if not hardware_cls.HW_TYPE:
                raise TypeError(f"{hardware_cls.__name__} needs a HW_TYPE")
            Hardware.registry[hardware_cls.HW_TYPE] = hardware_cls
            if is_default_hw and hardware_cls.HW_TYPE not in Hardware.default_types:
                Hardware.default_types.append(hardware_cls.HW_TYPE)
            return hardware_cls

        return decorate

    @staticmethod
    def get(hardware_type: str, path: str = "hardware.type") -> type[Hardware]:
        """Return the class of a type.

        Raises:
            PlacementError: (a ``ValueError``) For an unknown type, with the known ones.
        """
        if hardware_type not in Hardware.registry:
            known = sorted(Hardware.registry)
            raise Source(path, hardware_type).error(
                f"unsupported hardware type {hardware_type!r}",
                allowed=f"one of {', '.join(known)}",
                fix=did_you_mean(hardware_type, known)
                or "register it with Hardware.register in a module named by RLINF_EXT_MODULE",
            )
        return Hardware.registry[hardware_type]

    @classmethod
    def enumerate(
        cls, node_rank: int, configs: Sequence[NodeHardwareConfig] | None = None
    ) -> HardwareResource | None:
        """Find the pieces of this type on this node.

        Args:
            node_rank: Rank of the node that this runs on.
            configs: Entries of the config for this node.

        Returns:
            The pieces, or ``None`` if the node has none.
        """
        raise NotImplementedError


def enumerate_hardware(
    node_rank: int, hardware: Sequence[Mapping[str, Any]] = ()
) -> list[HardwareResource]:
    """Return everything on this node: the default types, and those that the config names for it.

    Args:
        node_rank: Rank of the node that this runs on.
        hardware: ``{type, configs}`` entries for this node. Without configs the type configures
            itself from the environment.
    """
    configs: dict[str, list[NodeHardwareConfig]] = {kind: [] for kind in Hardware.default_types}
    for entry in hardware:
        built = [NodeHardwareConfig.from_mapping(entry["type"], c) for c in entry["configs"]]
        configs.setdefault(entry["type"], []).extend(built)
    found = [Hardware.get(kind).enumerate(node_rank, configs[kind]) for kind in configs]
    return [resource for resource in found if resource is not None and resource.count]
