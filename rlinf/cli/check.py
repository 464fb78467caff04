"""`rlinf check`: validate a config and show where its processes go; starts nothing."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.cli.overrides import add_config_arguments
from rlinf.config.task_types import LANGUAGE

if TYPE_CHECKING:
    from rlinf.config import Problem

_SIZES_HELP = "accelerators on each node; by default what the config says, or this machine has"


def add_parser(commands: Any) -> None:
    """Add `check` to the sub-commands."""
    parser = commands.add_parser(
        "check",
        help="validate a config and print its placement, batch arithmetic and memory",
        description="Validate a config; print which process of which component runs on which node "
        "and device, how samples become updates, and how much memory each process will take. "
        "Needs no cluster and no GPU.",
    )
    add_config_arguments(parser, optional=True)
    parser.add_argument("--gpus-per-node", metavar="N", type=_count, help=_SIZES_HELP)
    parser.add_argument(
        "--no-memory", action="store_true", help="do not predict memory, which takes some seconds"
    )
    parser.add_argument(
        "--show-sample",
        action="store_true",
        help="show one prompt with its tokens and rewards, or one step of an env",
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema and stop")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check a config.

    Returns:
        0 if it is valid, 1 if it is not, 2 for wrong usage.
    """
    from rlinf.config import ConfigError, json_schema
    from rlinf.config.requirements import install_command

    if args.schema:
        print(json.dumps(json_schema(), indent=2))
        return 0
    if args.config is None:
        print("rlinf check: name a CONFIG, or ask for the --schema", file=sys.stderr)
        return 2
    try:
        report = inspect_config(
            args.config,
            args.overrides,
            args.config_path,
            args.gpus_per_node,
            memory=not args.no_memory,
            sample=args.show_sample,
        )
    except ConfigError as error:
        if args.json:
            problems = [asdict(problem) for problem in error.problems]
            print(json.dumps({"ok": False, "problems": problems}, indent=2, default=str))
        else:
            print(error, file=sys.stderr)
        return 1
    memory, missing = report.pop("memory_lines", []), report.pop("missing")
    packages, sample = report.pop("missing_extras"), report.pop("sample_lines", [])
    code = 1 if args.show_sample and report["sample"] is None else 0
    if args.json:
        report["missing"] = [asdict(problem) for problem in missing]
        report["missing_extras"] = [
            {"path": item.path, "value": item.value, "modules": item.modules} for item in packages
        ]
        report["install"] = install_command(packages) if packages else None
        print(json.dumps({"ok": True, "problems": [], **report}, indent=2, default=str))
        return code
    print(f"{args.config}: valid, task type {report['task_type']}")
    if report["placement_map"]:
        print(f"\n{report['placement_map']}")
    if report["arithmetic"]:
        print("\nbatch arithmetic")
        print("\n".join(f"  {line}" for line in report["arithmetic"]))
    if missing:
        print("\nnot on this machine; the run needs them where it runs")
        for problem in missing:
            print(f"  {problem.path}: {problem.message}; {problem.hint}")
    if packages:
        print("\npackages that the run needs and this Python does not have")
        print("\n".join(f"  {item}" for item in packages))
        print(f"  install them: {install_command(packages)}")
    if memory:
        print("\nmemory of each process at its peak")
        print("\n".join(f"  {line}" for line in memory))
    if sample:
        print("\n".join(["", *sample]))
    return code


def inspect_config(
    name: str,
    overrides: list[str],
    config_path: str | None = None,
    gpus_per_node: int | None = None,
    *,
    memory: bool = False,
    sample: bool = False,
) -> dict[str, Any]:
    """Validate a config and works out its placement.

    Args:
        name: Name of a recipe, or path to a YAML file.
        overrides: Hydra overrides.
        config_path: Folder of the config.
        gpus_per_node: Accelerators on each node; None is what the config or this machine has.
        memory: Predict what each process will take.
        sample: Make one sample in this process.

    Returns:
        `task_type`, `placement` (per component one entry per process), `placement_map` (the same
        as text), `arithmetic` (lines of text), `missing` (what is named and not here, as
        problems) and `missing_extras` (packages that it needs and that are not here); on request
        `memory` (bytes by component and part) and `memory_lines` (the same as text, or why there is
        no prediction), `sample` (what `rlinf.cli.samples` gives, None if there is none) and
        `sample_lines`.

    Raises:
        rlinf.config.ConfigError: The config is not valid; holds every problem.
    """
    from rlinf.cli.missing_files import missing_files
    from rlinf.config import (
        ConfigError,
        Problem,
        batch_arithmetic,
        build_config,
        missing_extras,
        to_plain,
        validate_cfg,
    )
    from rlinf.config.placement import PlacementError
    from rlinf.scheduler.placement import ComponentPlacement, format_placement_map
    from rlinf.scheduler.topology.topology import assume_topology

    cfg = validate_cfg(
        build_config(name, overrides, config_path), accelerators_per_node=gpus_per_node
    )
    report: dict[str, Any] = {"task_type": cfg.runner.task_type, "placement": {}}
    sizes: dict[str, int] = {}
    report["placement_map"] = ""
    if cfg.cluster.component_placement:
        try:
            topology = assume_topology(cfg.cluster, gpus_per_node)
            # Components may share resources in any way, as in the entry scripts.
            placement = ComponentPlacement(cfg, topology)
            for component in placement.components:
                report["placement"][component] = [
                    _entry(process) for process in placement.get_placement(component)
                ]
        except PlacementError as error:
            raise ConfigError([Problem(error.path, error.text, str(error))]) from error
        sizes = {name: len(processes) for name, processes in report["placement"].items()}
        report["placement_map"] = format_placement_map(placement)
    wrong = [problem for problem in (_unfit_distribution(cfg), _unfit_reward_model(cfg)) if problem]
    if wrong:
        raise ConfigError(wrong)
    report["arithmetic"] = batch_arithmetic(cfg, sizes)
    report["missing"] = missing_files(to_plain(cfg))
    report["missing_extras"] = missing_extras(to_plain(cfg))
    trains = cfg.runner.task_type in ("embodied", *LANGUAGE)
    if memory and trains and {"actor", "rollout"} <= report["placement"].keys():
        report |= _memory(cfg, report["placement"])
    if sample:
        report |= _sample(cfg)
    return report


def _unfit_distribution(cfg: Any) -> Problem | None:
    """Say whether the distribution that a policy is to have does not fit the env's actions."""
    if cfg.runner.task_type != "embodied" or cfg.env.train is None:
        return None
    name = cfg.actor.model.get("distribution", "auto")
    if name == "auto":
        return None
    # Imported here: only few configs name a distribution, and torch takes a second.
    from rlinf.cli.env_sizes import SizesUnknown, sizes_of_env
    from rlinf.config import Problem
    from rlinf.models.embodiment.distributions import UnfitDistribution, choose_distribution

    try:
        spec, _ = sizes_of_env(cfg)
        choose_distribution(name, spec.action_choices, spec.action_low, spec.action_high)
    except SizesUnknown:
        return None
    except UnfitDistribution as error:
        return Problem("actor.model.distribution", name, error.reason, error.hint)
    return None


def _unfit_reward_model(cfg: Any) -> Problem | None:
    """Say whether a reward model that is on this machine does not fit the env's observations."""
    from rlinf.config import Problem
    from rlinf.config.scoring import uses_reward_model

    if not uses_reward_model(cfg) or cfg.runner.only_eval:
        return None
    path = cfg.reward.model.model_path
    if not Path(path).expanduser().exists():
        return None
    # Imported here: torch takes a second.
    from rlinf.cli.env_sizes import SizesUnknown, sizes_of_env
    from rlinf.workers.reward.reward_models import build_reward_model

    try:
        build_reward_model(path, sizes_of_env(cfg)[0])
    except SizesUnknown:
        return None
    except ValueError as error:
        return Problem("reward.model.model_path", path, str(error))
    return None


def _memory(cfg: Any, placement: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    from rlinf.cli import memory

    try:
        workers = memory.predict_memory(cfg, placement)
    except memory.CannotPredict as error:
        return {"memory": None, "memory_lines": [f"not predicted: {error}"]}
    return {"memory": memory.as_data(workers), "memory_lines": memory.as_lines(workers)}


def _sample(cfg: Any) -> dict[str, Any]:
    from rlinf.cli import samples
    from rlinf.cli.sample_parts import NoSample

    try:
        found = samples.sample_of(cfg)
    except NoSample as error:
        return {"sample": None, "sample_lines": [f"no sample: {error}"]}
    return {"sample": found, "sample_lines": samples.as_lines(found)}


def _entry(process: Any) -> dict[str, Any]:
    return {
        "rank": process.rank,
        "node": process.cluster_node_rank,
        "kind": process.resource_kind,
        "devices": list(process.local_hardware_ranks),
    }


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 upwards")
    return int(text)
