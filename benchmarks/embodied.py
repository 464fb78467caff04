"""Speed of embodied training, beside Stable-Baselines3 and beside envs that are only stepped.

Usage, from the root of the repository, on an otherwise idle machine:

    pip install stable-baselines3        # not a dependency of this package
    python -m benchmarks.embodied

If Stable-Baselines3 is to live in an environment of its own (it needs metaworld, too), name that
one's interpreter with --sb3; or leave it out with --only.

`training`: everybody trains PPO on 16 envs of MetaWorld's button-press-v3 with 100-step rollouts,
two layers of 128 tanh units, 10 epochs of 4 minibatches. Ours is `rlinf train metaworld_ppo_mlp`,
read from what the run writes. `bare` steps as many envs with random actions on two processes: the
limit of the rollout phase. Everybody includes resets; nobody includes the start.
Stable-Baselines3 has as many torch threads as there are cores, which is what its users get; for so
small a network one thread is faster, so that is shown as well.

`pipeline`: env and rollout workers on slots of their own, with one pipeline stage and with two,
while the policy costs as much as the simulator. It is slowed by matrix products on a core of its
own (one env worker, one rollout worker), or by waiting, which leaves the cores to the envs as an
accelerator would (two env workers, one rollout worker). How slow it has to be is measured first.

Contestants take turns in every round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.communication import Turns
from benchmarks.harness import Aim, Board, Contestant, Entry, chosen, live, ours, run

OURS = "ours"
SUBPROC, DUMMY = "SB3 SubprocVecEnv", "SB3 DummyVecEnv"
ONE_THREAD = f"{DUMMY}, 1 thread"
SB3 = (SUBPROC, DUMMY, ONE_THREAD)
STOCK, BARE = "bare, stock envs", "bare, our envs"
UNPIPELINED = "ours, 1 stage"
PARTS = ("training", "pipeline")

RECIPE, TASK = "metaworld_ppo_mlp", "button-press-v3"
ENVS, HORIZON, BATCH, EPOCHS = 16, 100, 400, 10
PROCESSES = 2
"""That step the bare envs; the recipe has as many env workers."""

EXTENSION = "benchmarks.slow_policy"
LONG = 900.0
"""Seconds that no sample takes."""


def entries(sb3: str = sys.executable, parts: Sequence[str] = PARTS) -> list[Entry]:
    """Return the contestants of some parts.

    Args:
        sb3: interpreter that has Stable-Baselines3.
        parts: some of `PARTS`.
    """
    known = [ours("embodied_rlinf.py")]
    if "training" in parts:
        cores = os.cpu_count() or 1
        for name, threads in ((SUBPROC, cores), (DUMMY, cores), (ONE_THREAD, 1)):
            vec_env = "SubprocVecEnv" if name == SUBPROC else "DummyVecEnv"
            options = {"prepare": {"vec_env": vec_env}}
            env = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
            known.append(Entry(name, "embodied_sb3.py", python=sb3, env=env, options=options))
        for name, kind in ((STOCK, "stock"), (BARE, "ours")):
            options = {"prepare": {"kind": kind, "processes": PROCESSES}}
            env = ours("").env
            known.append(Entry(name, "embodied_bare.py", env=env, options=options))
    if "pipeline" in parts:
        known.append(Entry(UNPIPELINED, "embodied_rlinf.py", env=ours("").env))
    return known


def check_sb3(python: str) -> None:
    """Look for Stable-Baselines3.

    Raises:
        ValueError: the interpreter does not have it.
    """
    look = "import stable_baselines3, metaworld"
    if subprocess.run([python, "-c", look], capture_output=True).returncode:
        raise ValueError(
            f"{python} has no Stable-Baselines3 or no metaworld: pip install stable-baselines3, "
            "name another interpreter with --sb3, or leave it out with "
            f"--only '{OURS}' '{STOCK}' '{BARE}'"
        )


# -- training --------------------------------------------------------------------------------------


def measure_training(board: Board, turns: Turns, updates: int) -> None:
    """Env steps per second: all in all, and while rolling out."""
    faster = [Aim(1.8, name, at_least=True) for name in SB3]
    total = board.row("end to end", "env steps/s", 0, faster)
    near = [Aim(0.8, name, at_least=True) for name in (BARE, STOCK)]
    rollout = board.row("rollout phase", "env steps/s", 0, near)
    update = board.row(f"one update, {EPOCHS} x {ENVS * HORIZON // BATCH} minibatches", "s", 3)
    shape = {"rollout_steps": HORIZON, "batch": BATCH, "epochs": EPOCHS}

    def sample(contestant: Contestant) -> None:
        if contestant.name in (STOCK, BARE):
            speed = contestant.ask("step", timeout=LONG, steps=updates * HORIZON)
            rollout.add(contestant.name, speed)
            return
        if contestant.name == OURS:
            found = train(contestant, updates, [])
        else:
            found = contestant.ask("train", timeout=LONG, updates=updates, **shape)
        for row, key in ((total, "total"), (rollout, "rollout"), (update, "update")):
            row.add(contestant.name, found[key])

    def prepare(contestant: Contestant) -> None:
        contestant.ask("prepare", timeout=LONG, task=TASK, envs=ENVS, horizon=HORIZON)

    turns.once(prepare, but=(OURS, UNPIPELINED))
    turns.sample(sample, but=(UNPIPELINED,))


def train(
    contestant: Contestant, updates: int, overrides: Sequence[str], extension: str | None = None
) -> dict[str, float]:
    """One run of our recipe; what comes after training is cut short."""
    short = [f"runner.max_epochs={updates}", "runner.eval_episodes=20"]
    short += ["env.eval.video_cfg.save_video=false", "runner.progress=plain"]
    return contestant.ask(
        "train",
        timeout=LONG,
        recipe=RECIPE,
        overrides=[*short, *overrides],
        extension=extension,
    )


# -- pipelining ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slowness:
    """A way to slow the policy, and the placement in which it can overlap with the envs.

    Attributes:
        label: for the table.
        key: of the slow policy.
        first: value of the first trial; the cost grows in proportion.
        env: slots of the env workers.
        rollout: slot of the rollout worker.
        envs: how many.
    """

    label: str
    key: str
    first: float
    env: str
    rollout: str
    envs: int

    def overrides(self, amount: float, stages: int) -> list[str]:
        """Return what the recipe needs to be so slow."""
        placed = f"{{actor:0,rollout:{self.rollout},env:{self.env}}}"
        amount = round(amount) if isinstance(self.first, int) else round(amount, 4)
        return [
            f"cluster.component_placement={placed}",
            f"env.train.total_num_envs={self.envs}",
            f"rollout.pipeline_stage_num={stages}",
            "actor.model.model_type=slow_mlp_policy",
            f"actor.model.{self.key}={amount}",
            "algorithm.update_epoch=1",
        ]


SLOWNESSES = [
    slowness
    for envs in (ENVS, 4 * ENVS)
    for slowness in (
        Slowness("a policy that computes, 1 env worker", "slow_passes", 60, "0", "1", envs),
        Slowness("a policy that waits, 2 env workers", "slow_ms", 0.2, "0-1", "2", envs),
    )
]


class Pipelining:
    """Two pipeline stages beside one, with a policy that is slowed in one way."""

    def __init__(self, board: Board, slowness: Slowness, updates: int):
        self._slowness = slowness
        self._updates = updates
        self._found: dict[int, list[dict[str, float]]] = {}
        self._amount = slowness.first
        self._label = f"{slowness.label}, {slowness.envs} envs"
        aims = [Aim(1.5, UNPIPELINED, at_least=True)]
        self._rollout = board.row(f"rollout phase, {self._label}", "env steps/s", 0, aims)

    def calibrate(self, contestant: Contestant) -> None:
        """Find out how slow a policy is that takes as long as the envs do, unpipelined."""
        for _ in range(2):
            found = self._train(contestant, min(self._updates, 3), stages=1)
            self._amount *= found["env_step"] / found["predict"]
        _say(f"{self._label}: {self._slowness.key} = {self._amount:.3g}")

    def sample(self, contestant: Contestant) -> None:
        """Record one run of a contestant."""
        stages = 1 if contestant.name == UNPIPELINED else 2
        found = self._train(contestant, self._updates, stages)
        self._rollout.add(contestant.name, found["rollout"])
        self._found.setdefault(stages, []).append(found)

    def notes(self) -> list[str]:
        """Return how long envs and policy were busy in a rollout: whether they cost the same."""
        lines = []
        for stages, found in sorted(self._found.items()):
            rollout, env, policy = (
                statistics.median(times[key] for times in found)
                for key in ("generate_rollouts", "env_step", "predict")
            )
            lines.append(
                f"{self._label}, stages {stages}: {rollout:.3f} s per rollout, {env:.3f} s in the "
                f"envs, {policy:.3f} s in the policy."
            )
        return lines

    def _train(self, contestant: Contestant, updates: int, stages: int) -> dict[str, float]:
        overrides = self._slowness.overrides(self._amount, stages)
        return train(contestant, updates, overrides, EXTENSION)


def measure_pipeline(board: Board, turns: Turns, notes: list[str], updates: int) -> None:
    """The rollout phase with two pipeline stages, beside that with one."""
    others = (*SB3, STOCK, BARE)
    for slowness in SLOWNESSES:
        pipelining = Pipelining(board, slowness, updates)
        turns.once(pipelining.calibrate, but=(*others, OURS))
        turns.sample(pipelining.sample, but=others)
        notes += pipelining.notes()


# -- running ---------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=3, metavar="N", help="samples of each (3)")
    options.add_argument("--updates", type=int, default=10, metavar="N", help="per sample (10)")
    options.add_argument("--quick", action="store_true", help="1 round of 3: does it work?")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--only", nargs="+", metavar="NAME", help="contestants to run")
    options.add_argument(
        "--sb3", metavar="PYTHON", default=sys.executable, help="interpreter that has it"
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="where to write all samples")
    return options


def main() -> int:
    options = parser()
    args = options.parse_args()
    try:
        known = chosen(entries(args.sb3, args.parts), args.only)
        if any(entry.program == "embodied_sb3.py" for entry in known):
            check_sb3(args.sb3)
    except ValueError as error:
        options.error(str(error))
    rounds, updates = (1, 3) if args.quick else (args.rounds, args.updates)
    board = Board([entry.name for entry in known])
    notes = [_note(rounds, updates)]

    def measure(folder: Path) -> None:
        with live(known, folder) as running:
            turns = Turns(board, running, rounds)
            if "training" in args.parts:
                _say("training")
                measure_training(board, turns, updates)
            if "pipeline" in args.parts:
                _say("pipeline")
                measure_pipeline(board, turns, notes, min(updates, 4))

    ratios = [(OURS, name) for name in (*SB3, BARE, UNPIPELINED)]
    return run(board, measure, ratios, notes, args.json)


def _note(rounds: int, updates: int) -> str:
    return (
        f"{rounds} rounds, {updates} rollouts of {ENVS} x {HORIZON} env steps with an update each "
        f"per sample. Bare stepping uses {PROCESSES} processes and random actions. With a slowed "
        "policy ours has 2 pipeline stages; time in the envs is that of the slowest env worker."
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
