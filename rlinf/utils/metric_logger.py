"""Metrics of a run, to every back-end that was asked for, on one step axis."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf.utils.metric_backends import BACKENDS, Backend


class MetricLogger:
    """Writes metrics to all back-ends that were asked for.

    A back-end that cannot be opened, or that fails later, is switched off and said once, loudly;
    training goes on, and so do the other back-ends.

    Args:
        folder: folder of the run.
        cfg: the `runner.logger` section.
    """

    def __init__(self, folder: Path, cfg: Any):
        self.folder = folder
        self._cfg = cfg
        self._backends: dict[str, Backend] | None = None

    def start(self, step: int) -> None:
        """Open the back-ends; what an earlier run wrote of later steps than `step` is dropped."""
        self._backends = {}
        for name in dict.fromkeys(self._cfg.logger_backends):
            try:
                self._backends[name] = BACKENDS[name](self.folder, self._cfg, step)
            except Exception as error:
                self._complain(name, error)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of one step."""
        if self._backends is None:
            self.start(0)
        assert self._backends is not None
        for name, backend in list(self._backends.items()):
            try:
                backend.log(metrics, step)
            except Exception as error:
                del self._backends[name]
                self._complain(name, error)

    def close(self) -> None:
        """Write out what is buffered; back-ends that were never opened stay closed."""
        for name, backend in (self._backends or {}).items():
            try:
                backend.close()
            except Exception as error:
                self._complain(name, error)
        self._backends = {}

    def _complain(self, name: str, error: Exception) -> None:
        others = ", ".join(other for other in self._backends or () if other != name)
        print(
            f"WARNING: metrics are not written to {name} from here on: "
            f"{type(error).__name__}: {error}\n"
            f"         training goes on; still written to: {others or 'nothing'}",
            file=sys.stderr,
            flush=True,
        )
