"""The recorder of a process: a span costs a microsecond and goes to the disk with others.

File: a header, then records. `N <u16 id> <u16 length> <name>` names an id, `S <u16 id> <u8 kind>
<u32 thread> <i64 begin> <i64 end>` is a span, in nanoseconds of this machine's steady clock; the
header tells how far that is from the time of day, so that spans of several machines can be laid
side by side.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import time
from pathlib import Path

CALL, BLOCK, WAIT, STEP = range(4)
"""Kinds: a method that was called, a timed block in it, a wait, a step of the driver's loop."""

MAGIC = b"RLTRACE1"
HEADER = struct.Struct("<8sqi")
NAME = struct.Struct("<cHH")
SPAN = struct.Struct("<cHBIqq")

SHORTEST_WAIT = 20e-6
"""Waits below this many seconds are not worth a span."""

_FLUSH_SPANS = 512
_FLUSH_SECONDS = 1.0
_MOST_BYTES = 512 << 20
_MOST_NAMES = 60_000


class Recorder:
    """Writes the spans of this process.

    Args:
        path: file to write; what an earlier process of the same name wrote is kept beside it.
    """

    def __init__(self, path: str):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # A restarted worker goes on in a file of its own.
        number, chosen = 1, path
        while os.path.exists(chosen):
            number += 1
            chosen = f"{path}.{number}"
        self._file = open(chosen, "wb", buffering=0)  # noqa: SIM115 - open for the process
        offset = time.time_ns() - time.perf_counter_ns()
        self._file.write(HEADER.pack(MAGIC, offset, os.getpid()))
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._spans: list[tuple[str, int, int, float, float]] = []
        self._flushed = time.perf_counter()
        self._bytes = 0
        self.dropped = 0

    def add(self, name: str, kind: int, begin: float, end: float) -> None:
        """Add a span; times are of `time.perf_counter`."""
        spans = self._spans
        spans.append((name, kind, threading.get_ident() & 0xFFFFFFFF, begin, end))
        if len(spans) >= _FLUSH_SPANS or end - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what has been collected."""
        with self._lock:
            spans, self._spans = self._spans, []
            self._flushed = time.perf_counter()
            if self._bytes > _MOST_BYTES or self._file.closed:
                self.dropped += len(spans)
                return
            parts = []
            for name, kind, thread, begin, end in spans:
                number = self._ids.get(name)
                if number is None:
                    number = self._name(name, parts)
                times = int(begin * 1e9), int(end * 1e9)
                parts.append(SPAN.pack(b"S", number, kind, thread, *times))
            data = b"".join(parts)
            self._bytes += len(data)
            try:
                self._file.write(data)
            except OSError as error:
                # What was cut off is not read; nothing can follow it.
                self.dropped += len(spans)
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        print(
            f"warning: the timeline of this process ends here: {self._file.name} cannot be "
            f"written ({error})",
            file=sys.stderr,
            flush=True,
        )

    def _name(self, name: str, parts: list[bytes]) -> int:
        if len(self._ids) >= _MOST_NAMES:
            name = "(other)"
            if name in self._ids:
                return self._ids[name]
        number = self._ids[name] = len(self._ids)
        text = name.encode()[:65_535]
        parts.append(NAME.pack(b"N", number, len(text)) + text)
        return number

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        with self._lock:
            self._file.close()


_recorder: Recorder | None = None


def start(path: str | None) -> None:
    """Begin to record this process; None switches it off."""
    global _recorder
    if _recorder is not None:
        _recorder.close()
    _recorder = None
    if path is not None:
        try:
            _recorder = Recorder(path)
        except OSError as error:
            said = f"warning: this process has no timeline: {path} cannot be written ({error})"
            print(said, file=sys.stderr, flush=True)


def _forget() -> None:
    """Leave the file to the parent: names that a forked child gives would not be known there."""
    global _recorder
    _recorder = None


os.register_at_fork(after_in_child=_forget)


def mark_step(number: int, begin: float) -> None:
    """Record that a step of the driver's loop ends now; `begin` is of `time.perf_counter`."""
    if _recorder is not None:
        _recorder.add(f"step {number}", STEP, begin, time.perf_counter())
        _recorder.flush()


def current() -> Recorder | None:
    """Return the recorder of this process, None if nothing is recorded."""
    return _recorder
