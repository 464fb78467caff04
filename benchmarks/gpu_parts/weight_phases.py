"""What a weight update consists of: when which process does what, with buckets of several sizes.

One row for each way to send: the time of updates that nobody watches, and, from further updates,
the milliseconds of each phase. The clock is the same in all processes of a machine. A watched
update waits for the device after each phase, so its phases add up to more than the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu_parts.settings import TINY, Row, Settings
from benchmarks.gpu_parts.weights import AIM_MS, launched, update
from rlinf.hybrid_engines.weight_sync import packing, receiver, sender, staging
from rlinf.scheduler import wait_all
from rlinf.scheduler.collective.payload import Unpacker
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from rlinf.workers.rollout.generation_worker import GenerationWorker

WARM_UP, ROUNDS, WATCHED = 3, 20, 10

VARIANTS: dict[str, tuple[int | None, bool]] = {
    "not kept, 2 GiB": (2 << 30, False),
    "kept, 256 MiB": (256 << 20, True),
    "kept, 1 GiB": (1 << 30, True),
    "kept, 2 GiB": (2 << 30, True),
    "kept, all in one": (64 << 30, True),
}
"""Bucket size, and whether buffers are kept."""

Span = tuple[str, float, float]
"""What, from when, until when."""


class _Watch:
    """Notes how long calls take, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.spans: list[Span] = []

    def around(self, name: str, function: Callable[..., Any], settle: bool = False) -> Any:
        """Return the function, with a note of each call.

        `settle` waits for the device at its end.
        """

        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return function(*args, **kwargs)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                if settle and torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.spans.append((name, begin, time.perf_counter()))

        return watched

    def take(self) -> list[Span]:
        spans, self.spans = self.spans, []
        return spans


class WatchedActor(ReasoningActor):
    """The actor, which can send in several ways and says when it did what."""

    def prepare(self, tiny: bool) -> None:
        """Has to come first."""
        self._watch = watch = _Watch()
        packing.copy_all = watch.around("cast and pack", packing.copy_all, settle=True)
        packing.Layout.checksums = watch.around("sums", packing.Layout.checksums)
        staging._Slot.wait = watch.around("wait for reader", staging._Slot.wait)
        self.broadcast = watch.around("send message", self.broadcast)
        sender.on_gpu = (lambda bucket: True) if tiny else sender.on_gpu

    def use(self, limit: int | None, keep: bool, verify: bool) -> None:
        """How to send from now on."""
        one = self._senders["rollout"]
        one._limit, one._verify = limit, verify
        one._staging = staging.Staging("weights") if keep else None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def watch(self, on: bool) -> None:
        """Whether to note times."""
        self._watch.on = on

    def sync_model_to_rollout(self) -> int:
        """As that of the actor."""
        return self._watch.around("call", super().sync_model_to_rollout)()

    def spans(self) -> list[Span]:
        """Return what was noted since the last call."""
        return self._watch.take()

    def memory(self) -> float:
        """Return the gigabytes that this process has from the device."""
        return torch.cuda.memory_reserved() / 1e9 if torch.cuda.is_available() else 0.0


class WatchedRollout(GenerationWorker):
    """The engine's worker, which says when it did what."""

    async def prepare(self) -> None:
        """Has to come first."""
        self._watch = watch = _Watch()
        receiver.copy_all = watch.around("copy", receiver.copy_all, settle=True)
        receiver._require_unchanged = watch.around("sums", receiver._require_unchanged)
        receiver._tensors = watch.around("names", receiver._tensors)
        packing.Layout.views = watch.around("views", packing.Layout.views)
        Unpacker.borrow = watch.around("map", Unpacker.borrow)
        self.broadcast = watch.around("wait for message", self.broadcast)

    async def watch(self, on: bool) -> None:
        """Whether to note times."""
        self._watch.on = on

    async def sync_model_from_actor(self) -> int:
        """As that of the worker."""
        begin = time.perf_counter()
        version = await super().sync_model_from_actor()
        if self._watch.on:
            self._watch.spans.append(("call", begin, time.perf_counter()))
        return version

    async def spans(self) -> list[Span]:
        """Return what was noted since the last call."""
        return self._watch.take()

    async def memory(self) -> float:
        """Return the gigabytes that this process has from the device."""
        return torch.cuda.memory_reserved() / 1e9 if torch.cuda.is_available() else 0.0


def measure(settings: Settings) -> Iterator[Row]:
    """A row for each way to send, with checksums and without."""
    shape = TINY if settings.tiny else settings.sizes[-1]
    with launched(shape, WatchedActor, WatchedRollout) as (actor, rollout):
        wait_all(rollout.prepare(), actor.prepare(settings.tiny))
        for name, (limit, keep) in VARIANTS.items():
            for verify in (True, False):
                actor.use(limit, keep, verify).wait()
                yield {
                    "how": name,
                    "sums": "yes" if verify else "no",
                    **_timed(actor, rollout),
                    **_phases(actor, rollout),
                }


def _timed(actor: Any, rollout: Any) -> Row:
    times = []
    for _ in range(WARM_UP + ROUNDS):
        begin, end, _ = update(actor, rollout)
        times.append(1e3 * (end - begin))
    middle = statistics.median(times[WARM_UP:])
    return {
        "ms": round(middle, 2),
        "best": round(min(times[WARM_UP:]), 2),
        "first": round(times[0], 1),
        "aim": f"< {AIM_MS}: {'met' if middle < AIM_MS else 'missed'}",
        "actor GB": round(actor.memory().wait()[0], 1),
        "engine GB": round(rollout.memory().wait()[0], 1),
    }


def _phases(actor: Any, rollout: Any) -> Row:
    """Medians over watched updates of what each phase takes in each, all buckets together."""
    rounds: list[dict[str, float]] = []
    wait_all(actor.watch(True), rollout.watch(True))
    for _ in range(WATCHED):
        begin, end, _ = update(actor, rollout)
        sent, received = actor.spans().wait()[0], rollout.spans().wait()[0]
        calls = [span for span in sent + received if span[0] == "call"]
        found = {
            "watched": end - begin,
            "to call": max(span[1] for span in calls) - begin,
            "to answer": end - max(span[2] for span in calls),
        }
        for side, spans in (("actor", sent), ("engine", received)):
            for name, since, until in spans:
                key = f"{side}: {name}"
                found[key] = found.get(key, 0.0) + until - since
            within = sum(v for k, v in found.items() if k.startswith(side) and "map" not in k)
            # Names, above all, on the actor's side.
            found[f"{side}: other"] = 2 * found[f"{side}: call"] - within
        rounds.append(found)
    wait_all(actor.watch(False), rollout.watch(False))
    names = dict.fromkeys(name for found in rounds for name in found)
    medians = {n: statistics.median(found.get(n, 0.0) for found in rounds) for n in names}
    return {name: round(1e3 * seconds, 2) for name, seconds in medians.items()}
