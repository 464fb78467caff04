"""Finds start samplers by the names that the config uses; `base` says what one is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlinf.config.plugin_table import PluginTable
from rlinf.config.plugins import load_extension
from rlinf.config.signatures import Call, check_call, check_method
from rlinf.envs.options import option

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rlinf.envs.start_samplers.base import StartSampler

_BUILTIN = {
    "uniform": "rlinf.envs.start_samplers.weighted",
    "weighted": "rlinf.envs.start_samplers.weighted",
    "failure_rate": "rlinf.envs.start_samplers.failure_rate",
    "learnability": "rlinf.envs.start_samplers.failure_rate",
}
"""For each built-in sampler the module that defines and registers it when imported."""

start_sampler_registry: PluginTable[type[StartSampler]] = PluginTable("start_sampler", _BUILTIN)


def register_start_sampler(
    name: str,
    cls: type[StartSampler],
    *,
    schema: type[BaseModel] | None = None,
    replaces: bool = False,
) -> None:
    """Register a start sampler for `env.train.start_sampler.type`.

    Args:
        name: What the user writes; case does not matter.
        cls: A `StartSampler`; see `rlinf.envs.start_samplers.base`.
        schema: A pydantic model of further keys of the `start_sampler` section.
        replaces: Take the place of whoever has the name.

    Raises:
        ValueError: The name is taken, or the class cannot be used as samplers are.
    """
    what = f"start sampler '{name}'"
    check_call(what, cls, Call(("cfg", "tasks")))
    check_method(what, cls, "weights", Call(()))
    check_method(what, cls, "observe", Call(("outcomes",)))
    start_sampler_registry.register(name, cls, schema=schema, replaces=replaces)


def make_start_sampler(cfg: Any, tasks: Sequence[str]) -> StartSampler:
    """Make the sampler that a config asks for.

    Args:
        cfg: `env.train.start_sampler`; None is the uniform one.
        tasks: Names of the tasks.

    Raises:
        ValueError: There is no such sampler, or its settings do not fit the tasks.
    """
    load_extension()
    cfg = {} if cfg is None else cfg
    return start_sampler_registry.lookup(option(cfg, "type", "uniform"))(cfg, tasks)
