"""Weights leave from buffers that stay; none is written to before it has been read."""

import pytest
import torch

from rlinf.hybrid_engines.weight_sync.checksum import checksum
from rlinf.hybrid_engines.weight_sync.packing import Packed, layout_for
from rlinf.hybrid_engines.weight_sync.sender import keeps_buffers
from rlinf.hybrid_engines.weight_sync.staging import Staging
from tests.unit_tests.workers.actor.reasoning import make_cfg


class Reading:
    """Stands for the work of a broadcast: sees what a buffer holds when it is waited for."""

    def __init__(self, packed: Packed, fails: bool = False):
        self.packed, self.fails = packed, fails
        self.seen: list[float] = []

    def wait(self) -> None:
        if self.fails:
            raise RuntimeError("the reader is lost")
        self.seen.append(float(self.packed.tensors()["x"][0]))


def send(staging: Staging, value: float, count: int = 8, fails: bool = False) -> Reading:
    tensors = {"x": torch.full((count,), value)}
    packed = staging.pack(tensors, layout_for(tensors), verify=True)
    assert packed.lent and packed.sums == (checksum(tensors["x"]),)
    reading = Reading(packed, fails)
    staging.sent(reading)
    return reading


def test_a_buffer_is_written_once_it_has_been_read() -> None:
    staging = Staging("test")
    staging.begin()
    first, second = send(staging, 1.0), send(staging, 2.0)
    assert first.seen == second.seen == [], "there are two"
    third = send(staging, 3.0)
    assert first.seen == [1.0] and second.seen == []
    assert third.packed.flat.data_ptr() == first.packed.flat.data_ptr()
    staging.wait()
    assert second.seen == [2.0] and third.seen == [3.0]
    staging.begin()
    again = send(staging, 4.0)
    assert again.packed.flat.data_ptr() == first.packed.flat.data_ptr()
    assert second.seen == [2.0] and third.seen == [3.0], "they are waited for once"


def test_a_buffer_grows_and_all_of_it_can_be_given_back() -> None:
    staging = Staging("test")
    row = send(staging, 1.0).packed.flat.nbytes
    assert staging.nbytes == row
    staging.begin()
    large = send(staging, 2.0, count=row)
    assert staging.nbytes == large.packed.flat.nbytes == 4 * row
    staging.begin()
    small = send(staging, 3.0)
    assert staging.nbytes == 4 * row and small.packed.flat.nbytes == row
    staging.drop()
    assert staging.nbytes == 0
    staging.begin()
    assert send(staging, 5.0).packed.tensors()["x"][0] == 5


def test_a_reader_that_is_lost_is_told() -> None:
    staging = Staging("test")
    send(staging, 1.0, fails=True)
    send(staging, 2.0)
    with pytest.raises(RuntimeError, match="the reader is lost"):
        send(staging, 3.0)


@pytest.mark.parametrize(
    "offload,wanted,kept",
    [(False, None, True), (True, None, False), (True, True, True), (False, False, False)],
)
def test_what_stays_on_the_device(offload: bool, wanted: bool | None, kept: bool) -> None:
    changes = {"actor.enable_offload": offload, "weight_syncer.bucket": {"keep_buffers": wanted}}
    assert keeps_buffers(make_cfg(changes)) == kept
