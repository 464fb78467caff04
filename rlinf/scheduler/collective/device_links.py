"""All links of a process: which tensors travel by link, over which, and what ends them.

A tensor goes by link if it is large, on a GPU that the receiver does not have, and the receiver has
one of the same kind. All others go through the host, or by CUDA IPC if the GPU is shared. Links are
made when they are first needed: one per set of receivers and GPU of the sender. Beyond a number of
them, the one that was not used for longest is closed.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from rlinf.scheduler.collective import device_group
from rlinf.scheduler.collective.device_link import DeviceLink, DeviceLinkError, LinkContext
from rlinf.scheduler.collective.link_steps import Closing, IncomingTransfer, Step, TransferSpec
from rlinf.scheduler.collective.link_tensors import HOST, LinkKey, LinkTensors, Route
from rlinf.scheduler.collective.options import CollectiveGroupOptions
from rlinf.scheduler.collective.work import Work, finished
from rlinf.scheduler.env_vars import ClusterEnvVar
from rlinf.scheduler.errors import PeerLost

if TYPE_CHECKING:
    from rlinf.scheduler.address import WorkerInfo
    from rlinf.scheduler.net.connection import Connection
    from rlinf.scheduler.spec import RunSpec

MAX_LINKS = 64
"""Links from a process that stay open; each keeps memory of all GPUs that it joins."""

_CLOSING = 5.0
"""Seconds that the end of a process waits for the end of its links."""

_MODES = ("nccl", "gloo", "off")


class LinkHost(Protocol):
    """The process that has links; see `Endpoint`."""

    name: str
    run: RunSpec
    node_ip: str
    visible: list[int]

    def on(self, kind: str, handler: Callable[..., None]) -> None:
        """Let a handler take messages of a kind."""

    def post_soon(self, peer: str, kind: str, fields: tuple[Any, ...]) -> None:
        """Send a small message to a peer, from any thread."""

    def info(self, peer: str) -> WorkerInfo | None:
        """Return what is known of a peer."""

    def gone(self, peer: str) -> BaseException | None:
        """Return why a peer has ended; None as far as is known."""

    def lost(self, peer: str) -> BaseException | None:
        """Return why a peer can no longer be reached; may wait until that is known."""


class DeviceLinks:
    """The links of a process, in both directions."""

    def __init__(self, endpoint: LinkHost):
        """Make no link yet.

        Raises:
            ValueError: RLINF_DEVICE_LINK is none of `nccl`, `gloo` and `off`.
        """
        self._endpoint = endpoint
        self._mode = ClusterEnvVar.DEVICE_LINK.get("nccl")
        if self._mode not in _MODES:
            raise ValueError(f"RLINF_DEVICE_LINK={self._mode!r}; it must be one of {_MODES}")
        self._context = LinkContext(
            endpoint.name,
            endpoint.node_ip,
            endpoint.run.ports,
            device_group.Turn(),
            endpoint.run.timeout("recv"),
            endpoint.lost,
            self._give_up,
        )
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._reach: dict[str, frozenset[int]] = {}
        self._options: dict[str, CollectiveGroupOptions] = {}
        # In the order in which they were last used.
        self._out: dict[LinkKey, DeviceLink] = {}
        self._closing: list[DeviceLink] = []
        self._in: dict[str, DeviceLink] = {}
        self._ended: dict[str, BaseException] = {}
        endpoint.on("link.close", self._on_close)
        endpoint.on("unlink", self._on_unlink)

    # -- which tensors go by link ---------------------------------------------------------------

    def set_options(self, peer: str, options: CollectiveGroupOptions) -> None:
        """Set up later links to a peer in this way.

        Raises:
            TypeError: these are no options.
            ValueError: others were set before, or there is a link with others.
        """
        if not isinstance(options, CollectiveGroupOptions):
            raise TypeError(
                f"options must be CollectiveGroupOptions or None, not {type(options).__name__}"
            )
        with self._lock:
            linked = any(peer in key.receivers for key in self._out)
            known = self._options.get(peer, CollectiveGroupOptions() if linked else options)
            if known != options:
                raise ValueError(
                    f"tensors to {peer} go with {known}; options count at the first contact of two "
                    f"workers, and cannot be changed to {options} later"
                )
            self._options[peer] = options

    def collect(self, receivers: Iterable[str], copy: bool) -> LinkTensors:
        """Return where the tensors of an object for some receivers are put that go by link."""
        return LinkTensors(self.routes(receivers), copy)

    def routes(self, receivers: Iterable[str]) -> dict[str, Route]:
        """Return over which links large tensors go to each receiver that gets some by link."""
        if self._mode == "off" or (self._mode == "nccl" and not self._endpoint.visible):
            return {}
        if "torch" not in sys.modules:
            # There are no tensors yet, and torch takes long to load.
            return {}
        reach = {receiver: self.devices_for(receiver) for receiver in receivers}
        routes: dict[str, Route] = {}
        for device in sorted(frozenset().union(*reach.values())):
            linked = [receiver for receiver, devices in reach.items() if device in devices]
            for group in self._apart(linked):
                key = LinkKey(device, tuple(sorted(group)))
                for receiver in group:
                    routes[receiver] = (*routes.get(receiver, ()), key)
        return routes

    def _apart(self, receivers: list[str]) -> list[list[str]]:
        """Divide receivers so that no two of a group use one GPU, which NCCL does not allow."""
        groups: list[dict[Any, str]] = []
        for receiver in receivers:
            info = self._endpoint.info(receiver)
            used = receiver
            if self._mode == "nccl" and info is not None:
                used = info.available_accelerators[0]
            group = next((group for group in groups if used not in group), None)
            if group is None:
                groups.append(group := {})
            group[used] = receiver
        return [list(group.values()) for group in groups]

    def devices_for(self, peer: str) -> frozenset[int]:
        """Return the indices of the devices whose tensors go to a peer by link."""
        reach = self._reach.get(peer)
        if reach is None:
            reach = self._reach[peer] = self._find_reach(peer)
        return reach

    def _find_reach(self, peer: str) -> frozenset[int]:
        if self._mode == "off" or not device_group.available(self._mode):
            return frozenset()
        if self._mode == "gloo":
            return frozenset({HOST})
        info = self._endpoint.info(peer)
        kind = os.environ.get("ACCELERATOR_TYPE")
        theirs = set(info.available_accelerators) if info is not None else set()
        if not theirs or info.accelerator_type != kind:
            return frozenset()
        seen = self._endpoint.visible
        return frozenset(i for i, device in enumerate(seen) if device not in theirs)

    # -- sending ------------------------------------------------------------------------------

    def dispatch(self, tensors: LinkTensors) -> None:
        """Send off what goes by link; messages that say so must follow, or `revoke`.

        Raises:
            PeerLost: a receiver has ended.
        """
        try:
            for key, outgoing in tensors.outgoing().items():
                link, number = self._reserve(key)
                specs = [
                    (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in outgoing.tensors
                ]
                tensors.specs[key] = TransferSpec(link.address, number, key.device, tuple(specs))
                link.post(number, outgoing)
                for receiver in key.receivers:
                    error = self._endpoint.gone(receiver)
                    if error is not None:
                        self.peer_gone(receiver, error)
                        raise error
        except BaseException as error:
            self.revoke(tensors, error)
            raise

    def revoke(self, tensors: LinkTensors, error: BaseException) -> None:
        """End the links over which tensors go that not all receivers will be told of."""
        ids = {spec.link.id for spec in tensors.specs.values()}
        for link in self._all():
            if link.address.id in ids:
                self._give_up(link, error)

    def _reserve(self, key: LinkKey) -> tuple[DeviceLink, int]:
        """Return a link, made if need be, and the number of the next transfer on it."""
        retired = []
        with self._lock:
            link = self._out.pop(key, None)
            if link is None:
                self._close_at_exit()
                retired = self._retire_unused()
                options = {self._options.get(receiver) for receiver in key.receivers}
                link = DeviceLink.create(
                    self._context,
                    key.receivers,
                    f"{self._endpoint.name} {secrets.token_hex(8)}",
                    self._mode,
                    key.device,
                    (options.pop() if len(options) == 1 else None) or CollectiveGroupOptions(),
                )
            self._out[key] = link
            number = link.reserve()
        for old, last in retired:
            self._close(old, last)
        return link, number

    def _retire_unused(self) -> list[tuple[DeviceLink, int]]:
        """Choose links to close, and the number under which each one is."""
        unused = [key for key, link in self._out.items() if link.idle]
        keys = unused[: max(0, len(self._out) + 1 - MAX_LINKS)]
        links = [self._out.pop(key) for key in keys]
        self._closing += links
        return [(link, link.reserve()) for link in links]

    def _close(self, link: DeviceLink, number: int) -> None:
        """Close a link of this process when all receivers have what was sent over it."""
        link.post(number, self._closing_step(link))
        spec = TransferSpec(link.address, number, HOST, ())
        for receiver in link.address.receivers:
            self._endpoint.post_soon(receiver, "link.close", (spec,))

    def _closing_step(self, link: DeviceLink) -> Closing:
        work = Work(f"the end of a link of {link.address.source}")
        error = DeviceLinkError(f"the link of {link.address.source} is closed")

        def closed(_: Work) -> None:
            # No message will name it any more, so there is nothing to remember.
            self._remove([link])
            link.end(error)

        work.on_done(closed)
        return Closing(work)

    # -- receiving ----------------------------------------------------------------------------

    def expect(self, transfers: tuple[TransferSpec, ...]) -> dict[int, Work]:
        """Begin to receive what a message says.

        Returns:
            Works whose outcomes are lists of tensors, by the index of the source's device.
        """
        return {transfer.device: self._receive(transfer) for transfer in transfers}

    def _receive(self, transfer: TransferSpec) -> Work:
        source = transfer.link.source
        work = Work(f"tensors from {source}", self._context.name, self._context.limit)
        step = IncomingTransfer(transfer.tensors, work)
        return self._follow(transfer, lambda _: step)

    def _on_close(self, peer: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        self._follow(fields[0], self._closing_step)

    def _follow(self, transfer: TransferSpec, step_on: Callable[[DeviceLink], Step]) -> Work:
        """Do on the link of another process what that says."""
        address = transfer.link
        with self._lock:
            if address.id in self._ended:
                return finished(error=self._ended[address.id])
            link = self._in.get(address.id)
            if link is None:
                self._close_at_exit()
                link = self._in[address.id] = DeviceLink(self._context, address, _own_device())
        step = step_on(link)
        link.post(transfer.number, step)
        return step.work

    # -- ends ---------------------------------------------------------------------------------

    def _close_at_exit(self) -> None:
        # NCCL does not survive the end of CUDA, which comes with that of the interpreter.
        if not self._out and not self._in:
            atexit.unregister(self.close)
            atexit.register(self.close)

    def peer_gone(self, peer: str, error: BaseException) -> None:
        """A peer has ended: fails what is under way between it and this process."""
        self._reach.pop(peer, None)
        for link in self._all():
            if peer in link.address.members:
                self._give_up(link, error, but=peer)

    def close(self) -> None:
        """End all links, and wait a moment for that; in a forked child they are the parent's."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        links = self._all()
        self._end(links, DeviceLinkError(f"{self._context.name} has ended"))
        deadline = time.monotonic() + _CLOSING
        for link in links:
            link.join(deadline)

    def _give_up(self, link: DeviceLink, error: BaseException, but: str = "") -> None:
        """End a link and tell its members, by way of its source, except for one."""
        self._end([link], error)
        address = link.address
        for member in address.receivers if link.is_source else (address.source,):
            if member != but:
                self._endpoint.post_soon(member, "unlink", (address.id, _portable(error)))

    def _on_unlink(self, peer: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        link_id, error = fields
        if not isinstance(error, PeerLost):
            error = DeviceLinkError(f"{peer} says: {error}")
        with self._lock:
            # Messages of the link may come later still.
            self._ended.setdefault(link_id, error)
        for link in self._all():
            if link.address.id == link_id:
                self._give_up(link, error, but=peer)

    def _all(self) -> list[DeviceLink]:
        with self._lock:
            return [*self._out.values(), *self._closing, *self._in.values()]

    def _end(self, links: list[DeviceLink], error: BaseException) -> None:
        with self._lock:
            for link in links:
                self._ended.setdefault(link.address.id, error)
        self._remove(links)
        for link in links:
            link.end(error)

    def _remove(self, links: list[DeviceLink]) -> None:
        with self._lock:
            self._out = {key: link for key, link in self._out.items() if link not in links}
            self._in = {key: link for key, link in self._in.items() if link not in links}
            self._closing = [link for link in self._closing if link not in links]


def _portable(error: BaseException) -> BaseException | str:
    """Return what tells others of an error: the loss of a peer as it is, others in words."""
    return error if isinstance(error, PeerLost) else str(error)


def _own_device() -> int:
    """Index of the first GPU of this process, among those that it sees."""
    isolated = os.environ.get("ISOLATE_ACCELERATOR", "1") == "1"
    return 0 if isolated else max(0, int(os.environ["LOCAL_ACCELERATOR_RANK"]))
