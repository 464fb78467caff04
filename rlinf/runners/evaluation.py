"""Evaluating the policy of a run: the same numbered episodes each time, each counted once."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlinf.runners.players import Players
from rlinf.runners.restarting_calls import RestartingCalls
from rlinf.scheduler import RunFiles
from rlinf.utils.disk import tolerate_disk_errors
from rlinf.utils.env_spec import task_title
from rlinf.utils.evaluation import EpisodeRecord, Evaluation
from rlinf.utils.phases import phases

FILE = "evaluation.json"


class Evaluator:
    """Evaluates with env and rollout workers, and writes what it finds into the run's folder.

    Args:
        cfg: checked configuration; `env.eval` may be absent as long as nothing is evaluated.
        folder: folder of the run.
        players: the groups that play.
        retry: plays an evaluation again when an env process has crashed in it.
        files: brings what workers write to this node.

    Attributes:
        last: the last evaluation; None before the first.
        checkpoint: where the policy is saved, if the run has it from there.
    """

    def __init__(
        self,
        cfg: Any,
        folder: Path,
        players: Players,
        retry: RestartingCalls,
        files: RunFiles,
    ):
        self.last: Evaluation | None = None
        self.checkpoint: Path | None = None
        self._cfg, self._folder = cfg, folder
        self._players, self._retry = players, retry
        self._files = files

    def evaluate(self, step: int, sync_weights: Callable[[], None]) -> Evaluation:
        """Play the episodes without noise and without learning, and change nothing in training.

        Args:
            step: global step of the policy.
            sync_weights: brings the newest weights to the rollout workers.
        """
        with phases.phase("evaluation"):
            return self._evaluate(step, sync_weights)

    def _evaluate(self, step: int, sync_weights: Callable[[], None]) -> Evaluation:
        # The next rollout goes on with the weights that the rollout workers have now.
        keeps = step % self._cfg.runner.weight_sync_interval != 0
        if keeps:
            self._players.rollout.keep_weights().wait()
        sync_weights()
        count = self._cfg.runner.eval_episodes
        env_futures, *_ = self._retry.run(lambda: self._players.play_episodes(count))
        if keeps:
            self._players.rollout.restore_weights().wait()
        parts = env_futures.wait()
        records = [record for part in parts for record in part.records]
        played = {record.id for record in records}
        names = parts[0].counters
        self.last = Evaluation(
            step=step,
            protocol=_protocol(self._cfg),
            records=records,
            counters={name: sum(part.counters[name] for part in parts) for name in names},
            dropped=[number for number in range(count) if number not in played],
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            has_success=any(part.has_success for part in parts),
        )
        self._write(self.last)
        return self.last

    def final(self, step: int, sync_weights: Callable[[], None]) -> Evaluation:
        """Return the evaluation of the policy that a run ends with, with videos if they are wanted.

        A policy that has just been evaluated is not evaluated again: the same episodes would go
        the same way.
        """
        known = self.last is not None and self.last.step == step
        found = self.last if known else self.evaluate(step, sync_weights)
        if self._cfg.env.eval.video_cfg.save_video:
            with phases.phase("video"):
                self._record(found)
        return found

    @property
    def video(self) -> str | None:
        """Where the video of the policy is, or why there is none; None if nobody wants one."""
        if not self._cfg.env.eval.video_cfg.save_video or self.last is None:
            return None
        if self.last.video_note.startswith("no video"):
            return self.last.video_note
        return str(self._folder / "policy.mp4")

    # -- videos ---------------------------------------------------------------------------------

    def _record(self, evaluation: Evaluation) -> None:
        """Play some episodes again and draw them: first or chosen ones, and the first failures."""
        video = self._cfg.env.eval.video_cfg
        by_number = {record.id: record for record in evaluation.records}
        wanted = list(by_number)[: video.max_videos] if video.episodes is None else video.episodes
        chosen = [number for number in wanted if number in by_number]
        chosen += [n for n in evaluation.failures()[: video.max_failures] if n not in chosen]
        own = video.video_base_dir
        folder = self._folder / "videos" if own is None else Path(own).expanduser().resolve()
        self._files.mark(folder)
        env_futures, *_ = self._retry.run(
            lambda: self._players.record_episodes(chosen, str(folder))
        )
        shown = env_futures.wait()[0]
        self._files.collect(folder)
        for number, path in shown.videos.items():
            place = Path(path)
            inside = place.is_relative_to(self._folder)
            by_number[number].video = str(place.relative_to(self._folder) if inside else place)
        evaluation.video_note = _video_note(shown, by_number)
        if evaluation.video_note:
            print(f"warning: {evaluation.video_note}", file=sys.stderr, flush=True)
        self._write(evaluation)
        if chosen and chosen[0] in shown.videos:
            place = self._folder / "policy.mp4"
            with tolerate_disk_errors(str(place)):
                shutil.copyfile(shown.videos[chosen[0]], place)

    def _write(self, evaluation: Evaluation) -> None:
        place = self._folder / FILE
        with tolerate_disk_errors(str(place)):
            evaluation.write(place)


def _video_note(shown: Any, by_number: dict[int, EpisodeRecord]) -> str:
    if shown.reason:
        return f"no video: {shown.reason}"
    if not shown.videos:
        return (
            "no video: video_cfg.max_videos, episodes and max_failures choose no episode that was "
            "played"
        )
    changed = [r.id for r in shown.records if r.outcome() != by_number[r.id].outcome()]
    if changed:
        # Whoever looks at them must know.
        return (
            f"episodes {', '.join(map(str, changed))} went another way when they were played again "
            "for their videos: the env, or the policy, is not determined by how they begin"
        )
    return ""


def _protocol(cfg: Any) -> str:
    """Return what is asked of the policy, in words."""
    section = cfg.env.eval
    name = task_title(section)
    seed = cfg.runner.seed if section.seed is None else section.seed
    parts = [f"{section.env_type} {name}" if name else section.env_type, f"seed {seed}"]
    parts.append(f"{cfg.runner.eval_episodes} episodes, numbers from 0")
    if section.max_episode_steps is not None:
        parts.append(f"at most {section.max_episode_steps} steps")
    return ", ".join([*parts, "actions without noise"])
