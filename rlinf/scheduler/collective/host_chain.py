"""A broadcast from host to host: each receives the bytes once and sends them on while they come.

The bytes of an object go in chunks along a chain with one process of each host. The chain of a set
of hosts is always the same, so that what is sent first arrives first.

The message that begins brings the receivers of all hosts that are still to come, a line for each. A
host reads its own line and the name that comes first in the next one. The others pass through it as
bytes: reading them all on each host would cost the square of the number of hosts.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.net.buffers import POOL
from rlinf.scheduler.net.connection import Connection

if TYPE_CHECKING:
    from rlinf.scheduler.collective.link_steps import TransferSpec
    from rlinf.scheduler.collective.payload import Payload

CHUNK = 4 << 20

Route = list[list[str]]
"""The receivers of each host; the first of each takes the bytes."""
_Key = tuple[str, int]
"""A broadcast: its source and the number there."""
Deliver = Callable[[tuple[str, str, int, list[str]], "Payload"], None]
"""Takes (source, tag, number, neighbours on this host) and the object."""


class HostChain:
    """The chains of a process, as source and as a link of them.

    Args:
        endpoint: sends and receives.
        deliver: takes an object when all of it is here.
        fail: `fail(source, number, error)` if it cannot be sent on.
    """

    def __init__(
        self, endpoint: Endpoint, deliver: Deliver, fail: Callable[[str, int, Exception], None]
    ):
        self._endpoint = endpoint
        self._deliver = deliver
        self._fail = fail
        # By source and its number: those of which some is here.
        self._incoming: dict[_Key, _Incoming] = {}
        self._onward: dict[str, _Onward] = {}
        endpoint.on("chain", self._on_begin)
        endpoint.on("chain.part", self._on_part)
        endpoint.on_end(self._on_end)

    def send(
        self,
        route: Route,
        tag: str,
        number: int,
        parts: Sequence[Any],
        transfers: tuple[TransferSpec, ...] = (),
    ) -> None:
        """Send the bytes of an object along a chain; they must not change before all have it.

        Args:
            route: who gets it.
            tag: stream that it belongs to.
            number: of the broadcast at its source.
            parts: the object.
            transfers: its tensors that come by link.

        Raises:
            PeerLost: the first host cannot be reached.
        """
        endpoint = self._endpoint
        connection = endpoint.connections.to(route[0][0])
        views = [memoryview(part).cast("B") for part in parts]
        sizes = [len(view) for view in views]
        # What is unpickled is in the first part, which goes with the message that begins.
        head, *rest = views
        begin = (endpoint.name, tag, number, sizes, transfers)
        endpoint.submit(connection, "chain", begin, [head, write_route(route)])
        for chunk in chunks(rest, CHUNK):
            endpoint.submit(connection, "chain.part", (endpoint.name, number), chunk, covered=0)

    def _on_begin(
        self,
        sender: str,
        connection: Connection,
        fields: tuple[Any, ...],
        buffers: list[memoryview],
    ) -> None:
        source, tag, number, *content = fields
        head, route = buffers
        own, following, rest = read_route(route)
        onward = None
        if following is not None:
            onward = self._onward_to(following)
            onward.send((source, number), "chain", fields, [head, rest])
        here = (source, tag, number, own[1:])
        incoming = _Incoming(sender, here, head, *content, onward)
        self._incoming[source, number] = incoming
        if incoming.complete:
            self._finish(connection, (source, number))

    def _on_part(
        self, sender: str, connection: Connection, fields: _Key, buffers: list[memoryview]
    ) -> None:
        incoming = self._incoming.get(fields)
        if incoming is None:
            # Its source has ended since.
            return
        if incoming.onward is not None:
            incoming.onward.send(fields, "chain.part", fields, buffers, covered=0)
        incoming.take(buffers)
        if incoming.complete:
            self._finish(connection, fields)

    def _finish(self, connection: Connection, key: _Key) -> None:
        incoming = self._incoming.pop(key)
        payload = self._endpoint.payload(connection, incoming.parts(), incoming.transfers)
        self._deliver(incoming.fields, payload)

    def _onward_to(self, peer: str) -> _Onward:
        """Return what sends to a peer: one for all broadcasts, so that they keep their order."""
        onward = self._onward.get(peer)
        if onward is None or onward.broken:
            onward = self._onward[peer] = _Onward(self._endpoint, peer, self._fail)
        return onward

    def _on_end(self, peer: str, error: BaseException) -> None:
        """Let go of what will never be complete."""
        self._onward.pop(peer, None)
        self._incoming = {
            key: incoming
            for key, incoming in self._incoming.items()
            if peer not in (key[0], incoming.upstream)
        }


class _Incoming:
    """An object of which some bytes are here.

    Args:
        upstream: who sends it.
        fields: source, tag, number, neighbours.
        head: its first part.
        sizes: of all parts.
        transfers: its tensors that come by link.
        onward: sends it to the next host; None at the end of the chain.
    """

    def __init__(
        self,
        upstream: str,
        fields: tuple[str, str, int, list[str]],
        head: memoryview,
        sizes: list[int],
        transfers: tuple[TransferSpec, ...],
        onward: _Onward | None,
    ):
        self.upstream = upstream
        self.fields = fields
        self.transfers = transfers
        self.onward = onward
        self._head = head
        self._sizes = sizes[1:]
        self._total = sum(self._sizes)
        self._memory: memoryview | None = None
        self._filled = 0

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        return self._filled == self._total

    def take(self, buffers: list[memoryview]) -> None:
        """Take the next bytes."""
        if len(buffers) == 1 and len(buffers[0]) == self._total:
            self._memory = buffers[0]
            self._filled = self._total
            return
        if self._memory is None:
            self._memory = POOL.get(self._total)
        for buffer in buffers:
            self._memory[self._filled : self._filled + len(buffer)] = buffer
            self._filled += len(buffer)

    def parts(self) -> list[memoryview]:
        """Return the parts of the object."""
        memory = memoryview(b"") if self._memory is None else self._memory
        out, begin = [self._head], 0
        for size in self._sizes:
            out.append(memory[begin : begin + size])
            begin += size
        return out


class _Onward:
    """Sends to the next host, in order; what comes before the connection is there waits for it.

    Attributes:
        broken: whether nothing more can be sent.
    """

    def __init__(self, endpoint: Endpoint, peer: str, fail: Callable[[str, int, Exception], None]):
        self.broken = False
        self._endpoint = endpoint
        self._fail = fail
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._waiting: deque[tuple[_Key, str, tuple[Any, ...], Any, int | None]] = deque()
        self._failed: set[_Key] = set()
        endpoint.later(self._connect, peer)

    def send(
        self,
        key: _Key,
        kind: str,
        fields: tuple[Any, ...],
        buffers: Any,
        covered: int | None = None,
    ) -> None:
        """Send a message of a broadcast, given by its source and number."""
        with self._lock:
            self._waiting.append((key, kind, fields, buffers, covered))
            failures = self._write_waiting()
        self._tell(failures)

    def _connect(self, peer: str) -> None:
        try:
            connection = self._endpoint.connections.to(peer)
        except Exception as error:
            with self._lock:
                self.broken = True
                failures = [(key, error) for key, *_ in self._waiting]
                self._waiting.clear()
        else:
            with self._lock:
                self._connection = connection
                failures = self._write_waiting()
        self._tell(failures)

    def _write_waiting(self) -> list[tuple[_Key, Exception]]:
        """Write what waits if the connection is there; returns what failed."""
        failures = []
        while self._waiting and (self._connection is not None or self.broken):
            key, *message, covered = self._waiting.popleft()
            try:
                self._endpoint.answer_raw(self._connection, *message, covered=covered)
            except Exception as error:
                self.broken = True
                failures.append((key, error))
        return failures

    def _tell(self, failures: list[tuple[_Key, Exception]]) -> None:
        """Tell each source once."""
        for key, error in failures:
            if key not in self._failed:
                self._failed.add(key)
                self._fail(*key, error)


def write_route(route: Route) -> bytes:
    """Return the receivers of some hosts as text, a line for each host."""
    return b"\n".join(json.dumps(names).encode() for names in route)


def read_route(text: memoryview) -> tuple[list[str], str | None, bytes]:
    """Read what the first host of a route has to know.

    Returns:
        Its receivers; who takes the bytes on the next host, None if there is none; the route from
        there.
    """
    own, _, rest = bytes(text).partition(b"\n")
    following = json.loads(rest.partition(b"\n")[0])[0] if rest else None
    return json.loads(own), following, rest


def chunks(views: Sequence[memoryview], size: int) -> Iterator[list[memoryview]]:
    """Cut the bytes of several views, one after the other, into chunks of at most a size."""
    chunk: list[memoryview] = []
    room = size
    for view in views:
        begin = 0
        while begin < len(view):
            piece = view[begin : begin + room]
            chunk.append(piece)
            begin += len(piece)
            room -= len(piece)
            if room == 0:
                yield chunk
                chunk, room = [], size
    if chunk:
        yield chunk
