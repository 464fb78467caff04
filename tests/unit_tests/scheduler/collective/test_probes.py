"""Whether a silent peer is there can be asked from both ends, and by the registry."""

from __future__ import annotations

import threading

from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


def test_both_ends_of_a_connection_can_ask(two_nodes):
    here, there = two_nodes.join("here:0"), two_nodes.join("there:0", node_rank=1)
    here.mailbox.send("there:0", "hello").wait()
    assert there.mailbox.recv("here:0").wait(timeout=PROMPTLY) == "hello"
    ends = {here: here.endpoint.connections.outgoing("there:0")}
    # It has never asked the registry where the other one is.
    ends[there] = there.endpoint.connections.incoming("here:0")
    assert there.endpoint.connections.info("here:0") is None
    for member, connection in ends.items():
        reached = threading.Event()
        assert member.endpoint._answers(connection, reached.set) and reached.is_set()


def test_the_registry_can_ask(two_nodes):
    there = two_nodes.join("there:0", node_rank=1)
    connection = two_nodes.server._members["there:0"]
    reached = threading.Event()
    assert two_nodes.server._answers(connection, reached.set) and reached.is_set()
    two_nodes.kill(there)
    wait_until(lambda: not two_nodes.server._answers(connection, lambda: None))
