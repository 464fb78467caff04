"""Adding to replay buffers and drawing from them, beside a plain ring of arrays.

Usage, from the root of the repository:

    python -m benchmarks.replay

The plain ring keeps observations and next observations in two arrays each, as most replay buffers
do, and knows neither episodes nor truncations nor several steps. Stable-Baselines3's buffer joins
if it is installed. All run in one thread, one after the other, in turn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import describe_machine
from rlinf.data.embodied import FinalObservations
from rlinf.data.replay import Priorities, ReplayTrajectory, TrajectoryReplayBuffer

ENVS, ACTIONS, BATCH, EPISODE = 8, 6, 256, 1000


class PlainRing:
    """A dict of arrays."""

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._arrays = {
            "obs": np.empty((capacity, *shape), dtype),
            "next_obs": np.empty((capacity, *shape), dtype),
            "actions": np.empty((capacity, ACTIONS), np.float32),
            "rewards": np.empty(capacity, np.float32),
            "dones": np.empty(capacity, np.float32),
        }
        self._capacity, self._count = capacity, 0
        self._random = np.random.default_rng(0)

    def add(self, **values: np.ndarray) -> None:
        """Add a step of all envs."""
        slots = np.arange(self._count, self._count + ENVS) % self._capacity
        for name, array in self._arrays.items():
            array[slots] = values[name]
        self._count += ENVS

    def sample(self, count: int) -> dict[str, torch.Tensor]:
        """Draw rows."""
        rows = self._random.integers(0, min(self._count, self._capacity), count)
        return {name: torch.from_numpy(a[rows]) for name, a in self._arrays.items()}


class Steps:
    """Makes steps of envs whose episodes are truncated after `EPISODE` steps."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        random = np.random.default_rng(0)
        self._obs = (random.random((257, ENVS, *shape)) * 255).astype(dtype)
        self._actions = random.random((ENVS, ACTIONS), np.float32)
        self._rewards = random.random(ENVS, np.float32)
        self.count = 0

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the next step."""
        step, self.count = self.count, self.count + 1
        done = np.full(ENVS, step % EPISODE == EPISODE - 1, np.float32)
        return {
            "obs": self._obs[step % 257],
            "next_obs": self._obs[(step + 1) % 257],
            "actions": self._actions,
            "rewards": self._rewards,
            "dones": done,
        }

    def trajectory(self, steps: int) -> ReplayTrajectory:
        """Return the next steps."""
        numbers = np.arange(self.count, self.count + steps)
        self.count += steps
        ends = np.flatnonzero(numbers % EPISODE == EPISODE - 1)
        rows = torch.from_numpy(np.repeat(ends, ENVS))
        columns = torch.arange(ENVS).repeat(len(ends))
        truncations = torch.zeros(steps, ENVS, 1, dtype=torch.bool)
        truncations[ends] = True
        final = torch.from_numpy(self._obs[(numbers[ends] + 1) % 257]).flatten(0, 1)
        return ReplayTrajectory(
            obs={"states": torch.from_numpy(self._obs[numbers % 257])},
            actions=torch.from_numpy(np.broadcast_to(self._actions, (steps, ENVS, ACTIONS)).copy())[
                :, :, None
            ],
            rewards=torch.from_numpy(np.broadcast_to(self._rewards, (steps, ENVS)).copy())[
                ..., None
            ],
            terminations=torch.zeros_like(truncations),
            truncations=truncations,
            final=FinalObservations(rows, columns, {"states": final}),
            streams=list(range(ENVS)),
        )


Contestant = tuple[Callable[[int], None], Callable[[int], None], Callable[[], Any]]
"""Fills with so many steps of all envs, as fast as it can; adds so many; draws a batch."""


def contestants(
    capacity: int, shape: tuple[int, ...], dtype: Any, folder: Path
) -> dict[str, Contestant]:
    """Return those that can be measured, by name."""
    steps = Steps(shape, dtype)
    ring = PlainRing(capacity, shape, dtype)

    def add_to_ring(count: int) -> None:
        for _ in range(count):
            ring.add(**steps.arrays())

    found: dict[str, Contestant] = {
        "plain ring": (add_to_ring, add_to_ring, lambda: ring.sample(BATCH)),
        **_stable_baselines(capacity, shape, dtype),
    }
    for name, at_once, kwargs in (
        ("ours, a step at a time", 1, {}),
        ("ours, 64 steps at a time", 64, {}),
        ("ours, 3-step returns", 64, {"n_step": 3}),
        ("ours, by priority", 64, {"priorities": Priorities()}),
        ("ours, memory-mapped", 64, {"folder": folder, "enable_cache": False}),
    ):
        found[name] = _ours(TrajectoryReplayBuffer(capacity, **kwargs), at_once, shape, dtype)
    return found


def _ours(buffer: TrajectoryReplayBuffer, at_once: int, shape: Any, dtype: Any) -> Contestant:
    steps = Steps(shape, dtype)

    def add(count: int, size: int = at_once) -> None:
        for _ in range(-(-count // size)):
            buffer.add_trajectories([steps.trajectory(size)])

    return lambda count: add(count, 256), add, lambda: buffer.sample(BATCH)


def _stable_baselines(capacity: int, shape: Any, dtype: Any) -> dict[str, Contestant]:
    try:
        from gymnasium.spaces import Box
        from stable_baselines3.common.buffers import ReplayBuffer
    except ImportError:
        return {}
    box = Box(0, 255, shape, dtype)
    buffer = ReplayBuffer(capacity, box, Box(-1, 1, (ACTIONS,)), "cpu", ENVS)
    steps = Steps(shape, dtype)

    def add(count: int) -> None:
        for _ in range(count):
            step = steps.arrays()
            infos = [{"TimeLimit.truncated": bool(done)} for done in step["dones"]]
            values = (step[name] for name in ("obs", "next_obs", "actions", "rewards", "dones"))
            buffer.add(*values, infos)

    return {"SB3's ReplayBuffer": (add, add, lambda: buffer.sample(BATCH))}


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - begin)


def measure(name: str, capacity: int, shape: tuple[int, ...], dtype: Any, rounds: int) -> None:
    """Fill all contestants, measure them in turn, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        found = contestants(capacity, shape, dtype, Path(folder))
        adding: dict[str, list[float]] = {key: [] for key in found}
        drawing: dict[str, list[float]] = {key: [] for key in found}
        for fill, _, _ in found.values():
            fill(capacity // ENVS)
        for _ in range(rounds):
            for key, (_, add, draw) in found.items():
                with timed(adding[key]):
                    add(256)
                with timed(drawing[key]):
                    for _ in range(50):
                        draw()
    print(f"\n{name}: {capacity:,} transitions, {ENVS} envs, batches of {BATCH}\n")
    print("| buffer | transitions added per second | batches drawn per second |")
    print("|---|---:|---:|")
    for key in found:
        added = 256 * ENVS / statistics.median(adding[key])
        drawn = 50 / statistics.median(drawing[key])
        print(f"| {key} | {added:,.0f} | {drawn:,.0f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=1_000_000, help="transitions of states")
    parser.add_argument("--pictures", type=int, default=20_000, help="transitions of pictures")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine())
    measure("17 numbers", options.states, (17,), np.float32, options.rounds)
    measure("pictures of 84 x 84 x 3", options.pictures, (84, 84, 3), np.uint8, options.rounds)


if __name__ == "__main__":
    main()
