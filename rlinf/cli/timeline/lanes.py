"""The spans of a run, one lane per process, cut into pieces of being busy and of waiting."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rlinf.scheduler.trace import BLOCK, CALL, STEP, WAIT, Span, read_spans

DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time in which a process did one thing.

    Attributes:
        begin: nanoseconds since the epoch.
        end: nanoseconds since the epoch.
        name: innermost block, or what is waited for; "" for idle.
        kind: CALL, BLOCK or WAIT; -1 for idle, between calls.
    """

    begin: int
    end: int
    name: str
    kind: int

    @property
    def seconds(self) -> float:
        """Length."""
        return (self.end - self.begin) / 1e9


@dataclass
class Lane:
    """What one process did, without gaps and without overlaps.

    Attributes:
        name: `group:rank`, or "driver".
        pieces: in order.
        calls: calls from outside, in order.
    """

    name: str
    pieces: list[Piece]
    calls: list[Span]
    _begins: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._begins = [piece.begin for piece in self.pieces]

    @property
    def group(self) -> str:
        """Group of the process."""
        return self.name.partition(":")[0]

    def at(self, moment: int) -> Piece | None:
        """Return what it did just before a moment."""
        index = bisect_right(self._begins, moment - 1) - 1
        if index < 0 or self.pieces[index].end < moment:
            return None
        return self.pieces[index]

    def backwards(self, moment: int) -> Iterator[Piece]:
        """Return the pieces that began before a moment, the latest first."""
        for index in range(bisect_right(self._begins, moment - 1) - 1, -1, -1):
            yield self.pieces[index]

    def between(self, begin: int, end: int) -> list[Piece]:
        """Return the pieces of a window, cut at its borders."""
        first = max(0, bisect_right(self._begins, begin) - 1)
        out = []
        for piece in self.pieces[first:]:
            if piece.begin >= end:
                break
            low, high = max(piece.begin, begin), min(piece.end, end)
            if high > low:
                out.append(Piece(low, high, piece.name, piece.kind))
        return out


@dataclass
class Timeline:
    """A run.

    Attributes:
        lanes: by name, workers first.
        steps: spans of the runner's steps, in order.
    """

    lanes: dict[str, Lane]
    steps: list[Span]

    @property
    def workers(self) -> list[Lane]:
        """All lanes but the driver's."""
        return [lane for lane in self.lanes.values() if lane.name != DRIVER]


def load_timeline(folder: str | Path, last: int | None = None) -> Timeline:
    """Read the traces under a run's folder; of a run that was started again, of its last start.

    Args:
        folder: of the run.
        last: read only the last so many steps and what came after them; all by default.

    Raises:
        ValueError: there are none.
    """
    folder = Path(folder)
    # Attempts that failed before a restart have their own folders beside this one.
    root = folder / "workers" if (folder / "workers").is_dir() else folder
    found = sorted(p for p in root.rglob("*.trace*") if p.is_file())
    if not found:
        raise ValueError(
            f"{folder} has no traces: is it the folder of a run (`rlinf train` prints it at its "
            "end), and was runner.trace on?"
        )
    own = [path for path in found if _lane_name(path) == DRIVER]
    driver = read_spans(max(own, key=_start_number)) if own else []
    steps = sorted((s for s in driver if s.kind == STEP), key=lambda span: span.begin)
    since = min((span.begin for span in driver), default=0)
    if last is not None and len(steps) > last:
        steps = steps[-last:]
        since = steps[0].begin
    spans: dict[str, list[Span]] = {}
    for path in found:
        if path not in own:
            # Also those of a worker that was started again within the run.
            spans.setdefault(_lane_name(path), []).extend(read_spans(path, since))
    if own:
        spans[DRIVER] = [span for span in driver if span.end >= since]
    lanes = {name: _lane(name, of_lane) for name, of_lane in sorted(spans.items())}
    return Timeline(lanes, steps)


def _start_number(path: Path) -> int:
    """Return how often a process of this name had been started: `x.trace`, then `x.trace.2`."""
    number = path.name.rpartition(".trace")[2].lstrip(".")
    return int(number) if number.isdigit() else 1


def _lane_name(path: Path) -> str:
    stem = path.name.partition(".")[0]
    if stem == DRIVER:
        return DRIVER
    return f"{path.parent.name}:{stem.removeprefix('rank_').replace('_', ':')}"


def _lane(name: str, spans: list[Span]) -> Lane:
    """Lay nested spans flat: the innermost one counts."""
    calls = [s for s in spans if s.kind == CALL]
    main = calls[0].thread if calls else (spans[0].thread if spans else 0)
    nested = [s for s in spans if s.thread == main and s.kind != STEP]
    nested.sort(key=lambda span: (span.begin, -span.end))
    pieces: list[Piece] = []
    stack: list[Span] = []
    now = 0

    def emit(until: int) -> None:
        nonlocal now
        if until > now:
            top = stack[-1] if stack else None
            piece = Piece(now, until, top.name if top else "", top.kind if top else -1)
            if now:
                pieces.append(piece)
            now = until

    for span in nested:
        while stack and stack[-1].end <= span.begin:
            emit(stack[-1].end)
            stack.pop()
        emit(span.begin)
        now = max(now, span.begin)
        stack.append(span)
    while stack:
        emit(stack[-1].end)
        stack.pop()
    return Lane(name, pieces, calls)


def is_busy(piece: Piece) -> bool:
    """Return whether a process computes, instead of waiting or having nothing to do."""
    return piece.kind in (CALL, BLOCK)


def is_waiting(piece: Piece) -> bool:
    """Return whether a process waits for another in the middle of a call."""
    return piece.kind == WAIT
