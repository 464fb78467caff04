"""How a worker saves itself: a snapshot at once, the writing of it in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlinf.scheduler.worker.file_places import place_to_read, place_to_write

Job = Callable[[], None]


def load_rank(folder: Path, rank: int) -> Any:
    """Return what a rank has saved as `rank_<n>`; that of rank 0 if there were fewer ranks.

    Args:
        folder: where all ranks of a role have saved.
        rank: this one.
    """
    # Here, so that workers without tensors do not have to import torch.
    from rlinf.utils.checkpoint import load_tree

    own = folder / f"rank_{rank}"
    same = own.with_name(own.name + ".json").exists()
    return load_tree(own if same else own.with_name("rank_0"))


class Checkpointed:
    """Mixin of workers that have something to save.

    The runner calls `save_checkpoint` on all ranks, goes on with training, and asks
    `checkpoint_written` until all of them have answered yes.
    """

    _writing: _Writing | None = None

    def save_checkpoint(self, folder: str, background: bool = True) -> list[str]:
        """Take a snapshot of this worker and begin to write it into a folder.

        Args:
            folder: where all workers write; each has file names of its own.
            background: return before it is written.

        Returns:
            In words, what of this worker cannot be saved.
        """
        if self._writing is not None:
            # What went wrong with it is for those who ask about that folder.
            self._writing.done(wait=True)
        self._writing = _Writing(folder, self._snapshot(place_to_write(folder)))
        if not background:
            self.checkpoint_written(folder, wait=True)
        return self._not_saved()

    def checkpoint_written(self, folder: str, wait: bool = False) -> bool:
        """Return whether the part of this worker is on the disk.

        Args:
            folder: the one that `save_checkpoint` was given.
            wait: until it is.

        Raises:
            RuntimeError: this process has not begun to write it, as it was started later.
            Exception: whatever went wrong with the writing.
        """
        writing = self._writing
        if writing is None or writing.folder != folder:
            raise RuntimeError(
                f"{type(self).__name__} was asked whether it has written its part of {folder}, but "
                "this process never began to: it has taken the place of one that died"
            )
        if not writing.done(wait):
            return False
        if writing.error is not None:
            raise writing.error
        return True

    def load_checkpoint(self, folder: str) -> list[str]:
        """Go on from what was saved; return, in words, what could not be restored."""
        return self._restore(place_to_read(folder))

    def _snapshot(self, folder: Path) -> Job:
        """Copy what must be kept; return the function that writes the copy."""
        raise NotImplementedError

    def _not_saved(self) -> list[str]:
        """Return, in words, what the last snapshot lacks."""
        return []

    def _restore(self, folder: Path) -> list[str]:
        raise NotImplementedError


class _Writing:
    """One snapshot on its way to the disk."""

    def __init__(self, folder: str, job: Job):
        self.folder = folder
        self.error: BaseException | None = None
        self._job: Job | None = job
        # Not a daemon: what was begun is finished before the process goes.
        self._thread = threading.Thread(target=self._run, name="rlinf-checkpoint")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._job()
        except BaseException as error:
            # Whatever it is: what was not written must not count as written.
            self.error = error
        finally:
            # The snapshot is as large as what it is of.
            self._job = None

    def done(self, wait: bool) -> bool:
        if wait:
            self._thread.join()
        return not self._thread.is_alive()
