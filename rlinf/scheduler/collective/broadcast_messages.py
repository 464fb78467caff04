"""The messages of a broadcast: one for all receivers whose tensors travel the same way.

Receivers that share a GPU with the source get handles, which are made for one reader each. Those
with GPUs of their own get what is on the source's by link, and a message that says so. All others
get everything in the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf.scheduler.collective.endpoint import Endpoint

if TYPE_CHECKING:
    from rlinf.scheduler.collective.codec import Encoded
    from rlinf.scheduler.collective.link_tensors import LinkTensors, Route


class BroadcastMessage(NamedTuple):
    """What some receivers get.

    Attributes:
        encoded: the object.
        near: receivers that share memory with the source.
        far: the others, by node.
        tokens: handles in it that one receiver, and no other, will release.
    """

    encoded: Encoded
    near: list[str]
    far: list[list[str]]
    tokens: list[int]


def encode_all(
    endpoint: Endpoint, obj: Any, receivers: Sequence[str], tensors: LinkTensors
) -> list[BroadcastMessage]:
    """Encode an object for receivers that have been located.

    Args:
        endpoint: the source.
        obj: the object; it must not change before all have it.
        receivers: their names.
        tensors: gets what goes by link.
    """
    messages: list[BroadcastMessage] = []
    try:
        rest = _encode_alone(endpoint, obj, receivers, tensors, messages)
        _encode_shared(endpoint, obj, rest, tensors, messages)
    except BaseException:
        for message in messages:
            endpoint.packer.abandon(message.tokens)
        raise
    return messages


def _encode_alone(
    endpoint: Endpoint,
    obj: Any,
    receivers: Sequence[str],
    tensors: LinkTensors,
    messages: list[BroadcastMessage],
) -> list[str]:
    """Add the messages to receivers that share a GPU with the source; return the others."""
    rest = []
    for name in receivers:
        if endpoint.shares_memory(name) and endpoint.shares_gpu(name):
            encoded, tokens = endpoint.packer.encode(
                obj, name, endpoint.shared_devices(name), copy=False, links=tensors.taker(name)
            )
            messages.append(BroadcastMessage(encoded, [name], [], tokens))
        else:
            rest.append(name)
    return rest


def _encode_shared(
    endpoint: Endpoint,
    obj: Any,
    receivers: list[str],
    tensors: LinkTensors,
    messages: list[BroadcastMessage],
) -> None:
    """Add one message for all receivers that get tensors over the same links."""
    encode = endpoint.packer.encode
    kinds: dict[Route, list[str]] = {}
    for name in receivers:
        kinds.setdefault(tensors.route(name), []).append(name)
    if len(kinds) > 1:
        # They differ only if something does go by link.
        taker = tensors.taker(*receivers)
        encoded, _ = encode(obj, links=taker)
        if not taker.nbytes:
            messages.append(_message(endpoint, encoded, receivers))
            return
    for names in kinds.values():
        encoded, _ = encode(obj, links=tensors.taker(names[0]))
        messages.append(_message(endpoint, encoded, names))


def _message(endpoint: Endpoint, encoded: Encoded, receivers: list[str]) -> BroadcastMessage:
    near: list[str] = []
    far: dict[int, list[str]] = {}
    for name in receivers:
        if endpoint.shares_memory(name):
            near.append(name)
        else:
            far.setdefault(endpoint.node_of(name), []).append(name)
    return BroadcastMessage(encoded, near, [far[node] for node in sorted(far)], [])
