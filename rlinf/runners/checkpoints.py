"""Saving a run and going on with it: asks the workers, and makes it a checkpoint or nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlinf.config import to_plain
from rlinf.runners.run_folder import versions
from rlinf.scheduler import (
    WaitTimeout,
    WorkerDied,
    WorkerGroup,
    WorkerGroupFuncResult,
    wait_all,
)
from rlinf.utils.checkpoint import Checkpoint, CheckpointStore
from rlinf.utils.checkpoint.tree import save_tree
from rlinf.utils.runs.folders import shown

_SETTLE_SECONDS = 2.0
_IN_FLIGHT = "in_flight"
"""Key of the runner's state: what was under way when it was saved."""


class _Begun(NamedTuple):
    """A checkpoint that the workers are writing."""

    step: int
    score: float | None
    folder: str
    begin: float


class RunCheckpoints:
    """The checkpoints of one run.

    Args:
        cfg: checked configuration.
        folder: where they are.
        groups: groups whose workers are `Checkpointed`.
        comes_back: whether the run survives the death of a worker; then it costs no more than the
            checkpoint that is being written.
        collect: brings what workers have written under a folder to this node.

    Attributes:
        failures: checkpoints that were given up so far.
        in_flight: returns calls that go on while workers take their snapshots; one that fails
            could leave others waiting for good, and snapshots behind them.
        not_saved: in words, what checkpoints cannot hold; told once, when the first is made.
        not_restored: in words, what the run could not take from the checkpoint that it resumed
            from; the run is exactly the uninterrupted one only if this is empty.
    """

    def __init__(
        self,
        cfg: Any,
        folder: Path,
        groups: list[WorkerGroup],
        comes_back: Callable[[WorkerDied], bool] = lambda death: False,
        collect: Callable[[str], None] = lambda folder: None,
    ):
        self._cfg = cfg
        self._groups = groups
        self._comes_back = comes_back
        self._collect = collect
        self._settings = cfg.runner
        self.store = CheckpointStore(folder, cfg.runner.keep_last, cfg.runner.keep_best)
        self.failures = 0
        self.in_flight: Callable[[], Sequence[WorkerGroupFuncResult]] = tuple
        self.not_saved: list[str] = []
        self.not_restored: list[str] = []
        self._pending: _Begun | None = None
        self._commit: _Commit | None = None
        self._given_up: list[int] = []

    # -- saving ---------------------------------------------------------------------------------

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._pending is not None

    def save(
        self,
        step: int,
        state: dict[str, Any],
        score: float | None,
        in_flight: Sequence[str] = (),
    ) -> None:
        """Begin a checkpoint; workers write it while training goes on.

        A disk that is full or closed to us costs this checkpoint, loudly, and nothing else.

        Args:
            step: global step that is complete.
            state: what the runner itself has to remember, plain data.
            score: how good the policy is, higher is better; None if that is not known.
            in_flight: in words, what is under way and not saved; whoever resumes is told.
        """
        self.poll(wait=True)
        try:
            part = self.store.begin(step)
            save_tree(part / "runner", state | {_IN_FLIGHT: list(in_flight)})
        except OSError as error:
            self._complain(step, error)
            return
        self._pending = _Begun(step, score, str(part), time.perf_counter())
        background = self._settings.async_save
        try:
            not_saved = wait_all(
                *(group.save_checkpoint(str(part), background) for group in self._groups),
                beside=self.in_flight(),
            )
        except Exception as error:
            self._give_up(error)
            return
        self._sweep()
        self._tell_not_saved(_notes(not_saved))
        self.poll(wait=not background)

    def _tell_not_saved(self, notes: list[str]) -> None:
        for note in notes:
            if note not in self.not_saved:
                self.not_saved.append(note)
                print(
                    f"warning: checkpoints hold all but {note}; a resumed run goes on without and "
                    "is not exactly the uninterrupted one",
                    file=sys.stderr,
                    flush=True,
                )

    def poll(self, wait: bool = False) -> None:
        """Complete the checkpoint that is being written, if all workers are done with it."""
        if self._pending is None:
            return
        try:
            if self._commit is None:
                answers = wait_all(*self._ask(self._pending, wait))
                if not all(all(answer) for answer in answers):
                    return
                self._commit = self._begin_commit(self._pending)
            if self._commit.done(wait):
                self._pending = self._commit = None
        except Exception as error:
            self._give_up(error)

    def settle(self) -> None:
        """Complete, when a run fails, the checkpoint that all workers have written already."""
        if self._pending is None:
            return
        try:
            if self._commit is None:
                answers = wait_all(*self._ask(self._pending, False), timeout=_SETTLE_SECONDS)
                if not all(all(answer) for answer in answers):
                    return
                self._commit = self._begin_commit(self._pending)
            self._commit.done(wait=True)
        except Exception as error:
            # The failure that ends the run is the one to tell; this only costs a checkpoint.
            print(
                f"step {self._pending.step} could not be saved any more: {error}",
                file=sys.stderr,
                flush=True,
            )

    def _ask(self, begun: _Begun, wait: bool) -> list[Any]:
        """Ask all workers for this one: a process that was restarted meanwhile knows no other."""
        return [group.checkpoint_written(begun.folder, wait) for group in self._groups]

    def _begin_commit(self, begun: _Begun) -> _Commit:
        facts = {
            "versions": versions(),
            "config": to_plain(self._cfg),
            "seconds": round(time.perf_counter() - begun.begin, 3),
            "not_saved": self.not_saved,
        }
        return _Commit(self.store, begun, facts, self._collect)

    def _give_up(self, error: Exception) -> None:
        """Do without the checkpoint that is being written; raise what ends the run."""
        ends = isinstance(error, WorkerDied) and not self._comes_back(error)
        if ends or isinstance(error, WaitTimeout):
            raise error
        step = self._pending.step
        self._pending = self._commit = None
        self._given_up.append(step)
        self.store.discard(step)
        self._complain(step, error)

    def _sweep(self) -> None:
        """Remove what ranks had yet to write of a checkpoint when it was given up."""
        for step in self._given_up:
            self.store.discard(step)
        self._given_up.clear()

    def _complain(self, step: int, error: Exception) -> None:
        self.failures += 1
        newest = self.store.all()
        kept = f"the newest one is still {newest[-1].path}" if newest else "there is none yet"
        print(
            f"warning: step {step} could not be saved ({type(error).__name__}: {error}); "
            f"{kept}; training goes on",
            file=sys.stderr,
            flush=True,
        )

    # -- resuming -------------------------------------------------------------------------------

    def set_aside(self, after: int) -> None:
        """Hide checkpoints of steps that this run has yet to make."""
        moved = self.store.set_aside(after)
        if moved:
            print(
                f"{len(moved)} checkpoint(s) of an earlier run are out of the way now, the last as "
                f"{moved[-1]}",
                flush=True,
            )

    def restore(self, checkpoint: Checkpoint, what: str = "resuming after") -> dict[str, Any]:
        """Bring all workers back to a checkpoint; return the runner's own state.

        What could not be restored is printed, each thing once.

        Args:
            checkpoint: to go back to.
            what: is done with its step, for the line that says so.
        """
        folder = str(checkpoint.path)
        notes = wait_all(*(group.load_checkpoint(folder) for group in self._groups))
        print(f"{what} step {checkpoint.step} from {shown(checkpoint.path)}", flush=True)
        state = checkpoint.runner_state()
        self.not_restored = [*_notes(notes), *state.pop(_IN_FLIGHT, [])]
        for note in self.not_restored:
            print(f"  not restored: {note}", flush=True)
        if self.not_restored:
            print("  so this run is not exactly the one that was interrupted", flush=True)
        return state


def _notes(answers: list[list[list[str]]]) -> list[str]:
    """Return the notes of all ranks of all groups, each once."""
    said = (note for of_group in answers for of_rank in of_group for note in of_rank)
    return list(dict.fromkeys(said))


class _Commit:
    """Collects, hashes and syncs what the workers wrote, beside training: it may take a while."""

    def __init__(
        self,
        store: CheckpointStore,
        begun: _Begun,
        facts: dict[str, Any],
        collect: Callable[[str], None],
    ):
        self._error: Exception | None = None
        self._begun = begun
        self._facts = facts
        self._collect = collect
        self._store = store
        # Not a daemon: a checkpoint that is all there is also made one when the run ends here.
        self._thread = threading.Thread(target=self._run, name="rlinf-commit")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._collect(self._begun.folder)
            self._store.commit(self._begun.step, self._facts, self._begun.score)
        except Exception as error:
            self._error = error

    def done(self, wait: bool) -> bool:
        """Return whether it is a checkpoint now; raise what went wrong."""
        if wait:
            self._thread.join()
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True
