"""The folder of checkpoints: `global_step_<N>`, complete or not there at all.

A checkpoint is written into `.global_step_<N>.<run>.part` beside its place. When every file is on
the disk, a manifest with the size and hash of each is written, and the folder is renamed. What has
no manifest, or does not match it, is not a checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf.utils.checkpoint.manifest import FORMAT, MANIFEST, CheckpointError, read_manifest
from rlinf.utils.checkpoint.tree import load_tree, write_durably

_NAME = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        path: its folder.
        manifest: its facts: step, time, score, versions, config, files.
    """

    path: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """Global step after which it was written."""
        return self.manifest["step"]

    @property
    def score(self) -> float | None:
        """How good the policy was, if that was known."""
        return self.manifest.get("score")

    @property
    def run_folder(self) -> Path:
        """Folder of the run that wrote it; where it lies, if it was moved from there."""
        parent = self.path.resolve().parent
        return parent.parent if parent.name == "checkpoints" else parent

    def runner_state(self) -> dict[str, Any]:
        """Return what the runner remembers: steps and counters."""
        return load_tree(self.path / "runner")

    @classmethod
    def find(cls, path: str | Path, verify: bool = True) -> Checkpoint:
        """Open a checkpoint, or the newest one of a run.

        Args:
            path: folder of the checkpoint, of a run, or of an experiment with several runs.
            verify: as in `open`.

        Raises:
            CheckpointError: there is none, or it is not complete, or damaged.
        """
        path = Path(path)
        if not (path / "checkpoints").is_dir():
            path = newest_run(path) or path
        folder = path if path.name == "checkpoints" else path / "checkpoints"
        if folder.is_dir():
            newest = CheckpointStore(folder).latest()
            if newest is None:
                raise CheckpointError(
                    f"{folder} has no complete checkpoint; a run saves one at its end with "
                    "runner.save_last=true, and others with runner.save_interval"
                )
            return newest
        if path.is_dir() and not (path / MANIFEST).exists() and not _NAME.search(path.name):
            raise CheckpointError(
                f"{path} is not a checkpoint, which is called global_step_<N>, nor the folder of "
                "a run with checkpoints"
            )
        return cls.open(path, verify)

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Checkpoint:
        """Open a checkpoint.

        Args:
            path: its folder.
            verify: also compare the hash of each file; sizes are always compared.

        Raises:
            CheckpointError: it is not there, or not complete, or damaged; says which file.
        """
        path = Path(path)
        if not path.is_dir():
            near = sorted(p.name for p in path.parent.glob("global_step_*")) or ["none"]
            raise CheckpointError(
                f"there is no checkpoint {path}; in {path.parent} there is: {', '.join(near)}"
            )
        manifest = read_manifest(path)
        for name, facts in manifest["files"].items():
            _check_file(path, name, facts, verify)
        return cls(path, manifest)


def newest_run(experiment: Path) -> Path | None:
    """Return the newest run in a folder of runs that has a complete checkpoint, if there is one."""
    try:
        runs = sorted(run for run in experiment.iterdir() if not run.is_symlink())
    except OSError:
        return None
    return next((r for r in reversed(runs) if CheckpointStore(r / "checkpoints").all()), None)


def _check_file(path: Path, name: str, facts: dict[str, Any], verify: bool) -> None:
    file = path / name
    if not file.exists():
        raise CheckpointError(f"{path} is damaged: {name} is missing; use another checkpoint")
    if not file.is_file():
        raise CheckpointError(f"{path} is damaged: {name} is not a file; use another checkpoint")
    size = file.stat().st_size
    if size != facts["size"]:
        raise CheckpointError(
            f"{path} is damaged: {name} has {size} bytes instead of {facts['size']}; use another "
            "checkpoint"
        )
    if verify and _hash(file) != facts["sha256"]:
        raise CheckpointError(
            f"{path} is damaged: {name} is not what was written; use another checkpoint"
        )


class CheckpointStore:
    """Writes, finds and removes the checkpoints of a run.

    Args:
        folder: `<run>/checkpoints`.
        keep_last: newest ones to keep; None keeps all.
        keep_best: best ones to keep besides.
    """

    def __init__(self, folder: Path, keep_last: int | None = None, keep_best: int = 0):
        self.folder = folder
        self._keep_last = keep_last
        self._keep_best = keep_best
        # Workers of a run whose driver was killed may go on writing for a moment; what they write
        # must not get into the checkpoints of the run that has taken its place.
        self._run = secrets.token_hex(4)

    def place(self, step: int) -> Path:
        """Return where the checkpoint of a step is, once it is complete."""
        return self.folder / f"global_step_{step}"

    def begin(self, step: int) -> Path:
        """Make the folder to write a checkpoint into; an unfinished one is thrown away."""
        for unfinished in self.folder.glob(f".global_step_{step}.*part"):
            shutil.rmtree(unfinished, ignore_errors=True)
        part = self._part(step)
        part.mkdir(parents=True)
        return part

    def commit(self, step: int, facts: dict[str, Any], score: float | None = None) -> Checkpoint:
        """Make what was written into the folder of `begin` a checkpoint, and prunes old ones.

        Args:
            step: the step that `begin` was given.
            facts: what else to remember, plain data.
            score: how good the policy is, for `keep_best`; higher is better.
        """
        part, place = self._part(step), self.place(step)
        files = sorted(p for p in part.rglob("*") if p.is_file())
        manifest = {
            "format": FORMAT,
            "step": step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "score": score,
            **facts,
            "files": {str(p.relative_to(part)): _describe(p) for p in files},
        }
        for folder in {p.parent for p in files}:
            _sync_folder(folder)
        write_durably(part / MANIFEST, json.dumps(manifest, indent=1).encode())
        _sync_folder(part)
        if place.exists():
            # Of an earlier run that was resumed before this step.
            shutil.rmtree(place)
        os.rename(part, place)
        _sync_folder(self.folder)
        self._prune()
        return Checkpoint(place, manifest)

    def discard(self, step: int) -> None:
        """Remove what was written of a checkpoint that will not be completed."""
        shutil.rmtree(self._part(step), ignore_errors=True)

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints by step, those with a manifest; files are not looked at."""
        found = []
        for path in self._places():
            with contextlib.suppress(CheckpointError):
                found.append(Checkpoint(path, read_manifest(path)))
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def _places(self) -> list[Path]:
        """Return folders that are called as checkpoints and have a manifest, by step."""
        found = {}
        for path in self.folder.glob("global_step_*") if self.folder.is_dir() else ():
            name = _NAME.fullmatch(path.name)
            if name is not None and (path / MANIFEST).exists():
                found[path] = int(name[1])
        return sorted(found, key=found.__getitem__)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is complete and undamaged; damaged ones are named."""
        for place in reversed(self._places()):
            try:
                return Checkpoint.open(place)
            except CheckpointError as error:
                print(f"warning: {error}", flush=True)
        return None

    def set_aside(self, after: int) -> list[Path]:
        """Hide checkpoints of later steps, which belong to a course that was not taken.

        Returns:
            Where they are now.
        """
        moved = []
        for checkpoint in self.all():
            if checkpoint.step > after:
                hidden = checkpoint.path.with_name(f".{checkpoint.path.name}.old")
                shutil.rmtree(hidden, ignore_errors=True)
                os.rename(checkpoint.path, hidden)
                moved.append(hidden)
        return moved

    def _part(self, step: int) -> Path:
        return self.folder / f".global_step_{step}.{self._run}.part"

    def _prune(self) -> None:
        if self._keep_last is None:
            return
        complete = self.all()
        kept = {c.step for c in complete[-self._keep_last :]}
        scored = [c for c in complete if c.score is not None]
        best = sorted(scored, key=lambda c: (c.score, c.step), reverse=True)[: self._keep_best]
        kept |= {c.step for c in best}
        for checkpoint in complete:
            if checkpoint.step not in kept:
                # Renamed first: what is half removed must not look like a checkpoint.
                gone = checkpoint.path.with_name(f".{checkpoint.path.name}.gone")
                os.rename(checkpoint.path, gone)
                shutil.rmtree(gone)


def _describe(file: Path) -> dict[str, Any]:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return {"size": file.stat().st_size, "sha256": _hash(file)}


def _hash(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
