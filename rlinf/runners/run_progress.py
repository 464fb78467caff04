"""The progress of a run, with what its driver waits for and how full its channels are."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.scheduler import Cluster
from rlinf.scheduler.failure.post_mortem import activity_of
from rlinf.scheduler.spec import worker_file
from rlinf.scheduler.worker.pending import PendingCall, pending_calls
from rlinf.utils.progress import Progress
from rlinf.utils.run_state import span

_LONG_WAIT = 10.0
"""Seconds after which a wait is shown with what the workers are doing."""

_MOST_CALLS, _MOST_WORKERS = 4, 4


def run_progress(total: int, mode: str) -> Progress:
    """Return the display of a run on this process's cluster.

    Args:
        total: steps of the run.
        mode: `runner.progress`.
    """
    return Progress(total, mode, waiting=waits, queues=queue_depths)


def waits() -> list[str]:
    """Return the calls that the driver waits for; of long waits also what the workers are doing."""
    calls = pending_calls()
    shown = [_describe(call) for call in calls[:_MOST_CALLS]]
    return shown + ([f"{len(calls) - _MOST_CALLS} more"] if len(calls) > _MOST_CALLS else [])


def _describe(call: PendingCall) -> str:
    text = f"{call.name} {span(call.seconds)}"
    if call.seconds < _LONG_WAIT:
        return text
    doing = _activities(call)
    return f"{text} ({'; '.join(doing)})" if doing else text


def _activities(call: PendingCall) -> list[str]:
    """Return what the first ranks of a call are doing, if their notes are on this machine."""
    folder = Cluster.current().run.log_dir
    names = [f"{call.group}:{rank}" for rank in call.ranks[:_MOST_WORKERS]]
    found = [(name, activity_of(worker_file(folder, name, ".record"))) for name in names]
    return [f"{name}: {activity}" for name, activity in found if activity]


def queue_depths() -> Sequence[str]:
    """Return the items and bytes in each channel, the fullest first."""
    stats = Cluster.current().channel_stats()
    ranked = sorted(stats.items(), key=lambda entry: (-entry[1]["depth"], entry[0]))
    return [
        f"{name} {counters['depth']:,.0f}"
        + (f" ({_size(counters['bytes'])})" if counters["bytes"] else "")
        for name, counters in ranked
    ]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}"
        count /= 1024
    raise AssertionError
