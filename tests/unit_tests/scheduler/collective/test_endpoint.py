"""What a process needs in order to send is not needed to receive, and no message gets lost."""

from __future__ import annotations

import pytest

from rlinf.scheduler import ConnectionBroken
from rlinf.scheduler.collective import payload
from tests.unit_tests.scheduler.small_run import in_thread, stalled
from tests.unit_tests.scheduler.waits import PROMPTLY


def no_pool() -> None:
    raise OSError(24, "Too many open files")


def test_a_process_that_can_have_no_pool_receives(small_run, monkeypatch):
    sender, receiver = small_run.join("s:0"), small_run.join("r:0")
    for message in ("small", b"x" * (2 * payload.SHARED_BYTES)):
        sender.mailbox.send("r:0", message).wait(timeout=PROMPTLY)
        monkeypatch.setattr(payload, "SegmentPool", no_pool)
        assert receiver.mailbox.recv("s:0").wait(timeout=PROMPTLY) == message
    with pytest.raises(OSError, match="Too many open files"):
        receiver.mailbox.send("s:0", "back").wait(timeout=PROMPTLY)


def test_a_message_that_cannot_be_read_is_not_skipped(small_run, monkeypatch):
    sender, receiver = small_run.join("s:0"), small_run.join("r:0")
    unpacker = payload.Unpacker

    def no_memory(*_):
        monkeypatch.setattr(payload, "Unpacker", unpacker)
        raise MemoryError("no memory for it")

    monkeypatch.setattr(payload, "Unpacker", no_memory)
    sender.endpoint.connections.to("r:0")
    with stalled(receiver):
        for message in ("first", "second"):
            sender.mailbox.send("r:0", message)
    for _ in range(2):
        with pytest.raises(ConnectionBroken, match="r:0 could not read message 1.*no memory for"):
            in_thread(lambda: receiver.mailbox.recv("s:0").wait(timeout=PROMPTLY)).wait()
    with pytest.raises(ConnectionBroken, match="r:0 could not read message 1"):
        in_thread(lambda: sender.mailbox.recv("r:0").wait(timeout=PROMPTLY)).wait()


def test_a_limit_that_is_no_number_of_bytes_is_refused_at_the_start(small_run, monkeypatch):
    monkeypatch.setenv("RLINF_TRANSFER_MEMORY", "3 GB")
    with pytest.raises(ValueError, match="RLINF_TRANSFER_MEMORY='3 GB' must be a positive number"):
        small_run.join("s:0")
