"""Checks a whole config at once and returns it complete, read-only and tracked."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig
from pydantic import BaseModel, ValidationError

from rlinf.config import (  # noqa: F401 (they register)
    checks_adapters,
    checks_agents,
    checks_dagger,
    checks_embodied,
    checks_engines,
    checks_flow,
    checks_observations,
    checks_off_policy,
    checks_offline,
    checks_online,
    checks_reasoning,
    checks_reward_model,
    checks_search,
)
from rlinf.config.alternatives import known, relaxed
from rlinf.config.checks import CheckContext, run_checks
from rlinf.config.errors import ABSENT, ConfigError, Problem
from rlinf.config.explain import data_keys, explain
from rlinf.config.old_keys import replace_synonyms
from rlinf.config.plugins import EXT_KEY, load_extension
from rlinf.config.resolve import Resolved, resolve
from rlinf.config.schema.root import SECTIONS, TASKS, root_model
from rlinf.config.schema.runner import is_module_name
from rlinf.config.specialise import specialise
from rlinf.config.tracked import TrackedConfig, track, untracked, user_keys
from rlinf.config.walk import nullable, section_of

_PLACEMENT_KEYS = (
    "component_placement",
    "cpu_slots_per_node",
    "node_groups",
    "num_gpus_per_node",
    "num_nodes",
)

_READ_HERE = {"runner.task_type", EXT_KEY}
"""Keys that have had their effect here: they chose what to check, and by what."""


def validate_cfg(
    cfg: DictConfig | Mapping[str, Any], *, accelerators_per_node: int | None = None
) -> TrackedConfig:
    """Check a config against the schema and the rules between keys; starts nothing.

    Args:
        cfg: A composed config; it is not changed.
        accelerators_per_node: Accelerators on each machine, if known; otherwise the placement is
            checked as far as the config itself tells.

    Returns:
        A new config with interpolations resolved and defaults filled in. It is read-only, absent
        keys raise, and it knows which of its keys are read.

    Raises:
        ConfigError: The config has problems; all of them are in it.
    """
    resolved = resolve(cfg)
    renamed = replace_synonyms(resolved.data)
    problems = list(resolved.problems)
    try:
        load_extension(_extensions_of(resolved.data))
    except ConfigError as error:
        problems += error.problems
    values, found = _check_schema(resolved)
    problems += found
    if values is not None:
        sizes, found = _world_sizes(values.get("cluster"), accelerators_per_node)
        problems += found
        given = user_keys(cfg) or frozenset(resolved.user_keys)
        config = track(values, _keys_with_effect(given, renamed, values))
        with untracked():
            problems += run_checks(CheckContext(config, sizes, partial=bool(problems)))
    if problems:
        raise ConfigError(_first_of_each(problems))
    return config


def _keys_with_effect(
    given: frozenset[str], renamed: Mapping[str, str], values: Mapping[str, Any]
) -> frozenset[str]:
    """Return the keys that a run is expected to read, under their present names."""
    keys = frozenset(renamed.get(key, key) for key in given) - _READ_HERE
    if "replay_buffer" in (values.get("algorithm") or {}):
        # It says that there are no advantages, which has been checked.
        keys -= {"algorithm.adv_type"}
    return keys


def _check_schema(resolved: Resolved) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Apply the schema; return what is usable of the data, with defaults, and the problems."""
    data, problems = resolved.data, []
    data = {key: value for key, value in data.items() if value is not None or key not in SECTIONS}
    task = _task_of(data)
    data = TASKS[task].fill(data) if task is not None else data
    model = specialise(root_model(task), data, problems)
    data = _fill_empty(model, data)
    try:
        values = known(_dump(model.model_validate(data)))
        if not resolved.unusable:
            return values, problems
    except ValidationError as error:
        told = {problem.path for problem in problems} | resolved.unusable
        found = [explain(item, model, data) for item in error.errors(include_url=False)]
        problems += [problem for problem in found if not _within(problem.path, told)]
    # What is wrong has been reported; the rest can still be checked.
    return _usable(relaxed(model), data, resolved.unusable), problems


def _dump(model: BaseModel) -> dict[str, Any]:
    # Unknown values are not of the type of their keys.
    return model.model_dump(warnings=False)


def _within(path: str, others: set[str]) -> bool:
    return any(path == other or path.startswith((f"{other}.", f"{other}[")) for other in others)


def _fill_empty(model: type[BaseModel], data: Any) -> Any:
    """Read a section with nothing under its name (YAML says null) as one without keys."""
    if not isinstance(data, Mapping):
        return data
    filled = dict(data)
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None and name in filled:
            empty = filled[name] is None and not nullable(field)
            filled[name] = _fill_empty(section, {} if empty else filled[name])
    return filled


def _usable(
    model: type[BaseModel], data: dict[str, Any], unusable: set[str]
) -> dict[str, Any] | None:
    """Leave out what is wrong until the rest is valid; None when nothing useful is left."""
    data = copy.deepcopy(data)
    removed: list[list[Any]] = [path.split(".") for path in unusable if "[" not in path]
    while True:
        try:
            values = known(_dump(model.model_validate(data)))
            break
        except ValidationError as error:
            for item in error.errors(include_url=False):
                keys = data_keys(item, data)
                # A list is right or wrong as a whole.
                positions = [i for i, key in enumerate(keys) if isinstance(key, int)]
                keys = keys[: positions[0]] if positions else keys
                if not keys:
                    return None
                _remove(data, keys)
                removed.append(keys)
    for keys in removed:
        _remove(values, keys)
    return values


def _remove(data: Any, keys: list[Any]) -> None:
    for key in keys[:-1]:
        data = data.get(key) if isinstance(data, dict) else None
    if isinstance(data, dict):
        data.pop(keys[-1], None)


def _world_sizes(
    cluster: dict[str, Any] | None, accelerators_per_node: int | None
) -> tuple[dict[str, int] | None, list[Problem]]:
    from rlinf.config.placement import PlacementError, component_world_sizes, parse_node_groups

    if cluster is None or any(key not in cluster for key in _PLACEMENT_KEYS):
        return None, []
    try:
        if not cluster["component_placement"]:
            parse_node_groups(cluster["node_groups"], cluster["num_nodes"])
            return {}, []
        return component_world_sizes(cluster, accelerators_per_node), []
    except PlacementError as error:
        return None, [_placement_problem(item) for item in error.errors]


def _placement_problem(error: Any) -> Problem:
    message = error.message.removeprefix(f"{error.path}: ")
    return Problem(error.path, error.text or ABSENT, message)


def _task_of(data: Mapping[str, Any]) -> str | None:
    runner = data.get("runner")
    task = runner.get("task_type") if isinstance(runner, Mapping) else None
    return task if isinstance(task, str) and task in TASKS else None


def _extensions_of(data: Mapping[str, Any]) -> list[str]:
    """Return `runner.ext_modules`; what is no name of a module is left to the schema."""
    runner = data.get("runner")
    names = runner.get("ext_modules") if isinstance(runner, Mapping) else None
    given = names if isinstance(names, list) else []
    return [name for name in given if isinstance(name, str) and is_module_name(name)]


def _first_of_each(problems: list[Problem]) -> list[Problem]:
    """Drop repetitions: the same words about the same key."""
    return list({(problem.path, problem.message): problem for problem in problems}.values())
