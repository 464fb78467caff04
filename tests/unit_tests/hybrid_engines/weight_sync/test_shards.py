"""Each rank sends what it has to those who need it, and no link carries more than that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rlinf.hybrid_engines.weight_sync.plan import Request, streams, turns
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch, WeightReceiver
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from rlinf.utils.shards import ShardPlace, own_part
from tests.unit_tests.hybrid_engines.weight_sync.bus import Bus

ACTOR, ROLLOUT = "actor", "rollout"
WHOLE = {
    "wide": torch.arange(7 * 3, dtype=torch.float32).view(7, 3),
    "long": torch.randn(40),
    "one": torch.tensor([[1.5, 2.5]]),
    "scalar": torch.tensor(3.0),
}


class Cut:
    """A tensor of which a rank has some rows, as FSDP makes it."""

    def __init__(self, whole, rank, ranks, copies=1, copy=0):
        self.shape, self._part = whole.shape, None
        shard = SimpleNamespace(is_shard=lambda: True)
        copied = SimpleNamespace(is_shard=lambda: False)
        self.placements = [copied, shard]
        self.device_mesh = SimpleNamespace(
            size=[copies, ranks].__getitem__, get_local_rank=[copy, rank].__getitem__
        )
        size = -(-len(whole) // ranks)
        self._part = whole[size * rank : size * (rank + 1)].clone()

    def __len__(self):
        return self.shape[0]

    def full_tensor(self):
        raise AssertionError("nothing is gathered")

    def detach(self):
        return self

    def to_local(self):
        return self._part


def cut(rank, ranks, tensors=WHOLE, **keys):
    if ranks == 1:
        return {name: tensor.clone() for name, tensor in tensors.items()}
    return {n: t.clone() if not t.ndim else Cut(t, rank, ranks, **keys) for n, t in tensors.items()}


class Model:
    def __init__(self, tensors):
        self._tensors = tensors

    def state_dict(self, keep_vars=True):
        return self._tensors


def cfg(limit=64, kind="bucket"):
    return SimpleNamespace(
        actor=SimpleNamespace(group_name=ACTOR, enable_offload=False),
        rollout=SimpleNamespace(group_name=ROLLOUT),
        weight_syncer=SimpleNamespace(
            type=kind, verify=True, bucket=SimpleNamespace(bucket_size=limit, keep_buffers=False)
        ),
    )


def run(senders, receivers, sharded=False, copies=1, collects=False, sent=WHOLE):
    """Let weights go from some ranks to others; returns what came, the bytes of links, and more."""
    bus = Bus({ACTOR: senders, ROLLOUT: receivers})
    members = senders // copies

    def work(worker):
        if worker.group_name == ACTOR:
            copy, member = divmod(worker.rank, members)
            keys = {"copies": copies, "copy": copy}
            tensors = cut(member, members, sent, **keys)
            place = ShardPlace(copy, copies, member)
            return WeightSender(worker, cfg()).send(lambda: iter(tensors.items()), 4, place=place)
        receiver = WeightReceiver(worker, cfg())
        if collects:
            return receiver.collect()
        empty = {name: torch.zeros_like(tensor) for name, tensor in WHOLE.items()}
        own = cut(worker.rank, receivers if sharded else 1, empty)
        return own, receiver.receive(Model(own))

    return bus.run(work), bus.bytes


def rows_of(tensor, rank, ranks):
    size = -(-len(tensor) // ranks)
    return set(range(len(tensor))[size * rank : size * (rank + 1)])


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("senders", [1, 2, 3])
@pytest.mark.parametrize("receivers", [1, 2, 4])
def test_links_carry_what_the_layout_requires(senders, receivers, sharded):
    found, links = run(senders, receivers, sharded)
    for rank in range(receivers):
        own, version = found[ROLLOUT, rank]
        expected = cut(rank, receivers if sharded else 1)
        assert version == 4
        for name, tensor in own.items():
            assert torch.equal(own_part(tensor), own_part(expected[name])), name
        for sender in range(senders):
            required = WHOLE["scalar"].nbytes if sender == 0 else 0
            for tensor in WHOLE.values():
                if tensor.ndim:
                    kept = rows_of(tensor, rank, receivers) if sharded else rows_of(tensor, 0, 1)
                    common = kept & rows_of(tensor, sender, senders)
                    required += len(common) * tensor[0].nbytes
            assert links[(ACTOR, sender), (ROLLOUT, rank)] == required
    assert not any(link[0][0] == ROLLOUT and size for link, size in links.items())
    if not sharded:
        sizes = [found[ACTOR, sender] for sender in range(senders)]
        assert sum(sizes) == sum(tensor.nbytes for tensor in WHOLE.values())


def test_each_copy_serves_its_share_of_the_receivers():
    found, links = run(senders=4, receivers=4, copies=2)
    for rank in range(4):
        own, _ = found[ROLLOUT, rank]
        assert all(torch.equal(own[name], WHOLE[name]) for name in WHOLE)
        served = {sender for (_, sender), (group, r) in links if group == ROLLOUT and r == rank}
        busy = {s for s in served if links[(ACTOR, s), (ROLLOUT, rank)]}
        assert busy == ({0, 1} if rank < 2 else {2, 3})


def test_parts_are_put_together_for_an_engine_that_loads_them_itself():
    found, _ = run(senders=3, receivers=2, collects=True)
    for rank in range(2):
        tensors, version = found[ROLLOUT, rank]
        assert version == 4 and tensors.keys() == WHOLE.keys()
        assert all(torch.equal(tensors[name], WHOLE[name]) for name in WHOLE)


def test_a_tensor_that_does_not_come_is_named():
    sent = {name: tensor for name, tensor in WHOLE.items() if name != "long"}
    with pytest.raises(WeightMismatch, match="no weights arrived for long"):
        run(senders=2, receivers=1, sent=sent)


def test_the_bytes_of_a_part_are_checked(monkeypatch):
    from rlinf.hybrid_engines.weight_sync import sender

    right = sender.checksum
    monkeypatch.setattr(sender, "checksum", lambda tensor: right(tensor) + (len(tensor.shape) == 2))
    with pytest.raises(WeightMismatch, match="'wide' arrived changed"):
        run(senders=2, receivers=1)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("others", [1, 2, 4])
def test_nobody_has_two_partners_in_a_turn(count, others):
    total = max(count, others)
    for turn in range(total):
        pairs = [(own, (turn - own) % total) for own in range(count)]
        pairs = [(own, other) for own, other in pairs if other < others]
        assert len({other for _, other in pairs}) == len(pairs)
    for own in range(count):
        assert sorted(turns(own, count, others)) == list(range(others))
        for other in range(others):
            meeting = turns(own, count, others).index(other)
            assert 0 <= meeting < total and own in turns(other, others, count)


def test_receivers_that_keep_everything_share_a_stream():
    needs = [None, None, {"a": (0, 1)}, {"a": (1, 2)}]
    found = streams([Request(each, 0, None) for each in needs], ShardPlace(), 0)
    assert [stream.receivers for stream in found] == [[0, 1], [2], [3]]
