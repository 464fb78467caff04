"""Items with tensors on a GPU: kept there by the producer, and encoded for each consumer."""

from __future__ import annotations

import multiprocessing as mp
import os
from typing import Any

import numpy as np
import pytest
import torch

from rlinf.scheduler.channel import device_items
from tests.unit_tests.scheduler.fake_gpu import (
    HOST_COPY,
    FakeGpu,
    FakeTensor,
    forget_devices,
    let_codec_take_fakes,
)
from tests.unit_tests.scheduler.small_run import SmallRun, in_thread
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

ON_GPU = [0.0, 1.0, 2.0, 3.0]
"""What a fake tensor is when it is opened on the GPU."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU whose tensors the codec takes for real ones, and which are all worth keeping there."""
    forget_devices()
    fake = FakeGpu(monkeypatch)
    let_codec_take_fakes(monkeypatch)
    monkeypatch.setattr(FakeTensor, "requires_grad_", lambda tensor, _: tensor, raising=False)
    monkeypatch.setattr(device_items, "KEPT_BYTES", FakeTensor.nbytes)
    events: list[str] = []
    fake.events = events

    class Event:
        def synchronize(self) -> None:
            events.append("waited")

    monkeypatch.setattr(device_items, "_event", lambda device: Event())
    yield fake
    forget_devices()


@pytest.fixture
def channels(small_run: SmallRun, gpu: FakeGpu) -> dict[str, Any]:
    """A channel as a producer on a GPU sees it, and consumers on that GPU and elsewhere."""
    small_run.keeper()
    gpus = {"producer": [0], "same": [0], "other": [1], "bare": []}
    members = {n: small_run.join(f"{n}:0", visible=own, own=own) for n, own in gpus.items()}
    channels = {name: small_run.channel(member, "c") for name, member in members.items()}
    return channels | {"members": members}


def exporter_of(channels: dict[str, Any]) -> Any:
    return channels["members"]["producer"].endpoint.packer._exporter


def test_a_consumer_on_the_gpu_opens_a_copy_there(channels, gpu):
    array, tensor = np.arange(5000), FakeTensor()
    channels["producer"].put({"tensor": tensor, "array": array})
    array += 100
    item = channels["same"].get(timeout=PROMPTLY)
    assert item["tensor"].tolist() == ON_GPU and np.array_equal(item["array"], np.arange(5000))
    assert tensor not in gpu.shared and len(gpu.shared) == 1, "what was put may change"
    assert gpu.events == ["waited"], "the copy has its values"
    exporter = exporter_of(channels)
    wait_until(lambda: exporter.held() == {})
    outbox = channels["members"]["producer"].channels.outbox
    channels["same"].task_done()
    wait_until(lambda: len(outbox) == 0)


@pytest.mark.parametrize("who", ["other", "bare", "producer"])
def test_any_other_consumer_gets_it_through_the_host(channels, gpu, who):
    channels["producer"].put([FakeTensor(), "text"])
    tensor, text = channels[who].get(timeout=PROMPTLY)
    assert torch.equal(tensor, HOST_COPY) and text == "text" and gpu.shared == []


def test_small_tensors_and_more_than_there_is_room_for_go_through_the_host(
    channels, gpu, monkeypatch
):
    from rlinf.scheduler.channel import outbox

    monkeypatch.setattr(outbox, "MAX_KEPT_BYTES", 2 * FakeTensor.nbytes)
    for number in range(3):
        channels["producer"].put([FakeTensor(), number])
    monkeypatch.setattr(device_items, "KEPT_BYTES", FakeTensor.nbytes + 1)
    channels["producer"].put([FakeTensor(), 3])
    items = [channels["same"].get(timeout=PROMPTLY) for _ in range(4)]
    assert [number for _, number in items] == [0, 1, 2, 3]
    on_gpu = [tensor.tolist() == ON_GPU for tensor, _ in items]
    assert on_gpu == [True, True, False, False]


def test_an_item_that_nobody_takes_goes_back_through_the_host(channels, gpu):
    work = channels["same"].get(async_op=True)
    channels["producer"].put([FakeTensor(), "text"])
    wait_until(work.done)
    work.cancel()
    work.abandon()
    tensor, text = channels["bare"].get(timeout=PROMPTLY)
    assert tensor.tolist() == ON_GPU and text == "text"
    wait_until(lambda: exporter_of(channels).held() == {})


def test_a_consumer_that_dies_leaves_the_item_to_the_next(small_run, gpu):
    small_run.keeper()
    producer = small_run.join("producer:0", visible=[0], own=[0])
    first = small_run.join("first:0", visible=[0], own=[0])
    second = small_run.join("second:0", visible=[0], own=[0])
    putting, *getting = (
        small_run.channel(member, "again", redeliver=True) for member in (producer, first, second)
    )
    putting.put([FakeTensor(), "text"])
    assert getting[0].get(timeout=PROMPTLY)[1] == "text"
    waiting = in_thread(lambda: getting[1].get(timeout=PROMPTLY))
    small_run.kill(first)
    tensor, text = waiting.wait()
    assert tensor.tolist() == ON_GPU and text == "text"
    assert list(producer.endpoint.packer._exporter.held()) in ([], ["second:0"])


# -- with a GPU ------------------------------------------------------------------------------------


def consume(spec: Any, results: Any) -> None:
    """Take an item in a process of its own, and tell what came."""
    consumer = join("consumer:0", spec)
    from rlinf.scheduler.channel.channel import Channel
    from rlinf.scheduler.channel.spec import ChannelSpec

    torch.cuda.init()
    channel = Channel(ChannelSpec("c", keepers=("keeper:0",)))
    channel._bound = consumer.channels
    item = channel.get(timeout=3 * PROMPTLY)
    results.send((item["x"].device.type, float(item["x"].sum()), float(item["small"].sum())))
    results.recv()
    consumer.close()


def join(name: str, spec: Any) -> Any:
    from rlinf.scheduler.address import WorkerAddress, WorkerInfo
    from rlinf.scheduler.worker.runtime import ProcessRuntime

    runtime = ProcessRuntime(name, spec, 0, ["127.0.0.1"], [0])
    info = WorkerInfo(
        WorkerAddress.from_name(name),
        rank=0,
        group_world_size=1,
        pid=os.getpid(),
        accelerator_type="NV_GPU",
        available_accelerators=[0],
        endpoints=runtime.endpoint.addresses,
        memory_domain=runtime.endpoint.domain,
    )
    runtime.registry.ask("register", info=info)
    return runtime


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_between_processes_on_one_gpu(small_run):
    small_run.keeper()
    producer = small_run.join("producer:0", visible=[0], own=[0])
    channel = small_run.channel(producer, "c")
    mine, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=consume, args=(small_run._spec, theirs))
    process.start()
    x = torch.ones(device_items.KEPT_BYTES, device="cuda")
    channel.put({"x": x, "small": x[:5]})
    x.zero_()
    try:
        assert mine.recv() == ("cuda", float(device_items.KEPT_BYTES), 5.0)
        wait_until(lambda: producer.endpoint.packer._exporter.held() == {})
        mine.send("done")
        process.join(PROMPTLY)
    finally:
        process.kill()
