"""What robots share: configs filled from the environment of their node, and a check by ping."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rlinf.scheduler.hardware.base import NodeHardwareConfig

_C = TypeVar("_C", bound=NodeHardwareConfig)


def fill_from_env(
    config_cls: type[_C],
    node_rank: int,
    configs: Sequence[_C] | None,
    identifier: str,
    environ: Mapping[str, str] | None = None,
) -> list[_C]:
    """Complete the robot configs of a node from its environment.

    A field that is ``None`` is read from the variable of its upper-cased name. With several
    robots the variable has one value for each, separated by commas. A field that is a list
    has its items separated by commas, and robots by semicolons. Without configs, there are as many
    robots as ``identifier`` has values.

    Args:
        config_cls: Config class of the robot type.
        node_rank: Rank of this node.
        configs: Entries of the YAML for this node.
        identifier: Field that every robot must have, such as ``robot_ip``.
        environ: This process's environment by default.

    Raises:
        ValueError: If a variable does not have one value for each robot, or the identifier of a
            robot is in neither place.
    """
    environ = os.environ if environ is None else environ
    filled = list(configs or [])
    if not filled:
        count = len(_split(environ.get(identifier.upper(), ""), ","))
        filled = [config_cls(node_rank) for _ in range(count)]
    for field in dataclasses.fields(config_cls):
        variable = field.name.upper()
        unset = [config for config in filled if getattr(config, field.name) is None]
        if not unset or field.name == "node_rank":
            continue
        if variable in environ:
            values = _values(environ[variable], len(filled), is_list="list" in str(field.type))
            if len(values) != len(filled):
                raise ValueError(
                    f"node {node_rank} has {len(filled)} robots, but {variable} has {len(values)}"
                    f" values: {environ[variable]!r}. Give one value per robot."
                )
            filled = [
                dataclasses.replace(config, **{field.name: value})
                if getattr(config, field.name) is None
                else config
                for config, value in zip(filled, values, strict=True)
            ]
        elif field.name == identifier:
            raise ValueError(
                f"a robot of node {node_rank} has no {identifier}. Set it in hardware.configs, or"
                f" export {variable} on the node before `ray start`."
            )
    return filled


def check_reachable(address: str, what: str) -> None:
    """Ping an address.

    Raises:
        ValueError: If it does not answer, or this node cannot ping.
    """
    advice = "set disable_validate: true in its config to skip this check"
    if shutil.which("ping") is None:
        raise ValueError(f"cannot check {what}: this node has no `ping`. Install it, or {advice}.")
    command = ["ping", "-c", "2", "-W", "1", address]
    try:
        answered = subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        answered = False
    if not answered:
        raise ValueError(
            f"{what} at {address} does not answer to ping. Check its power, cable and address,"
            f" or {advice}."
        )


def _values(text: str, num_robots: int, is_list: bool) -> list[Any]:
    if not is_list:
        return _split(text, ",")
    robots = _split(text, ";") if num_robots > 1 else [text]
    return [_split(robot, ",") for robot in robots]


def _split(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]
