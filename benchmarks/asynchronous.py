"""Speed of embodied training whose rollouts go on while the learner updates.

Usage, from the root of the repository, on an otherwise idle machine with two cores or more:

    python -m benchmarks.asynchronous

The job is `metaworld_async_ppo_mlp`: one env process that also acts, on one core, and a learner
with one thread on another. The learner costs as much as the rollout: how many passes over a rollout
that takes is measured first. `algorithm.max_policy_age` is 0, 1 and 2; contestants take turns in
every round. With age 0 rollout and update take turns, so twice its speed is the limit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.communication import Turns
from benchmarks.embodied import LONG
from benchmarks.harness import Aim, Board, Contestant, Entry, live, ours, run

RECIPE = "metaworld_async_ppo_mlp"
AGES = {"age 0": 0, "age 1": 1, "age 2": 2}
OURS, TURNS = "age 1", "age 0"


def entries() -> list[Entry]:
    """Return the contestants: the same job, rollouts further and further ahead."""
    env = ours("").env
    return [Entry(name, "embodied_rlinf.py", env=env) for name in AGES]


class Overlap:
    """The job with each age.

    Args:
        board: where samples go.
        updates: of a sample.
    """

    def __init__(self, board: Board, updates: int):
        aims = [Aim(1.6, TURNS, at_least=True)]
        self._speed = board.row("end to end", "env steps/s", 0, aims)
        self._rollout = board.row("a rollout", "s", 2)
        self._update = board.row("an update", "s", 2)
        self._updates = updates
        self._passes = 10.0

    def calibrate(self, contestant: Contestant) -> None:
        """Find the passes over a rollout that take as long as the rollout."""
        if AGES[contestant.name] != 0:
            return
        for _ in range(2):
            found = self._train(contestant, 4)
            self._passes = max(1.0, self._passes * found["interact"] / found["update"])
        print(f"update_epoch = {self._passes:.0f}", file=sys.stderr, flush=True)

    def sample(self, contestant: Contestant) -> None:
        """Record one run of a contestant."""
        found = self._train(contestant, self._updates)
        for row, key in (
            (self._speed, "total"),
            (self._rollout, "interact"),
            (self._update, "update"),
        ):
            row.add(contestant.name, found[key])

    def _train(self, contestant: Contestant, updates: int) -> dict[str, float]:
        return contestant.ask(
            "train",
            timeout=LONG,
            recipe=RECIPE,
            overrides=[
                f"algorithm.max_policy_age={AGES[contestant.name]}",
                f"algorithm.update_epoch={round(self._passes)}",
                f"runner.max_epochs={updates}",
                "runner.eval_at_start=false",
                "runner.eval_episodes=4",
                "env.eval.video_cfg.save_video=false",
                "runner.progress=plain",
            ],
        )


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=3, metavar="N", help="samples of each (3)")
    options.add_argument("--updates", type=int, default=20, metavar="N", help="per sample (20)")
    options.add_argument("--quick", action="store_true", help="1 round of 5: does it work?")
    options.add_argument("--json", type=Path, metavar="FILE", help="where to write all samples")
    args = options.parse_args()
    known = entries()
    rounds, updates = (1, 5) if args.quick else (args.rounds, args.updates)
    board = Board([entry.name for entry in known], ours=OURS)

    def measure(folder: Path) -> None:
        with live(known, folder) as running:
            turns, overlap = Turns(board, running, rounds), Overlap(board, updates)
            turns.once(overlap.calibrate)
            turns.sample(overlap.sample)

    note = (
        f"{rounds} rounds of {updates} steps of 1,600 env steps each, one env process and a "
        "learner with one thread; medians over steps, and over rounds."
    )
    return run(board, measure, [(OURS, TURNS), ("age 2", TURNS)], [note], args.json)


if __name__ == "__main__":
    sys.exit(main())
