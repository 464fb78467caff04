"""`rlinf check-env`: exercise an environment against the contract and say what is wrong with it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any


def add_parser(commands: Any) -> None:
    """Add `check-env` to the sub-commands."""
    parser = commands.add_parser(
        "check-env",
        help="exercise an environment and say what is wrong with it",
        description="Make an environment and check shapes, seeds, step limits, final observations, "
        "metrics, saved states and speed. Exit code 1 if something is wrong.",
    )
    parser.add_argument(
        "id",
        metavar="ID",
        help="a Gymnasium id, a MetaWorld task, MT10, an env type that needs no id, or the name of "
        "a recipe, whose env.train is meant",
    )
    parser.add_argument(
        "--env-type", metavar="TYPE", help="metaworld, gymnasium, ...; guessed from ID by default"
    )
    parser.add_argument("--steps", metavar="N", type=int, default=200, help="of the random agent")
    parser.add_argument("--num-envs", metavar="N", type=int, default=4, help="slots (default: 4)")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a key of the env's config, such as obs_mode=state_image; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check an env.

    Returns:
        0 if it keeps the contract, 1 if it does not or its recipe is not valid, 2 for wrong usage.
    """
    from rlinf.cli.doctor import format_finding
    from rlinf.config import ConfigError
    from rlinf.envs.checker import check_env
    from rlinf.envs.registry import get_env_cls

    if args.steps < 1 or args.num_envs < 1:
        print("rlinf check-env: --steps and --num-envs are at least 1", file=sys.stderr)
        return 2
    try:
        env_type, cfg = resolve(args.id, args.env_type, args.set)
        env_cls = get_env_cls(env_type)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except (ValueError, ImportError) as error:
        print(f"rlinf check-env: {error}", file=sys.stderr)
        return 2
    findings = []
    for finding in check_env(env_cls, cfg, args.steps, args.num_envs):
        findings.append(finding)
        if not args.json:
            print(format_finding(finding, sys.stdout.isatty()), flush=True)
    failed = sum(finding.status == "fail" for finding in findings)
    if args.json:
        report = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2))
    else:
        print(f"\n{failed} failed" if failed else f"\n{args.id} keeps the contract")
    return 1 if failed else 0


def resolve(name: str, env_type: str | None, changes: list[str]) -> tuple[str, dict[str, Any]]:
    """Work out which env is meant.

    Args:
        name: Id, task, env type or recipe.
        env_type: What the user said it is.
        changes: Further keys, as `KEY=VALUE`.

    Returns:
        Env type and config.

    Raises:
        ValueError: A key is not written as it should be, or a recipe has no env.
        rlinf.config.ConfigError: The recipe is not valid.
    """
    from omegaconf import OmegaConf

    from rlinf.config.plugins import load_extension
    from rlinf.envs.metaworld.tasks import DESCRIPTIONS, SETS
    from rlinf.envs.registry import SupportedEnvType

    load_extension()
    wrong = [change for change in changes if "=" not in change]
    if wrong:
        raise ValueError(f"--set takes KEY=VALUE, not {', '.join(wrong)}")
    if env_type is None:
        if name in SupportedEnvType:
            env_type = SupportedEnvType(name).value
        elif name in DESCRIPTIONS or name.upper() in SETS:
            env_type = "metaworld"
        elif _is_recipe(name):
            cfg = _env_of_recipe(name, changes)
            return cfg["env_type"], cfg
        else:
            env_type = "gymnasium"
    cfg: dict[str, Any] = {"env_type": env_type}
    if name.lower() != env_type.lower():
        cfg[{"metaworld": "task", "libero": "task_suite_name"}.get(env_type, "id")] = name
    return env_type, {**cfg, **OmegaConf.to_container(OmegaConf.from_dotlist(changes))}


def _is_recipe(name: str) -> bool:
    from rlinf.config import config_folders, config_names

    is_path = name.endswith((".yaml", ".yml"))
    return is_path or any(name in config_names(folder) for folder in config_folders())


def _env_of_recipe(name: str, changes: list[str]) -> dict[str, Any]:
    """Return what a recipe says of its training env, without what it says of training in it."""
    from rlinf.config import build_config, to_plain, validate_cfg
    from rlinf.config.schema.env import TrainEnvConfig

    cfg = to_plain(validate_cfg(build_config(name, [f"env.train.{item}" for item in changes])))
    section = (cfg.get("env") or {}).get("train")
    if section is None:
        raise ValueError(f"the recipe {name} has no env.train, so there is no env to check")
    of_training = TrainEnvConfig.model_fields.keys() - {"env_type", "max_episode_steps"}
    return {
        key: value for key, value in section.items() if key not in of_training and value is not None
    }
