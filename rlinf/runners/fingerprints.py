"""Writes the fingerprints of a deterministic run into its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf.runners.run_folder import versions
from rlinf.scheduler import WorkerGroup
from rlinf.utils.fingerprints import FingerprintWriter


class RunFingerprints:
    """Asks the actor for the hashes of each step; does nothing unless `runner.deterministic`.

    Args:
        cfg: checked configuration.
        folder: folder of the run.
        actor: group with `fingerprints()` and `fingerprint_facts()`.
    """

    def __init__(self, cfg: Any, folder: Path, actor: WorkerGroup):
        self._actor = actor
        self._writer = FingerprintWriter(folder) if cfg.runner.deterministic else None

    def start(self, step: int) -> None:
        """Note the weights that the run begins with, or go on after a step."""
        if self._writer is None:
            return
        facts, names = self._actor.fingerprint_facts().wait()[0]
        is_new = self._writer.start(step, {"versions": versions(), **facts}, names)
        weights = self._actor.fingerprints().wait()[0]["weights"]
        if is_new:
            self._writer.write(step, {"weights": weights})

    def note(self, step: int) -> None:
        """Write down what a step did."""
        if self._writer is None:
            return
        ranks = self._actor.fingerprints().wait()
        record = {"batch": [rank["batch"] for rank in ranks]}
        record |= {key: ranks[0][key] for key in ("updates", "weights")}
        self._writer.write(step, record)
