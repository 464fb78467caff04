"""A replay buffer that is slow and obvious: a list of rows, an episode is a list of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlinf.data.embodied import FinalObservations
from rlinf.data.replay import ReplayTrajectory


@dataclass
class Row:
    obs: dict[str, Any]
    action: torch.Tensor
    rewards: list[float]
    valid: list[bool]
    intervened: list[bool]
    terminated: bool
    truncated: bool
    final: dict[str, Any] | None
    usable: bool
    version: int
    serial: int
    episode: list[Row]
    alive: bool = True

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    @property
    def next(self) -> Row | None:
        place = next(i for i, row in enumerate(self.episode) if row is self)
        return self.episode[place + 1] if place + 1 < len(self.episode) else None

    @property
    def drawable(self) -> bool:
        return self.usable and (self.ended or self.next is not None)


class SlowReplay:
    """What `TrajectoryReplayBuffer` should hold, and what should come of a row."""

    def __init__(self, capacity: int, gamma: float, per: str) -> None:
        self.capacity, self.gamma, self.per = capacity, gamma, per
        self.rows: list[Row] = []
        self.count = 0
        self.open: dict[Any, list[Row]] = {}

    def add(self, trajectory: ReplayTrajectory) -> None:
        steps, envs, chunk = trajectory.rewards.shape
        streams = trajectory.streams or [object() for _ in range(envs)]
        for t in range(steps):
            for b in range(envs):
                if trajectory.begins is not None and trajectory.begins[t, b]:
                    self.open.pop(streams[b], None)
                valid = trajectory.valid[t, b].tolist()
                if any(valid):
                    self._row(trajectory, t, b, streams[b], valid, chunk)

    def _row(self, trajectory, t, b, stream, valid, chunk) -> None:
        def ends(flags):
            return any(flags[t, b, c] and valid[c] for c in range(chunk))

        episode = self.open.get(stream)
        if episode is None or not episode[-1].alive:
            episode = []
        terminated = ends(trajectory.terminations)
        final = None
        if trajectory.final is not None:
            for i, (step, env) in enumerate(
                zip(trajectory.final.steps, trajectory.final.envs, strict=True)
            ):
                if (step, env) == (t, b):
                    final = pick(trajectory.final.obs, i)
        row = Row(
            obs=pick(trajectory.obs, (t, b)),
            action=trajectory.actions[t, b],
            rewards=trajectory.rewards[t, b].tolist(),
            valid=valid,
            intervened=trajectory.intervened[t, b].tolist(),
            terminated=terminated,
            truncated=ends(trajectory.truncations) and not terminated,
            final=final,
            usable=bool(trajectory.usable[t, b]),
            version=int(trajectory.versions[t, b]),
            serial=self.count,
            episode=episode,
        )
        self.count += 1
        episode.append(row)
        self.rows.append(row)
        if len(self.rows) > self.capacity:
            self.rows.pop(0).alive = False
        if row.ended:
            self.open.pop(stream, None)
        else:
            self.open[stream] = episode

    def by_serial(self) -> dict[int, Row]:
        return {row.serial: row for row in self.rows}

    def drawable(self) -> set[int]:
        return {row.serial for row in self.rows if row.drawable}

    def episodes(self) -> int:
        return len({id(row.episode) for row in self.rows})

    def chunk(self, row: Row) -> tuple[float, float]:
        total, factor = 0.0, 1.0
        for reward, valid in zip(row.rewards, row.valid, strict=True):
            if valid:
                total += factor * reward
                factor *= self.gamma if self.per == "step" else 1.0
        return total, factor if self.per == "step" else self.gamma

    def transition(self, row: Row, n: int) -> dict[str, Any]:
        total, factor, steps = 0.0, 1.0, 0
        while True:
            reward, discount = self.chunk(row)
            total += factor * reward
            factor *= discount
            steps += 1
            if steps == n or row.ended or row.next is None or not row.next.drawable:
                break
            row = row.next
        return {
            "rewards": total,
            "discounts": factor,
            "steps": steps,
            "terminations": row.terminated,
            "truncations": row.truncated,
            "next_obs": self.after(row),
        }

    def after(self, row: Row) -> dict[str, Any]:
        if row.ended:
            return row.obs if row.final is None else row.final
        return row.next.obs

    def window(self, row: Row, length: int) -> list[Row]:
        rows = [row]
        while len(rows) < length and row.next is not None and row.next.drawable:
            row = row.next
            rows.append(row)
        return rows


def pick(tree: Any, place: Any) -> Any:
    if isinstance(tree, dict):
        return {key: pick(value, place) for key, value in tree.items()}
    return tree[place]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one.dtype == other.dtype and torch.equal(one, other)


class Envs:
    """Makes random trajectories of envs whose episodes go on; every observation differs.

    Args:
        random: where chance comes from.
        envs: how many.
        chunk: actions of a chunk.
    """

    def __init__(self, random: np.random.Generator, envs: int, chunk: int) -> None:
        self.random, self.envs, self.chunk = random, envs, chunk
        self.seen = 0
        self.fresh = np.ones(envs, bool)

    def observations(self, *shape: int) -> dict[str, Any]:
        count = int(np.prod(shape))
        numbers = torch.arange(self.seen, self.seen + count).reshape(shape)
        self.seen += count
        pixels = torch.stack([numbers % 251, numbers % 241, numbers // 7 % 256], -1)
        return {
            "state": torch.stack([numbers, -numbers], -1).float(),
            "cameras": {"left": pixels.to(torch.uint8), "wrist": (pixels + 1).to(torch.uint8)},
            "text": numbers[..., None].expand(*shape, 3).contiguous(),
            "half": numbers.to(torch.bfloat16),
        }

    def rollout(self, steps: int, *, streams: bool = True) -> ReplayTrajectory:
        random, shape = self.random, (steps, self.envs, self.chunk)
        terminations, truncations = np.zeros(shape, bool), np.zeros(shape, bool)
        valid, begins = np.ones(shape, bool), np.zeros(shape[:2], bool)
        fresh = self.fresh if streams else np.ones(self.envs, bool)
        ends = []
        for t in range(steps):
            for b in range(self.envs):
                begins[t, b], fresh[b] = fresh[b], False
                chance = random.random()
                if chance < 0.1:
                    valid[t, b] = False
                elif chance < 0.35:
                    at = random.integers(self.chunk)
                    (terminations if chance < 0.2 else truncations)[t, b, at] = True
                    valid[t, b, at + 1 :] = False
                    fresh[b] = True
                    if chance > 0.15:
                        ends.append((t, b))
                elif chance < 0.37:
                    # An env that was restarted: its episode has no end.
                    fresh[b] = True
        random.shuffle(ends)
        where = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2)
        final = FinalObservations(where[:, 0], where[:, 1], self.observations(len(ends)))
        return ReplayTrajectory(
            obs=self.observations(*shape[:2]),
            actions=torch.from_numpy(random.random((*shape, 2)).astype(np.float32)),
            rewards=torch.from_numpy(random.standard_normal(shape).astype(np.float32)),
            terminations=torch.from_numpy(terminations),
            truncations=torch.from_numpy(truncations),
            valid=torch.from_numpy(valid),
            intervened=torch.from_numpy(random.random(shape) < 0.2),
            begins=torch.from_numpy(begins),
            versions=torch.from_numpy(random.integers(0, 9, shape[:2])),
            usable=torch.from_numpy(random.random(shape[:2]) < 0.9),
            final=final,
            streams=[f"env {b}" for b in range(self.envs)] if streams else None,
        )
