"""How an env worker plays the episodes of an evaluation, and draws some of them afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rlinf.envs import VectorEnv
from rlinf.envs.video import VideoRecorder
from rlinf.utils.evaluation import EpisodeRecord

Ask = Callable[[dict[str, Any]], Tensor]
"""Sends observations to the policy and returns its actions, `[B, C, A]`."""
Watch = Callable[[dict[str, Any]], None]
"""Looks at the infos of the last step that was played; those of the reset first."""

COUNTERS = ("restarts", "nan_skipped")


@dataclass
class Played:
    """What came of some episodes.

    Attributes:
        records: Those that count.
        counters: Simulators that failed and episodes with a NaN.
        videos: Path of the video by number of the episode.
        reason: Why there are no videos, or not all; empty if there are.
        has_success: Whether the env tells when a task is solved.
    """

    records: list[EpisodeRecord] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    videos: dict[int, str] = field(default_factory=dict)
    reason: str = ""
    has_success: bool = True


class EpisodePlayer:
    """Plays numbered episodes in one vector env.

    Args:
        env: The env.
        ask: Asks the policy.
    """

    def __init__(self, env: VectorEnv, ask: Ask) -> None:
        self._env, self._ask = env, ask

    def play(
        self, numbers: Iterable[int], watch: Watch | None = None, at_once: int | None = None
    ) -> Played:
        """Play episodes to their end, each once.

        Args:
            numbers: Which; at most as many as the env has slots, if chunks are cut.
            watch: Looks on.
            at_once: Steps of a chunk that are played before `watch` is called; None is all of them.
        """
        env, played = self._env, Played()
        obs, infos = env.begin_episodes(numbers)
        before = {name: infos[name] for name in COUNTERS}
        starts = _starts(env, obs)
        if watch is not None:
            watch(infos)
        while env.has_work:
            chunk = self._ask(obs)
            for actions in chunk.split(at_once or chunk.shape[1], dim=1):
                obs_list, *_, all_infos = env.chunk_step(actions)
                obs, infos = obs_list[-1], all_infos[-1]
                if "_final_observation" in infos:
                    played.records += _ended(infos, starts)
                    starts = _starts(env, obs) | starts
                if watch is not None:
                    watch(infos)
                if not env.has_work:
                    break
        played.counters = {name: infos[name] - before[name] for name in COUNTERS}
        played.has_success = env.reports_success
        return played

    def record(
        self, numbers: Sequence[int], folder: Path, speed: float, captions: bool, stride: int = 1
    ) -> Played:
        """Play episodes and write a video of each, `episode_<number>.mp4`.

        A machine that cannot draw after all costs the videos and nothing else.

        Args:
            numbers: Which episodes.
            folder: Where the videos go.
            speed: Env steps that a second shows.
            captions: Write step, return and success under the picture.
            stride: Env steps per frame, also inside of chunks; drawing takes far longer than
                playing.
        """
        played = Played()
        for begin in range(0, len(numbers), self._env.num_envs):
            batch = numbers[begin : begin + self._env.num_envs]
            try:
                with _Film(self._env, batch, folder, speed, captions, stride) as film:
                    played.records += self.play(batch, film.watch, at_once=1).records
                played.videos |= film.paths
            except _CannotDraw as error:
                played.reason = str(error)
                break
        return played


class _CannotDraw(Exception):
    """Drawing failed; says how."""


class _Film:
    """Videos of episodes that are played at the same time, one slot each."""

    def __init__(
        self,
        env: VectorEnv,
        numbers: Sequence[int],
        folder: Path,
        speed: float,
        captions: bool,
        stride: int,
    ) -> None:
        self.paths = {number: str(folder / f"episode_{number:04d}.mp4") for number in numbers}
        self._stride, self._steps = stride, 0
        fps = speed / stride
        self._running = {
            slot: _drawing(VideoRecorder, env, path, [slot], fps, captions, f"episode {n}")
            for slot, (n, path) in enumerate(self.paths.items())
        }
        self._recorders = list(self._running.values())

    def watch(self, infos: dict[str, Any]) -> None:
        """Add a frame to the video of each episode that runs, and of each that has just ended."""
        ended = infos.get("_final_observation")
        for slot, recorder in list(self._running.items()):
            over = ended is not None and bool(ended[slot])
            if over or self._steps % self._stride == 0:
                _drawing(recorder.capture, infos)
            if over:
                del self._running[slot]
        self._steps += 1

    def __enter__(self) -> _Film:
        return self

    def __exit__(self, *_: object) -> None:
        for recorder in self._recorders:
            recorder.close()


def _drawing(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        # Drivers, libraries and envs fail in their own ways; none of them may cost the run.
        raise _CannotDraw(f"{type(error).__name__}: {error}") from error


def _starts(env: VectorEnv, obs: dict[str, Any]) -> dict[int, str]:
    """Return a hash of what there is in each slot, by the number of the episode that it plays.

    What is hidden from the policy counts: starts differ though it cannot tell them apart.
    """
    obs, playing = env.expert_obs(obs), enumerate(env.playing)
    return {episode.number: _hash(obs, slot) for slot, episode in playing if episode is not None}


def _hash(obs: dict[str, Any], slot: int) -> str:
    content = hashlib.blake2b(digest_size=8)
    for key, values in sorted(obs.items()):
        value = values[slot]
        content.update(key.encode())
        content.update(value.numpy().tobytes() if isinstance(value, Tensor) else value.encode())
    return content.hexdigest()


def _ended(infos: dict[str, Any], starts: dict[int, str]) -> list[EpisodeRecord]:
    """Return the episodes that ended in a chunk and count."""
    metrics, found = infos["episode"], []
    for slot in infos["_episode"].nonzero().flatten().tolist():
        episode = infos["fixed_episodes"][slot]
        found.append(
            EpisodeRecord(
                id=episode.number,
                task=episode.task,
                reset_id=episode.start.reset_id,
                seed=episode.start.seed,
                success_once=bool(metrics["success_once"][slot]),
                success_at_end=bool(metrics["success_at_end"][slot]),
                ret=float(metrics["return"][slot]),
                length=int(metrics["episode_len"][slot]),
                start=starts[episode.number],
            )
        )
    return found
