"""Which exceptions speak of a peer that has gone, and which do not."""

from __future__ import annotations

import pytest

from rlinf.scheduler.errors import (
    ConnectionBroken,
    WaitTimeout,
    WorkerDied,
    speaks_of_lost_connection,
    tells_of_lost_connection,
)

LOST = [
    ConnectionResetError(104, "Connection reset by peer"),
    BrokenPipeError(32, "Broken pipe"),
    ConnectionError("gone"),
    WorkerDied("env:0", cause="the peer closed the connection"),
    ConnectionBroken("env:0", peer="rollout:0", reason="reading failed"),
    RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:20917"),
    RuntimeError("NCCL error: remote process exited or there was a network error"),
    RuntimeError("ncclRemoteError: A call failed possibly due to a network error"),
    RuntimeError("NCCL communicator was aborted on rank 1."),
    RuntimeError("failed to recv, got 0 bytes"),
]
OTHERS = [
    ConnectionRefusedError(111, "Connection refused"),
    ValueError("a mistake"),
    MemoryError("CUDA out of memory"),
    WaitTimeout("actor.train()", seconds=4.0),
]


@pytest.mark.parametrize("error", [*LOST, *OTHERS], ids=lambda error: str(error)[:40])
def test_lost_connections_are_recognised(error):
    assert tells_of_lost_connection(error) is (error in LOST)
    in_words = speaks_of_lost_connection(type(error).__qualname__, str(error))
    assert in_words is (error in LOST), "from the words of a report as well"


def test_a_break_between_living_processes_waits_for_no_death():
    broken = ConnectionBroken("env:0", peer="rollout:0", reason="reset", confirmed=True)
    assert not tells_of_lost_connection(broken)


@pytest.mark.parametrize(
    "facts, explained",
    [
        ({"pid": 7, "signal": "SIGKILL"}, True),
        ({"pid": 7, "exit_code": 0}, True),
        ({"pid": 7}, False),
        ({"signal": "SIGKILL"}, False),
        ({}, False),
    ],
)
def test_a_death_is_explained_by_its_facts(facts, explained):
    assert WorkerDied("env:0", **facts).explained is explained
