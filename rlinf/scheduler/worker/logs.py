"""A worker's log: its messages go to standard output and to its file, its prints and errors, too.

Lines of the file tell the date and milliseconds, so that the logs of a run can be merged.
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from rlinf.utils.logging import FORMAT, log_level, set_logger

FILE_FORMAT = "[%(levelname)s %(asctime)s.%(msecs)03d {who}][%(filename)s:%(lineno)d] %(message)s"

_LONGEST_LINE = 65_536
_OF_RAY = (":actor_name:", ":task_name:", ":job_id:")
"""What Ray prints in a worker to tell its own log monitor who speaks."""


def worker_logger(name: str, who: str, log_file: str | None) -> logging.Logger:
    """Make the logger of a worker, which is also that of `rlinf.utils.logging.get_logger` there.

    What the process prints goes to the worker's file, too; without a file everything goes to
    standard output alone.

    Standard output gets lines such as `[INFO 12:00:00 Actor-Rank-0][worker.py:12] text`; in the
    file the time is `2025-03-02 12:00:00.512`.
    """
    logger = logging.getLogger(f"rlinf.worker.{name}")
    logger.handlers.clear()
    logger.propagate = False
    logger.setLevel(log_level())
    shown = logging.StreamHandler(_Tee.original(sys.stdout))
    shown.setFormatter(logging.Formatter(FORMAT.format(who=who), datefmt="%H:%M:%S"))
    shown.addFilter(lambda record: not getattr(record, "file_only", False))
    logger.addHandler(shown)
    if log_file:
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        file = _LogFile(log_file)
        file.setFormatter(
            logging.Formatter(FILE_FORMAT.format(who=who), datefmt="%Y-%m-%d %H:%M:%S")
        )
        logger.addHandler(file)
        sys.stdout = _Tee(_Tee.original(sys.stdout), file, "stdout", logging.INFO)
        sys.stderr = _Tee(_Tee.original(sys.stderr), file, "stderr", logging.WARNING)
    set_logger(logger)
    return logger


def note(name: str, level: int, text: str) -> None:
    """Write something to a worker's file alone, where it does not disturb the terminal."""
    logger = logging.getLogger(f"rlinf.worker.{name}")
    if logger.handlers:
        logger.log(level, text, extra={"file_only": True}, stacklevel=2)


class _LogFile(logging.FileHandler):
    """The file of a worker; a disk that is full costs lines of it, with one warning."""

    _complained = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Warn of the disk once; other mistakes are shown as usual."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._complained:
            self._complained = True
            stream = _Tee.original(sys.stderr)
            print(
                f"warning: {self.baseFilename} cannot be written ({error}); lines are lost as "
                "long as that is so",
                file=stream,
                flush=True,
            )


class _Tee:
    """A standard stream whose lines also go to the worker's file.

    Args:
        stream: where everything goes as before.
        handler: of the file.
        source: what stands in the place of a source file in the log.
        level: of the lines.
    """

    def __init__(self, stream: TextIO, handler: logging.Handler, source: str, level: int):
        self._stream = stream
        self._handler = handler
        self._source = source
        self._level = level
        self._rest = ""
        self._lock = threading.RLock()
        self._recording = False

    @staticmethod
    def original(stream: Any) -> TextIO:
        """Return the stream beneath."""
        return stream._stream if isinstance(stream, _Tee) else stream

    def write(self, text: str) -> int:
        """Write text on."""
        count = self._stream.write(text)
        with self._lock:
            # A handler that fails reports to this very stream.
            if not self._recording:
                self._recording = True
                try:
                    self._record(text)
                finally:
                    self._recording = False
        return count

    def _record(self, text: str) -> None:
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[-_LONGEST_LINE:]
        for line in lines:
            # Of a bar that was drawn over and over, the last state.
            line = line.rstrip("\r").rpartition("\r")[2]
            if line.strip() and not line.startswith(_OF_RAY):
                record = logging.LogRecord(
                    "print", self._level, self._source, 0, line, args=None, exc_info=None
                )
                self._handler.handle(record)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)
