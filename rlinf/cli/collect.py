"""`rlinf collect`: episodes of an expert or a policy, written as a LeRobot dataset."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rlinf.cli.overrides import add_config_arguments

_EXAMPLES = """\
examples:
  rlinf collect metaworld_bc_mlp                                       # what the recipe says
  rlinf collect RECIPE collect.policy=scripted collect.episodes=20 collect.save_dir=demos
  rlinf collect RECIPE collect.policy=logs/metaworld_ppo_mlp collect.save_dir=demos
  rlinf collect RECIPE collect.noise=[0,0.5,1] collect.save_dir=mixed  # of mixed quality
  rlinf collect RECIPE env.train.obs_mode=state_image collect.save_dir=seen
"""


def add_parser(commands: Any) -> None:
    """Add `collect` to the sub-commands."""
    parser = commands.add_parser(
        "collect",
        help="write episodes of an expert or a policy as a LeRobot dataset",
        description="Play episodes of env.train in this process, by a scripted expert, a trained "
        "policy or whoever collect.policy names, and write them as a LeRobot dataset (v3.0).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Collect.

    Returns:
        0; 1 if the config is not valid or episodes cannot be collected, 130 if it was interrupted.
    """
    from rlinf.config import ConfigError

    try:
        cfg = _load(args)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    from rlinf.cli.collect_session import CollectSession
    from rlinf.envs.errors import EnvError, MissingSimulator

    try:
        with CollectSession(args.config, cfg) as session:
            return session.run()
    except (ValueError, EnvError, MissingSimulator, OSError) as error:
        print(f"rlinf collect: {error}", file=sys.stderr)
        return 1


def _load(args: argparse.Namespace) -> Any:
    """Compose and check the config, without the sizes of a training that does not take place."""
    from omegaconf import OmegaConf

    from rlinf.config import build_config, validate_cfg

    cfg = build_config(args.config, args.overrides, args.config_path)
    if OmegaConf.select(cfg, "env.eval") is not None:
        overrides = [*args.overrides, "runner.only_eval=true"]
        cfg = build_config(args.config, overrides, args.config_path)
    return validate_cfg(cfg)
