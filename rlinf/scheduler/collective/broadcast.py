"""One object from one worker to many: encoded once, across the network once per node.

On the sender's node all receivers read the same block of shared memory. On each other node one
receiver gets the bytes and shares them with its neighbours. If there are several other nodes, the
bytes go from one to the next (`HostChain`). Large tensors on a GPU go to other GPUs by link, once
for all receivers (`DeviceLinks`).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf.scheduler.address import WorkerAddress
from rlinf.scheduler.collective.broadcast_messages import BroadcastMessage, encode_all
from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.collective.host_chain import HostChain
from rlinf.scheduler.collective.mailbox import Mailbox
from rlinf.scheduler.collective.members import Groups, Members
from rlinf.scheduler.collective.work import Work
from rlinf.scheduler.errors import CallCancelled, SchedulerError
from rlinf.scheduler.net.connection import Connection

if TYPE_CHECKING:
    from rlinf.scheduler.collective.link_tensors import LinkTensors
    from rlinf.scheduler.collective.options import CollectiveGroupOptions
    from rlinf.scheduler.collective.payload import PackedMessage, Payload


class HeldPayload(NamedTuple):
    """An object that the source may not change yet.

    Attributes:
        obj: the object.
        give_back: says that it has been used; to be called once.
    """

    obj: Any
    give_back: Callable[[], None]


_KEPT_PLANS = 64


class _Plan(NamedTuple):
    """What a process has to know of a broadcast.

    Attributes:
        root: the source.
        tag: stream that it belongs to.
        receivers: at the source, who gets it; empty elsewhere.
    """

    root: str
    tag: str
    receivers: list[str]


@dataclass
class _Sent:
    """A broadcast that not all have taken yet.

    Attributes:
        missing: who has not.
        work: of the source.
        tag: stream that it belongs to.
        tensors: those that go by link.
    """

    missing: set[str]
    work: Work
    tag: str
    tensors: LinkTensors | None = None


class Broadcaster:
    """Broadcasts of a process, as source, relay and receiver."""

    def __init__(self, endpoint: Endpoint, mailbox: Mailbox):
        self._endpoint = endpoint
        self._mailbox = mailbox
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._sent: dict[int, _Sent] = {}
        # By what the caller gave: working it out takes as long as the list of members is.
        self._plans: dict[Any, _Plan] = {}
        # By tag: broadcasts to hand on, in the order in which they came.
        self._relays: dict[str, deque[Callable[[], None]]] = {}
        self._chain = HostChain(endpoint, self._arrive, self._undelivered)
        endpoint.on("spread", self._on_spread)
        endpoint.on("arrived", self._on_arrived)
        endpoint.on("undelivered", self._on_undelivered)
        endpoint.on_end(self._on_end)

    def broadcast(
        self,
        obj: Any,
        groups: Groups,
        source: tuple[str, Any] | None,
        hold: bool = False,
        options: CollectiveGroupOptions | None = None,
        prefix: str = "",
    ) -> Work:
        """Start a broadcast in which this process is the source or a receiver.

        The source's work is done when every receiver has taken the object, or, if it holds it, has
        given it back. What streams begin with the prefix is given up by `abandon`.
        """
        root, tag, receivers = self._plan(groups, source)
        tag = prefix + tag
        is_source = self._endpoint.name == root
        if options is not None:
            for peer in receivers if is_source else [root]:
                self._endpoint.links.set_options(peer, options)
        if is_source:
            return self._send(obj, receivers, tag)
        return self._mailbox.recv(root, tag).then(self._take, root, hold)

    def _plan(self, groups: Groups, source: tuple[str, Any] | None) -> _Plan:
        key = _key(groups, source)
        plan = self._plans.get(key) if key is not None else None
        if plan is None:
            members, name = Members(groups), self._endpoint.name
            root = WorkerAddress(*source).get_name() if source else members.first
            if root not in members:
                raise ValueError(f"the source {root} is not a member of the broadcast of {members}")
            if name not in members:
                raise ValueError(
                    f"{name} calls a broadcast of {members}, of which it is not a member"
                )
            receivers = [m for m in members.names() if m != root] if name == root else []
            plan = _Plan(root, members.tag(root), receivers)
            if key is not None:
                with self._lock:
                    self._plans[key] = plan
                    if len(self._plans) > _KEPT_PLANS:
                        del self._plans[next(iter(self._plans))]
        return plan

    def _take(self, message: tuple[int, Any], root: str, hold: bool) -> Any:
        number, obj = message

        def give_back() -> None:
            self._endpoint.post_soon(root, "arrived", (number,))

        if hold:
            return HeldPayload(obj, give_back)
        give_back()
        return obj

    def _send(self, obj: Any, receivers: list[str], tag: str) -> Work:
        endpoint = self._endpoint
        limit = endpoint.run.timeout("recv")
        number = next(self._numbers)
        work = Work(f"{', '.join(receivers)} to take a broadcast", endpoint.name, limit)
        if not receivers:
            work.finish(obj)
            return work
        endpoint.watch(*receivers)
        sent = _Sent(set(receivers), work, tag)
        with self._lock:
            self._sent[number] = sent
        work.on_done(lambda _: self._sent.pop(number, None))
        try:
            endpoint.locate(receivers)
            tensors = sent.tensors = endpoint.links.collect(receivers, copy=False)
            messages = encode_all(endpoint, (number, obj), receivers, tensors)
            tensors.close()
            for transfer in tensors.left:
                transfer.on_done(partial(_fail_with, work))
            self._spread_out(messages, number, tag, tensors, limit or 1e9)
        except BaseException as error:
            work.finish(error=error)
            raise
        return work.then(lambda _: obj)

    def _spread_out(
        self,
        messages: list[BroadcastMessage],
        number: int,
        tag: str,
        tensors: LinkTensors,
        limit: float,
    ) -> None:
        """Send each message to its receivers."""
        endpoint = self._endpoint
        # Shared memory may have to be waited for, which links must not have to: they come after it.
        packed: deque[tuple[list[str], list[str], PackedMessage]] = deque()
        told: set[str] = set()
        try:
            for message in messages:
                if message.near:
                    content = endpoint.packer.pack(message.encoded, message.near, True, limit)
                    packed.append((message.near, [], content))
                if len(message.far) == 1:
                    first, *others = message.far[0]
                    content = endpoint.packer.pack(message.encoded, [first], False, limit)
                    packed.append(([first], others, content))
            endpoint.links.dispatch(tensors)
            while packed:
                receivers, others, content = packed.popleft()
                told.update(receivers)
                content.transfers = tensors.transfers(receivers[0])
                self._spread(receivers, (endpoint.name, tag, number, others), content)
            for message in messages:
                if len(message.far) > 1:
                    parts = [message.encoded.header, *message.encoded.buffers]
                    transfers = tensors.transfers(message.far[0][0])
                    self._chain.send(message.far, tag, number, parts, transfers)
        except BaseException as error:
            for receivers, _, content in packed:
                endpoint.discard(content, receivers)
            for message in messages:
                if message.tokens and not told.issuperset(message.near):
                    endpoint.packer.abandon(message.tokens)
            endpoint.links.revoke(tensors, error)
            raise

    def _spread(self, receivers: list[str], fields: tuple[Any, ...], packed: PackedMessage) -> None:
        """Send one message to each receiver; after a failure, none of the others gets it."""
        for index, receiver in enumerate(receivers):
            try:
                self._endpoint.post(receiver, "spread", fields, packed)
            except BaseException:
                self._endpoint.discard(packed, receivers[index + 1 :])
                raise

    def _on_spread(
        self, sender: str, _: Connection, fields: tuple[Any, ...], payload: Payload | None
    ) -> None:
        assert payload is not None
        self._arrive(fields, payload)

    def _arrive(self, fields: tuple[Any, ...], payload: Payload) -> None:
        """Take an object, and let neighbours have it as well."""
        root, tag, _, relay_to = fields
        if relay_to:
            # The object that is made of the bytes shares their memory, and may be changed.
            limit = self._endpoint.run.timeout("recv")
            copied = Work(f"a copy of a broadcast for {relay_to}", self._endpoint.name, limit)
            payload.decode_after(copied)
            self._relay_in_turn(tag, partial(self._relay, fields, payload, copied))
        self._mailbox.deliver(root, tag, payload, charged=False)

    def _relay_in_turn(self, tag: str, relay: Callable[[], None]) -> None:
        """Run a relay outside of the I/O thread, after those of its tag that came before."""
        with self._lock:
            running = tag in self._relays
            self._relays.setdefault(tag, deque()).append(relay)
        if not running:
            self._endpoint.later(self._run_relays, tag)

    def _run_relays(self, tag: str) -> None:
        while True:
            with self._lock:
                if not self._relays[tag]:
                    del self._relays[tag]
                    return
                relay = self._relays[tag].popleft()
            relay()

    def _relay(self, fields: tuple[Any, ...], payload: Payload, copied: Work) -> None:
        """Share the bytes of a broadcast with neighbours on this node, or say why not."""
        root, tag, number, to = fields
        try:
            try:
                packed = self._copy(to, payload.parts)
                packed.transfers = payload.transfers
            finally:
                copied.finish()
            self._spread(to, (root, tag, number, []), packed)
        except Exception as error:
            self._undelivered(root, number, error)

    def _undelivered(self, root: str, number: int, error: Exception) -> None:
        """Tell the source that a broadcast could not be handed on."""
        failure = error
        if not isinstance(error, SchedulerError):
            name = self._endpoint.name
            failure = SchedulerError(f"{name} could not hand a broadcast on: {error}")
        self._endpoint.post_soon(root, "undelivered", (number, failure))

    def _copy(self, to: list[str], parts: list[memoryview]) -> PackedMessage:
        from rlinf.scheduler.collective.codec import Encoded

        for receiver in to:
            self._endpoint.connections.to(receiver)
        shared = all(self._endpoint.shares_memory(receiver) for receiver in to)
        limit = self._endpoint.run.timeout("recv") or 1e9
        encoded = Encoded(bytes(parts[0]), list(parts[1:]))
        packed = self._endpoint.packer.pack(encoded, to, shared, limit)
        packed.buffers = [bytes(part) for part in packed.buffers]
        return packed

    def _on_undelivered(self, sender: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        number, error = fields
        with self._lock:
            sent = self._sent.get(number)
        if sent is not None and sent.tensors is not None:
            # Those who were told of transfers by link would wait there for those who were not.
            self._endpoint.links.revoke(sent.tensors, error)
            sent.work.finish(error=error)

    def _on_arrived(self, sender: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        self._arrived(fields[0], sender)

    def _arrived(self, number: int, receiver: str) -> None:
        with self._lock:
            sent = self._sent.get(number)
            if sent is not None:
                sent.missing.discard(receiver)
            complete = sent is not None and not sent.missing
        if complete and sent is not None:
            sent.work.finish()

    def abandon(self, prefix: str) -> None:
        """Give up what this process has sent in streams whose tag begins so."""
        with self._lock:
            found = [sent for sent in self._sent.values() if sent.tag.startswith(prefix)]
        for sent in found:
            error = CallCancelled(f"the exchange {sent.tag!r} was given up")
            if sent.tensors is not None:
                self._endpoint.links.revoke(sent.tensors, error)
            sent.work.finish(error=error)

    def _on_end(self, peer: str, error: BaseException) -> None:
        with self._lock:
            failed = [sent.work for sent in self._sent.values() if peer in sent.missing]
        for work in failed:
            work.finish(error=error)


def _fail_with(work: Work, transfer: Work) -> None:
    """Fail a broadcast whose tensors could not leave: nobody will say that it has them."""
    try:
        transfer.result()
    except Exception as error:
        work.finish(error=error)


def _key(groups: Groups, source: tuple[str, Any] | None) -> Any:
    """Return what is equal for equal arguments and can be looked up; None if there is no such."""
    try:
        listed = [(g, type(r), tuple(r) if isinstance(r, list) else r) for g, r in groups]
        key = (tuple(listed), source and tuple(source))
        hash(key)
    except (TypeError, ValueError):
        # Whoever works out the plan says what is wrong.
        return None
    return key
