"""The rollout's side of a weight update: loads buckets in place and checks what it loaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.weight_sync.checksum import checksum
from rlinf.hybrid_engines.weight_sync.packing import Packed, copy_all
from rlinf.hybrid_engines.weight_sync.patches import Patch, patched
from rlinf.hybrid_engines.weight_sync.plan import Needs, PartPlace, Request, turns
from rlinf.utils.shards import is_sharded, own_part, own_rows


class WeightMismatch(RuntimeError):
    """The weights that arrived are not those that were sent, or not those of this model."""


class _Message(NamedTuple):
    """Parts of tensors from one sender.

    Attributes:
        version: of the weights.
        last: whether it is the last one of this sender.
        bucket: the parts, by name of their tensors.
        sums: their checksums, unless the bucket has them.
        places: where they belong.
    """

    version: int
    last: bool
    bucket: dict[str, Tensor | Patch] | Packed
    sums: dict[str, int]
    places: dict[str, PartPlace]


class WeightReceiver:
    """Receives weights from the ranks of the actor, from each what it has.

    Args:
        worker: the rollout worker.
        cfg: the configuration.
    """

    def __init__(self, worker: Any, cfg: Any):
        self._worker = worker
        self._actor = cfg.actor.group_name
        self._base: int | None = None

    def forget(self) -> None:
        """Say that the weights have been changed by somebody else: the next ones come whole."""
        self._base = None

    def receive(self, model: nn.Module) -> int:
        """Load the next version of the weights into a model and return its number.

        Args:
            model: may be sharded: then only the rows that this rank keeps come.

        Raises:
            WeightMismatch: a tensor is unknown, missing, of another shape, or arrived changed.
        """
        own = _tensors(model)
        needs = None
        if any(is_sharded(tensor) for tensor in own.values()):
            needs = {name: own_rows(tensor) for name, tensor in own.items()}
        missing = {_memory(tensor): own_part(tensor).numel() for tensor in own.values()}
        version = None
        base, self._base = self._base, None
        exact = True
        with closing(self._messages(needs, base)) as messages:
            for message in messages:
                version = _same(version, message.version)
                if isinstance(message.bucket, Packed):
                    load_packed(own, message.bucket, message.places)
                else:
                    for name, value in message.bucket.items():
                        exact &= load_tensor(
                            own, name, value, message.sums.get(name), message.places[name]
                        )
                for name, place in message.places.items():
                    # What is tied here arrives under one of its names.
                    missing[_memory(own[name])] -= place.numel
        lacking = sorted(name for name, tensor in own.items() if missing[_memory(tensor)] > 0)
        if lacking:
            raise WeightMismatch(f"no weights arrived for {', '.join(lacking)}")
        assert version is not None
        self._base = version if exact else None
        return version

    def collect(self) -> tuple[dict[str, Tensor], int]:
        """Receive the next version of the weights for somebody else to load.

        Returns:
            The weights by name, and their number.

        Raises:
            WeightMismatch: a tensor arrived changed, or not all of it.
        """
        found: dict[str, Tensor] = {}
        missing: dict[str, int] = {}
        version = None
        with closing(self._messages(None, None)) as messages:
            for message in messages:
                version = _same(version, message.version)
                bucket = message.bucket
                if isinstance(bucket, Packed):
                    _require_unchanged(bucket)
                for name, part in _tensors_of(bucket).items():
                    expected = message.sums.get(name)
                    if expected is not None and checksum(part) != expected:
                        raise _changed(name)
                    shape, rows = message.places[name]
                    if rows is None:
                        found[name] = part.clone()
                        continue
                    if name not in found:
                        found[name] = part.new_empty(shape)
                        missing[name] = found[name].numel()
                    found[name][rows[0] : rows[1]] = part
                    missing[name] -= part.numel()
        lacking = sorted(name for name, count in missing.items() if count > 0)
        if lacking:
            raise WeightMismatch(f"not all rows arrived of {', '.join(lacking)}")
        assert version is not None
        return found, version

    def _messages(self, needs: Needs | None, base: int | None) -> Iterator[_Message]:
        """Tell all senders what is needed and what is there, and yield what comes."""
        worker, actor = self._worker, self._actor
        count, own = worker._world_size_of(actor), worker.rank
        everybody = (actor, list(range(count)))
        mine = worker.group_name, own
        request = Request(needs, worker._cluster_node_rank, base)
        worker.broadcast(request, [(worker.group_name, [own]), everybody], mine)
        receivers = list(range(worker.world_size))
        told = [self._receive(sender, receivers) for sender in range(count)]
        order = turns(own, worker.world_size, count)
        if needs is None:
            # All senders at once, in one order for all receivers: these wait for each other.
            order = list(range(count))
        serving = deque((sender, told[sender][own]) for sender in order if own in told[sender])
        while serving:
            sender, group = serving[0]
            held = self._receive(sender, group, hold=True)
            message = _Message(*held.obj)
            if message.last:
                serving.popleft()
            elif needs is None:
                serving.rotate(-1)
            yield from self._lend(message, held)

    def _receive(self, sender: int, receivers: list[int], hold: bool = False) -> Any:
        groups = [(self._actor, [sender]), (self._worker.group_name, receivers)]
        return self._worker.broadcast(None, groups, (self._actor, sender), hold=hold)

    def _lend(self, message: _Message, held: Any) -> Iterator[_Message]:
        """Yield a message, and give its memory back when it has been read."""
        bucket = message.bucket
        if not (isinstance(bucket, Packed) and bucket.lent):
            held.give_back()
            yield message
            return
        try:
            yield message
        finally:
            if bucket.flat.is_cuda:
                # The sender writes as soon as it hears of it.
                torch.cuda.current_stream(bucket.flat.device).synchronize()
            held.give_back()


def _same(version: int | None, other: int) -> int:
    if version is not None and version != other:
        raise WeightMismatch(f"one actor rank sent version {version}, and another one {other}")
    return other


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict(keep_vars=True).items()}


def _tensors_of(bucket: dict[str, Any] | Packed) -> dict[str, Tensor]:
    return bucket.tensors() if isinstance(bucket, Packed) else bucket


def _memory(tensor: Tensor) -> int:
    # A rank that has no row of a tensor has no memory of it.
    return own_part(tensor).data_ptr() or id(tensor)


def load_packed(
    own: dict[str, Tensor], packed: Packed, places: Mapping[str, PartPlace] | None = None
) -> None:
    """Copy tensors that came as one into their places.

    Args:
        own: what to load into, by name.
        packed: what came.
        places: which rows these are; None if the tensors are whole.

    Raises:
        WeightMismatch: a tensor is unknown, of another shape, or arrived changed.
    """
    _require_unchanged(packed)
    tensors = packed.tensors()
    if places is None:
        places = {name: PartPlace(tuple(t.shape), None) for name, t in tensors.items()}
    targets = [_target(own, name, places[name]) for name in tensors]
    copy_all(targets, list(tensors.values()))


def load_tensor(
    own: dict[str, Tensor],
    name: str,
    value: Tensor | Patch,
    expected: int | None,
    place: PartPlace | None = None,
) -> bool:
    """Copy one tensor, or some rows of it, into its place and compare its checksum there.

    Args:
        own: what to load into, by name.
        name: of the tensor.
        value: what came: numbers, or what has changed in those that are there.
        expected: checksum of the numbers; None does not compare.
        place: which rows these are; None if the tensor is whole.

    Returns:
        Whether the numbers that came can be told from those that are there now, bit for bit.

    Raises:
        WeightMismatch: the tensor is unknown, of another shape, or arrived changed.
    """
    if place is None:
        place = PartPlace(tuple(value.shape), None)
    target = _target(own, name, place)
    if isinstance(value, Patch):
        value = patched(target.to("cpu", getattr(torch, value.dtype)), value)
    target.copy_(value)
    # Weights that are cast cannot be compared after it: then what arrived is.
    loaded = target if target.dtype == value.dtype else value
    if expected is not None and checksum(loaded) != expected:
        raise _changed(name)
    widened = target.dtype is torch.float32 and value.dtype in (torch.bfloat16, torch.float16)
    return target.dtype == value.dtype or widened


def _target(own: dict[str, Tensor], name: str, place: PartPlace) -> Tensor:
    """Return where a tensor, or some rows of it, has to go."""
    target = own.get(name)
    if target is None:
        raise WeightMismatch(f"the actor sent {name!r}, which this model does not have")
    if tuple(target.shape) != place.shape:
        raise WeightMismatch(
            f"{name!r} is {place.shape} at the actor and {tuple(target.shape)} here; build "
            "both from the same model section"
        )
    if place.rows is None:
        return own_part(target)
    first, _ = own_rows(target) or (0, 0)
    return own_part(target)[place.rows[0] - first : place.rows[1] - first]


def _require_unchanged(packed: Packed) -> None:
    for name in packed.changed():
        raise _changed(name)


def _changed(name: str) -> WeightMismatch:
    return WeightMismatch(f"{name!r} arrived changed: its checksum here is not that of the actor")
