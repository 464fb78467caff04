"""The program of a run: `program.py FOLDER [ROLE KIND PHASE]` trains in a folder, and is struck."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rlinf.config import validate_cfg
from rlinf.scheduler import Cluster, FlexiblePlacementStrategy
from rlinf.scheduler.cluster import cluster as cluster_module
from tests.e2e_tests.faults.job import STEPS, Loop
from tests.e2e_tests.faults.parts import ROLES, SOON, Fault, MortalKeeper, Part


def config(folder: Path) -> Any:
    """Of a run that saves every step and has time."""
    return validate_cfg(
        {
            "cluster": {
                "num_nodes": 1,
                "component_placement": {"actor,env,rollout": "0"},
                "timeouts": {"call": SOON, "recv": SOON, "channel": SOON},
            },
            "runner": {
                "task_type": "embodied",
                "max_steps": STEPS,
                "run_dir": str(folder / "run"),
                "save_interval": 1,
                "progress": "off",
                "logger": {
                    "log_path": str(folder),
                    "experiment_name": "run",
                    "logger_backends": ["jsonl"],
                },
            },
            # The runner is that of training; its workers have a shape of their own.
            "algorithm": {"adv_type": "raw", "loss_type": "actor"},
            "env": {"train": {"env_type": "gymnasium", "id": "CartPole-v1", "total_num_envs": 1}},
            "rollout": {},
            "actor": {"model": {"model_type": "mlp_policy"}},
        }
    )


def main(folder: Path, fault: Fault | None) -> None:
    """Runs the job and leaves `outcome.json`, unless it is killed."""
    if fault is not None and fault.role == "keeper":
        cluster_module.ChannelKeeper = MortalKeeper
    cfg = config(folder)
    outcome: dict[str, Any] = {"error": None}
    try:
        with Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=str(folder / "logs")) as cluster:
            slots = FlexiblePlacementStrategy([[rank] for rank in range(len(ROLES))])
            team = Part.create_group(fault, folder).launch(cluster, slots, name="team")
            loop = Loop(cfg, team, fault, folder)
            loop.init_workers()
            loop.run()
            outcome |= {"totals": loop.totals_seen, "failures": loop.checkpoints.failures}
    except Exception as error:
        outcome["error"] = type(error).__name__
    (folder / "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Fault(*sys.argv[2:]) if sys.argv[2:] else None)
