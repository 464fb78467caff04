"""A link: an ordered, one-directional stream of tensors from one process to one or several others.

A link moves tensors between GPUs without the host, by NCCL (see `device_group`). Messages go their
usual way and only say which tensors come over which link, and under which number. Each member has
one thread per link, which sends or receives in the order of these numbers, so that the operations
of all members match whatever the order in which messages are sent and arrive. The receiving thread
begins when a message has arrived, whether or not somebody asks for it: nothing can be stuck behind
a message that nobody takes.

When something goes wrong on a link, all that is under way on it fails for all members; the next
message makes a new one.

The tests of NCCL are between processes on one GPU, each told by NCCL_HOSTID that it is on a host
of its own, so over sockets. Between GPUs of one host (NVLink, PCIe) and over InfiniBand it has
never run. Tests without a GPU use gloo and tensors of the host (`RLINF_DEVICE_LINK=gloo`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rlinf.scheduler.collective import group_store
from rlinf.scheduler.collective.device_group import DeviceGroup, GroupPlace, Turn
from rlinf.scheduler.collective.link_steps import LinkAddress, Step
from rlinf.scheduler.collective.options import CollectiveGroupOptions
from rlinf.scheduler.errors import SchedulerError

_GRACE = 10.0
"""Seconds in which the death of a member is expected to be known after a link broke."""


class DeviceLinkError(SchedulerError):
    """Tensors were lost because a link between devices failed."""


class LinkContext(NamedTuple):
    """What links know of the process that they belong to.

    Attributes:
        name: its name.
        host: address of its node.
        ports: lowest and highest port that it may listen on; None is any.
        turn: what it gives to one link at a time.
        limit: seconds after which a transfer that has begun is given up.
        ended: tells why a peer has ended, or None while it lives; may block.
        on_broken: called in a link's thread when the link has broken on its own, with the reason,
            after all that waits was told.
    """

    name: str
    host: str
    ports: tuple[int, int] | None
    turn: Turn
    limit: float | None
    ended: Callable[[str], BaseException | None]
    on_broken: Callable[[DeviceLink, BaseException], None]


class DeviceLink:
    """One member's side of a link.

    Attributes:
        address: who the members are, and where the source is.
        is_source: whether this member sends.
    """

    def __init__(
        self, context: LinkContext, address: LinkAddress, device: int, listener: Any = None
    ):
        """Begin to connect; `create` makes the source's side.

        Args:
            context: this process.
            address: the link.
            device: index of the GPU that tensors leave from, or come to.
            listener: socket of the source's store; None for receivers.
        """
        self.address = address
        self.is_source = listener is not None
        self._device = device
        self._context = context
        self._listener = listener
        self._state = threading.Condition()
        self._posted: dict[int, Step] = {}
        self._count = 0
        self._next = 0
        self._moving: Step | None = None
        self._error: BaseException | None = None
        self._server: group_store.Server | None = None
        self._group: DeviceGroup | None = None
        self._taking_down = threading.Lock()
        name = f"rlinf-link {self._way}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def create(
        cls,
        context: LinkContext,
        receivers: Sequence[str],
        link_id: str,
        backend: str,
        device: int,
        options: CollectiveGroupOptions,
    ) -> DeviceLink:
        """Return the source's side of a new link.

        Args:
            context: this process, which is the source.
            receivers: names of the receivers.
            link_id: identity of the link in the whole run.
            backend: `nccl` or `gloo`.
            device: index of the GPU that the tensors are on.
            options: settings of the group.
        """
        listener = group_store.listen(context.host, context.ports)
        port = listener.getsockname()[1]
        members = (context.name, *receivers)
        address = LinkAddress(link_id, backend, context.host, port, members, options)
        return cls(context, address, device, listener)

    @property
    def _way(self) -> str:
        if self.is_source:
            return f"to {', '.join(self.address.receivers)}"
        return f"from {self.address.source}"

    # -- any thread ---------------------------------------------------------------------------

    def reserve(self) -> int:
        """Return the next number; a step has to be posted under it, and be told to receivers."""
        with self._state:
            number = self._count
            self._count += 1
        return number

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, as far as the source knows."""
        with self._state:
            return self._next == self._count and self._moving is None

    def post(self, number: int, step: Step) -> None:
        """Do a step when it is its turn."""
        with self._state:
            error = self._error
            if error is None:
                self._posted[number] = step
                self._state.notify_all()
        if error is not None:
            step.work.finish(error=error)

    def end(self, error: BaseException) -> None:
        """Fail what is under way, and what comes later, and end the thread."""
        with self._state:
            if self._error is not None:
                return
            self._error = error
            steps = [*([self._moving] if self._moving else []), *self._posted.values()]
            self._posted.clear()
            self._state.notify_all()
        for step in steps:
            step.work.finish(error=error)
        # Takes half a second with NCCL.
        threading.Thread(target=self._take_down, name="rlinf-link end", daemon=True).start()

    def join(self, deadline: float) -> None:
        """Wait, until a time of the monotonic clock, for the end of a link that was ended."""
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _take_down(self) -> None:
        # The link's thread and that of `end` may both come; the second waits for the first.
        with self._taking_down:
            server, self._server = self._server, None
            group, self._group = self._group, None
            if server is not None:
                server.close()
            if group is not None:
                group.abort()

    # -- the link's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            group = self._connect()
            while (step := self._take()) is not None:
                outcome = step.move(group, self._next - 1, self._context.limit)
                with self._state:
                    self._moving = None
                    error = self._error
                # What an ended link has moved may be garbage.
                step.work.finish(outcome, error)
                del step, outcome
        except Exception as error:
            self._broken(error)
        finally:
            self._take_down()

    def _connect(self) -> DeviceGroup:
        if self._listener is not None:
            self._server = group_store.Server(self._listener)
        address, context = self.address, self._context
        members = address.members
        group = DeviceGroup(
            address.backend,
            GroupPlace(
                members.index(context.name),
                tuple(sorted(range(len(members)), key=members.__getitem__)),
                self._device,
                context.host,
                (address.host, address.port),
            ),
            address.options,
            context.turn,
            given_up=lambda: self._error is not None,
        )
        self._group = group
        return group

    def _take(self) -> Step | None:
        with self._state:
            self._state.wait_for(lambda: self._error is not None or self._next in self._posted)
            if self._error is not None:
                return None
            self._moving = self._posted.pop(self._next)
            self._next += 1
            return self._moving

    def _broken(self, cause: Exception) -> None:
        # If a member has died, that is what is to be told, and it is known in a moment.
        deadline = time.monotonic() + _GRACE
        others = [name for name in self.address.members if name != self._context.name]
        error: BaseException | None = None
        while error is None and self._error is None and time.monotonic() < deadline:
            ends = map(self._context.ended, others)
            error = next((end for end in ends if end is not None), None)
            time.sleep(0.02)
        if self._error is not None:
            # It was ended, and this is how its thread noticed.
            return
        if error is None:
            error = DeviceLinkError(
                f"tensors {self._way} were lost: the {self.address.backend} link failed with "
                f"{type(cause).__name__}: {cause}. RLINF_DEVICE_LINK=off uses the host instead."
            )
            error.__cause__ = cause
        self.end(error)
        self._context.on_broken(self, error)
