"""Which packages a config needs beyond the core, and which of them this Python does not have."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rlinf.config.errors import show
from rlinf.utils.extras import install_hint


@dataclass(frozen=True)
class Need:
    """Modules that a config needs when one of its keys has some value.

    Attributes:
        key: path of the key, with `*` for any part: `env.*.env_type`.
        values: what it may be, in lower case, with `*` likewise; of a list, any of its entries.
        modules: names under which Python imports them.
        extra: extra of this package that brings them; empty if none does.
        packages: what brings them otherwise, as pip names it.
        in_driver: the driver imports them, wherever the workers are.
    """

    key: str
    values: tuple[str, ...]
    modules: tuple[str, ...]
    extra: str = ""
    packages: tuple[str, ...] = ()
    in_driver: bool = False

    def is_of(self, path: str, value: Any) -> bool:
        """Return whether a config with this value under this path needs the modules."""
        return fnmatchcase(path, self.key) and any(
            fnmatchcase(str(value).lower(), pattern) for pattern in self.values
        )


_ENV, _VIDEO, _MODEL = "env.*.env_type", "env.*.video_cfg.save_video", "*.model.model_type"
_LOGGER, _ENGINE = "runner.logger.logger_backends", "rollout.rollout_backend"
_LANGUAGE_MODELS = ("qwen2.5", "qwen3", "llama", "hf_causal_lm")
_VLA_POLICIES = ("openvla", "openvla_oft", "smolvla", "openpi", "gr00t")

_needs = [
    Need(_ENV, ("metaworld",), ("gymnasium", "metaworld", "mujoco"), "embodied"),
    Need(_ENV, ("gymnasium",), ("gymnasium",), "embodied"),
    Need(_ENV, ("envpool",), ("envpool",), packages=("envpool>=1.2.5",)),
    Need(_ENV, ("maniskill",), ("mani_skill",), packages=("mani-skill",)),
    Need(_ENV, ("libero",), ("libero",), packages=("rlinf-libero",)),
    Need(_VIDEO, ("true",), ("imageio", "imageio_ffmpeg"), "embodied"),
    Need(_MODEL, (*_LANGUAGE_MODELS, *_VLA_POLICIES), ("transformers",), "reasoning"),
    Need("*.model.is_lora", ("true",), ("peft",), "reasoning"),
    Need("agentloop.mcp_servers.*.start_timeout", ("*",), ("mcp",), "agents"),
    Need("data.type", ("reasoning_gym",), ("reasoning_gym",), "reasoning"),
    Need("data.type", ("verifiers",), ("verifiers",), packages=("verifiers>=0.1.14,<0.2",)),
    Need("agentloop.type", ("verifiers",), ("verifiers",), packages=("verifiers>=0.1.14,<0.2",)),
    Need("data.*_data_paths", ("*.parquet",), ("pyarrow",), "reasoning"),
    Need("reward.reward_type", ("math",), ("math_verify",), "reasoning"),
    Need("reward.reward_type", ("reasoning_gym",), ("reasoning_gym",), "reasoning"),
    Need(_ENGINE, ("vllm",), ("vllm",), packages=("vllm",)),
    Need(_ENGINE, ("sglang",), ("sglang",), packages=("sglang",)),
    Need(_LOGGER, ("tensorboard",), ("tensorboard",), packages=("tensorboard",), in_driver=True),
    Need(_LOGGER, ("wandb",), ("wandb",), "tracking", in_driver=True),
    Need(_LOGGER, ("swanlab",), ("swanlab",), "tracking", in_driver=True),
]


def register_need(need: Need) -> None:
    """Add what a plug-in needs, so that its absence is told before anything starts.

    Args:
        need: such as `Need("env.*.env_type", ("maze",), ("mazelib",), packages=("mazelib",))`.
    """
    if need not in _needs:
        _needs.append(need)


def registered_needs() -> tuple[Need, ...]:
    """Return what the built-in plug-ins need, and those that were registered."""
    return tuple(_needs)


@dataclass(frozen=True)
class MissingExtra:
    """What one value of a config needs and this Python does not have.

    Attributes:
        path: of the key.
        value: of the key.
        modules: what cannot be found.
        need: what asks for them.
    """

    path: str
    value: Any
    modules: tuple[str, ...]
    need: Need

    def __str__(self) -> str:
        """Return the key, its value and the modules."""
        return f"{self.path} = {show(self.value)}: {', '.join(self.modules)}"


class ExtrasMissing(ValueError):
    """This Python does not have what a run needs; says all of it and the command to install it."""

    def __init__(self, missing: Iterable[MissingExtra]) -> None:
        """Keep what is missing and write it into one message."""
        self.missing = list(missing)
        lines = "\n".join(f"  {item}" for item in self.missing)
        super().__init__(
            "the run needs packages that this Python does not have; nothing was started\n"
            f"{lines}\ninstall them: {install_command(self.missing)}"
        )

    def __reduce__(self) -> tuple:
        """Keep what is missing when the error is sent to another process."""
        return (type(self), (self.missing,))


def missing_extras(cfg: Mapping[str, Any]) -> list[MissingExtra]:
    """Return what a config needs and this Python does not have; nothing is imported.

    Workers on other nodes, or under another interpreter, may have what the driver does not. So for
    a run of several nodes, or with `python_interpreter_path`, only what the driver itself imports
    is looked for; the rest is left to the workers, which say what they lack when they start.

    Args:
        cfg: a whole config, valid, plain data.
    """
    here = _runs_here(cfg.get("cluster") or {})
    found: dict[Need, MissingExtra] = {}
    for path, value in _leaves(cfg):
        for need in _needs:
            if need in found or not (here or need.in_driver) or not need.is_of(path, value):
                continue
            absent = tuple(module for module in need.modules if not _is_here(module))
            if absent:
                found[need] = MissingExtra(path, value, absent, need)
    return [found[need] for need in _needs if need in found]


def install_command(missing: Iterable[MissingExtra]) -> str:
    """Return the one command that installs all that is missing."""
    needs = [item.need for item in missing]
    extras = dict.fromkeys(need.extra for need in needs if need.extra)
    packages = dict.fromkeys(name for need in needs if not need.extra for name in need.packages)
    return install_hint(*extras, packages=packages)


def require_extras(cfg: Mapping[str, Any]) -> None:
    """Refuse a run that lacks packages; see `missing_extras`.

    Raises:
        ExtrasMissing: something is missing.
    """
    missing = missing_extras(cfg)
    if missing:
        raise ExtrasMissing(missing)


def _runs_here(cluster: Mapping[str, Any]) -> bool:
    """Return whether all workers run on the node of the driver, under its interpreter."""
    environments = [
        environment
        for group in cluster.get("node_groups") or ()
        for environment in group.get("env_configs") or ()
    ]
    others = any(environment.get("python_interpreter_path") for environment in environments)
    return cluster.get("num_nodes", 1) == 1 and not others


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each key; of a list, each entry under the path of the list."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _leaves(value, path)
    else:
        yield path, node


def _is_here(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return importlib.util.find_spec(module) is not None
