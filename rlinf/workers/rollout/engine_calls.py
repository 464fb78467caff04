"""Requests under way in an engine, across weight updates, sleep and evaluations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from rlinf.hybrid_engines.generation import GenerationEngine, GenerationRequest, GenerationResult

Done = Callable[[list[GenerationResult]], None]
"""Gets the responses to a request, in the order of their samples, when all have come to an end."""


@dataclass
class _Call:
    work: GenerationRequest
    done: Done
    results: dict[int, GenerationResult] = field(default_factory=dict)


class EngineCalls:
    """Submits requests to an engine and tells who asked when all responses are there.

    Args:
        engine: whose only user this is.
    """

    def __init__(self, engine: GenerationEngine) -> None:
        self._engine = engine
        self._calls: dict[Hashable, _Call] = {}
        # By name, in the order in which the engine is to have them.
        self._held: dict[Hashable, GenerationRequest] = {}

    @property
    def holds(self) -> bool:
        """Whether there are requests that the engine does not have."""
        return bool(self._held)

    def __contains__(self, request_id: Hashable) -> bool:
        """Return whether a request is under way, or held."""
        return request_id in self._calls

    def submit(self, work: GenerationRequest, done: Done, hold: bool = False) -> None:
        """Take a request.

        Args:
            work: the request.
            done: is called once; it may submit the next one.
            hold: keep it until `carry_on`.

        Raises:
            ValueError: the engine cannot serve it; nothing has changed then.
        """
        if hold:
            self._held[work.request_id] = work
        else:
            self._engine.submit([work])
        self._calls[work.request_id] = _Call(work, done)

    def step(self) -> None:
        """Let the engine work on for a moment."""
        for result in self._engine.step():
            self._add(result)

    def abort(self, request_id: Hashable) -> None:
        """Give a request up, if it is there; nobody is told of what there is of it."""
        if self._calls.pop(request_id, None) is None:
            return
        if self._held.pop(request_id, None) is None:
            self._engine.abort([request_id])

    def suspend(self) -> None:
        """Take unfinished responses out of the engine and hold them."""
        aborted: defaultdict[Hashable, list[GenerationResult]] = defaultdict(list)
        for result in self._engine.abort():
            aborted[result.request_id].append(result)
            if result.finish_reason != "abort":
                self._add(result)
        carried = {
            name: work
            for name, call in self._calls.items()
            if name in aborted and (work := call.work.carry_on(aborted[name])) is not None
        }
        self._held = {**carried, **self._held}

    def carry_on(self) -> None:
        """Give the engine what was held."""
        held, self._held = self._held, {}
        self._engine.submit(list(held.values()))

    def _add(self, result: GenerationResult) -> None:
        call = self._calls[result.request_id]
        call.results[result.sample_index] = result
        if len(call.results) == call.work.n:
            del self._calls[result.request_id]
            call.done([call.results[index] for index in sorted(call.results)])
