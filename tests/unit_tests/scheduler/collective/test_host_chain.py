"""Broadcasts over several nodes go from one to the next, in chunks, in order, each byte once."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.scheduler.collective import host_chain
from rlinf.scheduler.collective.host_chain import chunks, read_route, write_route
from rlinf.scheduler.errors import PeerLost
from tests.unit_tests.scheduler.small_run import SmallRun, stalled
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

GROUPS = [(name, 0) for name in "abcde"]
"""The source, one receiver on each of two nodes, and two neighbours on a third."""


@pytest.fixture
def members(tmp_path, monkeypatch):
    monkeypatch.setattr(host_chain, "CHUNK", 1000)
    run = SmallRun(tmp_path, num_nodes=4)
    nodes = (0, 1, 2, 3, 3)
    yield [run.join(f"{name}:0", node) for (name, _), node in zip(GROUPS, nodes, strict=True)]
    run.close()


def spread(members, obj):
    works = [member.broadcaster.broadcast(obj, GROUPS, ("a", 0)) for member in members]
    # The source is done when all others have taken it.
    return [work.wait(PROMPTLY) for work in reversed(works)][:-1]


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 5000, 123_457])
def test_everybody_gets_it(members, size):
    data = np.arange(size, dtype=np.uint8)
    for got in spread(members, {"data": data, "more": [data[:10], "x"]}):
        assert np.array_equal(got["data"], data) and np.array_equal(got["more"][0], data[:10])


def test_broadcasts_of_all_sizes_keep_their_order(members):
    sizes = [50_000, 1, 3000, 0, 100_000, 10]
    sent = [members[0].broadcaster.broadcast(np.full(s, 7), GROUPS, ("a", 0)) for s in sizes]
    for member in members[1:]:
        works = [member.broadcaster.broadcast(None, GROUPS, ("a", 0)) for _ in sizes]
        assert [len(work.wait(PROMPTLY)) for work in works] == sizes
    for work in sent:
        work.wait(PROMPTLY)


def test_the_source_sends_it_to_one_host_and_each_host_to_the_next(members):
    spread(members, b"")
    before = [_sent(member) for member in members]
    size = 1_000_000
    spread(members, np.ones(size, np.uint8))
    sent = [now - then for now, then in zip(map(_sent, members), before, strict=True)]
    # a to b, b to c, c to d; e reads the memory of d.
    assert [value // size for value in sent] == [1, 1, 1, 0, 0]


def _sent(member) -> int:
    """Bytes that a member has sent over TCP."""
    out = member.endpoint.connections._out.values()
    return sum(connection.sent_bytes for connection in out)


def test_a_link_of_the_chain_that_dies_fails_the_source(tmp_path):
    run = SmallRun(tmp_path, num_nodes=4)
    groups = [(name, 0) for name in "abc"]
    a, b, c = (run.join(f"{name}:0", node) for node, (name, _) in enumerate(groups))
    first = [member.broadcaster.broadcast(1, groups, ("a", 0)) for member in (c, b, a)]
    assert [work.wait(PROMPTLY) for work in first] == [1, 1, 1]
    with stalled(b):
        sending = a.broadcaster.broadcast(np.ones(100), groups, ("a", 0))
        waiting = c.broadcaster.broadcast(None, groups, ("a", 0))
        run._cut(b)
    run._members.remove(b)
    with pytest.raises(PeerLost, match="b:0"):
        sending.wait(PROMPTLY)
    wait_until(lambda: c.broadcaster._chain._incoming == {})
    assert not waiting.done()
    run.close()


def test_a_host_reads_its_own_line_of_a_route():
    route = [["a:0", "a:1"], ['two\nlines "b":0'], ["c:0"]]
    text, read = write_route(route), []
    while text:
        own, following, text = read_route(memoryview(text))
        read.append((own, following))
    assert read == [(route[0], route[1][0]), (route[1], "c:0"), (route[2], None)]


def test_a_host_is_sent_only_the_route_that_is_left(members):
    routes = {}
    begin = host_chain.HostChain._on_begin

    def on_begin(chain, sender, connection, fields, buffers):
        routes[chain._endpoint.name] = bytes(buffers[1])
        begin(chain, sender, connection, fields, buffers)

    for member in members:
        chain = member.broadcaster._chain
        member.endpoint.on("chain", on_begin.__get__(chain))
    spread(members, 1)
    assert routes == {
        "b:0": write_route([["b:0"], ["c:0"], ["d:0", "e:0"]]),
        "c:0": write_route([["c:0"], ["d:0", "e:0"]]),
        "d:0": write_route([["d:0", "e:0"]]),
    }


@pytest.mark.parametrize("sizes", [[], [0], [10], [3, 4, 5], [0, 7, 0, 21], [4, 4]])
def test_chunks_are_all_the_bytes_in_order(sizes):
    data = [bytes([i]) * size for i, size in enumerate(sizes)]
    found = list(chunks([memoryview(part) for part in data], 4))
    assert b"".join(bytes(piece) for chunk in found for piece in chunk) == b"".join(data)
    assert [sum(map(len, chunk)) for chunk in found[:-1]] == [4] * max(0, len(found) - 1)
