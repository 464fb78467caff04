"""Envs that are stepped with random actions and nothing else, for `benchmarks.embodied`.

This is the most that a rollout could reach on as many processes: no policy, no messages. Processes
are ready before the clock starts; every sample has new envs, as a new training run has.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
from answer import serve


def stock_envs(task: str, envs: int, horizon: int, seed: int) -> Callable[[np.ndarray], None]:
    """MetaWorld's own envs, one of the 50 goals per episode; returns what steps all of them."""
    import metaworld

    benchmark = metaworld.MT1(task, seed=0)
    made = [benchmark.train_classes[task]() for _ in range(envs)]
    draw = random.Random(seed)
    passed = [0]

    def step(actions: np.ndarray) -> None:
        if passed[0] % horizon == 0:
            for env in made:
                env.set_task(draw.choice(benchmark.train_tasks))
                env.reset()
        passed[0] += 1
        for env, action in zip(made, actions, strict=True):
            env.step(action)

    return step


def our_envs(task: str, envs: int, horizon: int, seed: int) -> Callable[[np.ndarray], None]:
    """Return the vector env of this repository, as an env worker has it."""
    from rlinf.envs import get_env_cls

    cfg = {"env_type": "metaworld", "task": task, "max_episode_steps": horizon, "seed": seed}
    cfg |= {"ignore_terminations": True, "auto_reset": True}
    env = get_env_cls("metaworld", cfg)(cfg, num_envs=envs)
    started = [False]

    def step(actions: np.ndarray) -> None:
        if not started[0]:
            started[0] = True
            env.reset()
        env.chunk_step(actions[:, None])

    return step


KINDS = {"stock": stock_envs, "ours": our_envs}


def partner(pipe: Connection, kind: str, task: str, envs: int, horizon: int) -> None:
    """Make envs when told `(seed, steps)`, steps them when told "go"."""
    while (told := pipe.recv()) is not None:
        seed, steps = told
        actions = np.random.default_rng(seed).uniform(-1, 1, (steps, envs, 4)).astype(np.float32)
        step = KINDS[kind](task, envs, horizon, seed)
        pipe.send("ready")
        assert pipe.recv() == "go"
        for index in range(steps):
            step(actions[index])
        pipe.send("done")


class Bare:
    """Processes that step envs."""

    def prepare(self, kind: str, task: str, envs: int, horizon: int, processes: int) -> None:
        """Start the processes.

        Args:
            kind: one of `KINDS`.
            task: of MetaWorld.
            envs: how many in all.
            horizon: steps of an episode.
            processes: how many share the envs.
        """
        context = multiprocessing.get_context("spawn")
        self._envs, self._samples = envs, 0
        self._pipes: list[Connection] = []
        for _ in range(processes):
            mine, other = context.Pipe()
            told = (other, kind, task, envs // processes, horizon)
            context.Process(target=partner, args=told, daemon=True).start()
            self._pipes.append(mine)

    def step(self, steps: int) -> float:
        """Env steps per second over `steps` steps of each env, resets included."""
        for index, pipe in enumerate(self._pipes):
            pipe.send((1000 * self._samples + index, steps))
        self._samples += 1
        for pipe in self._pipes:
            assert pipe.recv() == "ready"
        begin = time.perf_counter()
        for pipe in self._pipes:
            pipe.send("go")
        for pipe in self._pipes:
            assert pipe.recv() == "done"
        return self._envs * steps / (time.perf_counter() - begin)

    def stop(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)


if __name__ == "__main__":
    serve(Bare())
