"""CUDA IPC: the rules of keeping alive with a fake, the real thing where there is a GPU."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rlinf.scheduler.collective import cuda_ipc  # noqa: E402
from rlinf.scheduler.collective.codec import decode, encode  # noqa: E402
from rlinf.scheduler.collective.cuda_ipc import (  # noqa: E402
    CudaExporter,
    CudaImporter,
    LeaseToken,
    MemoryLease,
    import_tensor,
    visible_devices,
)
from rlinf.scheduler.collective.payload import Packer, Unpacker  # noqa: E402
from tests.unit_tests.scheduler.fake_gpu import (  # noqa: E402
    HOST_COPY,
    FakeGpu,
    FakeTensor,
    forget_devices,
    let_codec_take_fakes,
)


def unshareable() -> FakeTensor:
    tensor = FakeTensor()
    tensor.shares = False
    return tensor


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    forget_devices()
    yield FakeGpu(monkeypatch)
    forget_devices()


def test_tensors_are_kept_until_released(gpu: FakeGpu) -> None:
    exporter = CudaExporter()
    tokens = [exporter.export(FakeTensor(), owner) for owner in ("a", "a", "b")]
    assert exporter.held() == {"a": 32, "b": 16}
    exporter.release(tokens[0].id)
    exporter.release(tokens[0].id)
    assert exporter.held() == {"a": 16, "b": 16}
    exporter.release_all_for("a")
    assert exporter.held() == {"b": 16}
    # The dead reader will not count down, so the sender did; not for what had been released.
    assert gpu.counted_down == [(b"counter", 2)] and gpu.log == ["collect"]


def test_the_same_gpu_may_have_another_index(gpu: FakeGpu) -> None:
    token = CudaExporter().export(FakeTensor(device=1))
    gpu.uuids = ["GPU-b"]  # as another process sees it
    visible_devices.cache_clear()
    assert import_tensor(token).tolist() == [0, 1, 2, 3]
    assert gpu.rebuilt[0]["storage_device"] == 0 and gpu.log == ["synchronize"]
    gpu.uuids = ["GPU-c"]
    cuda_ipc._uuid.cache_clear()
    visible_devices.cache_clear()
    with pytest.raises(ValueError, match="GPU-b.*GPU-c"):
        import_tensor(token)


def test_through_the_codec(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlinf.scheduler.collective import codec

    for name in ("is_cpu", "is_nested", "is_meta", "requires_grad"):
        monkeypatch.setattr(FakeTensor, name, False, raising=False)
    monkeypatch.setattr(FakeTensor, "layout", torch.strided, raising=False)
    for pickler in (codec._Pickler, codec._cloud_pickler()):
        monkeypatch.setitem(pickler.dispatch_table, FakeTensor, codec._reduce_tensor)
    exporter, released = CudaExporter(), []
    with exporter.sending_to("reader") as hook:
        message = encode({"x": FakeTensor()}, device_hook=hook)
    assert exporter.held() == {"reader": 16}
    out = decode(*message, device_hook=CudaImporter(released.append))
    assert out["x"].tolist() == [0, 1, 2, 3] and gpu.log == ["synchronize"]
    exporter.release(released.pop())
    assert exporter.held() == {}

    with pytest.raises(TypeError, match="cannot send"):
        with exporter.sending_to("reader") as hook:
            encode([FakeTensor(), threading.Lock()], device_hook=hook)
    assert exporter.held() == {} and len(gpu.counted_down) == 1


@pytest.fixture
def through_codec(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Packer:
    """Lets the codec take fake tensors for real ones; a packer that uses them."""
    let_codec_take_fakes(monkeypatch)
    packer = Packer()
    yield packer
    packer.pool.close()


@pytest.mark.parametrize("copy", [True, False])
def test_memory_that_cannot_be_shared_goes_through_the_host(
    through_codec: Packer, gpu: FakeGpu, copy: bool
) -> None:
    packer = through_codec

    def encode_all(*tensors: FakeTensor) -> Any:
        encoded, tokens = packer.encode(list(tensors), "reader", frozenset({0}), copy)
        received = decode(*encoded, device_hook=lambda token: torch.tensor(token.id))
        return received, tokens

    good = FakeTensor()
    with pytest.warns(RuntimeWarning, match="no handle.*expandable_segments.*through the host"):
        (came, shared), tokens = encode_all(unshareable(), good)
    assert torch.equal(came, HOST_COPY) and shared.item() == tokens[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (came,), tokens = encode_all(unshareable())
    assert torch.equal(came, HOST_COPY) and tokens == [], "told once, and nothing is waited for"
    lease = MemoryLease(unshareable(), "slot")
    (came,), tokens = encode_all(lease.tensor)
    assert torch.equal(came, HOST_COPY) and tokens == []


def test_what_was_encoded_and_is_not_sent_is_let_go(through_codec: Packer, gpu: FakeGpu) -> None:
    _, tokens = through_codec.encode([FakeTensor(), FakeTensor()], "reader", frozenset({0}), False)
    assert len(tokens) == 2 and through_codec._exporter.held_by("reader") == tokens
    through_codec.abandon(tokens)
    assert through_codec._exporter.held() == {} and through_codec._open == {}
    assert len(gpu.counted_down) == 2, "as the reader would have done"


def test_a_broadcast_that_cannot_be_sent_keeps_no_handles(
    through_codec: Packer, gpu: FakeGpu, small_run: Any
) -> None:
    source = small_run.join("source:0", visible=[0], own=[0])
    small_run.join("same:0", visible=[0], own=[0])
    groups = [("source", [0]), ("same", [0])]
    source.broadcaster.broadcast([FakeTensor()], groups, ("source", 0))
    exporter = source.endpoint.packer._exporter
    assert len(exporter.held_by("same:0")) == 1, "it waits to be read"
    source.endpoint.links.dispatch = lambda _: (_ for _ in ()).throw(OSError("no link"))
    with pytest.raises(OSError, match="no link"):
        source.broadcaster.broadcast([FakeTensor()], groups, ("source", 0))
    assert len(exporter.held_by("same:0")) == 1 and len(gpu.counted_down) == 1


def test_a_sender_that_sees_all_devices_and_a_receiver_that_sees_its_own(
    through_codec: Packer, gpu: FakeGpu, small_run: Any
) -> None:
    gpu.uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
    # Cluster-wide, these are devices 4 to 7; the receiver has the third of them.
    wide = small_run.join("wide:0", visible=[4, 5, 6, 7], own=[4])
    narrow = small_run.join("narrow:0", visible=[6], own=[6])
    for here, there in ((wide, narrow), (narrow, wide)):
        here.endpoint.connections.to(there.name)
    assert wide.endpoint.shared_devices("narrow:0") == {2}
    assert narrow.endpoint.shared_devices("wide:0") == set(), "the other one has another device"
    devices = wide.endpoint.shared_devices("narrow:0")
    mine, theirs = FakeTensor(device=0), FakeTensor(device=2)
    encoded, tokens = through_codec.encode([mine, theirs], "narrow:0", devices, copy=False)
    assert gpu.shared == [theirs] and len(tokens) == 1
    gpu.uuids = ["GPU-c"]  # as the receiver sees it
    cuda_ipc._uuid.cache_clear()
    visible_devices.cache_clear()
    came = decode(*encoded, device_hook=import_tensor)
    assert torch.equal(came[0], HOST_COPY) and came[1].tolist() == [0, 1, 2, 3]
    assert gpu.rebuilt[0]["storage_device"] == 0


def test_a_storage_is_not_wrapped_without_end(gpu: FakeGpu) -> None:
    exporter, weight = CudaExporter(), FakeTensor()
    for _ in range(cuda_ipc._MAX_SHARES + 3):
        exporter.release(exporter.export(weight).id)
    assert gpu.shared.count(weight) == cuda_ipc._MAX_SHARES
    exporter._shares[weight.storage._cdata][0].dead = True
    exporter.export(FakeTensor())
    assert len(exporter._shares) == 1


def test_a_loan_is_shared_once_with_each_reader(gpu: FakeGpu) -> None:
    exporter, buffer = CudaExporter(), FakeTensor()
    lease = MemoryLease(buffer, "slot")
    tokens = []
    for reader, count in (("a", 4), ("a", 3), ("b", 4)):
        with exporter.sending_to(reader) as hook:
            tokens.append(hook(FakeTensor(storage=buffer.storage, count=count)))
    assert all(isinstance(token, LeaseToken) and token.slot == "slot" for token in tokens)
    assert [token.count for token in tokens] == [4, 3, 4]
    assert tokens[0].lease == tokens[1].lease != tokens[2].lease and gpu.shared == [buffer, buffer]
    assert gpu.log == ["synchronize"] * 3, "what is read must be there: no event says so"
    assert exporter.held() == {}, "it lives as long as the lease, whoever reads"
    other = FakeTensor()
    with exporter.sending_to("a") as hook:
        assert isinstance(hook(other), cuda_ipc.CudaToken)
    buffer.shape = (2, 2)
    assert exporter.lend(buffer, "a") is None, "only first elements of it are lent"
    del lease
    buffer.shape = (4,)
    assert exporter.lend(buffer, "a") is None


def test_who_comes_after_a_dead_reader_of_a_loan_gets_a_handle_of_its_own(gpu: FakeGpu) -> None:
    exporter, buffer = CudaExporter(), FakeTensor()
    lease = MemoryLease(buffer, "slot")
    first = exporter.lend(buffer, "a")
    exporter.lend(buffer, "b")
    exporter.release_all_for("a")
    assert gpu.counted_down == [(b"counter", 1)], "of the dead one, which does not count down"
    assert exporter.lend(buffer, "a").lease != first.lease
    assert lease.tensor is buffer


def test_another_loan_takes_the_slot(gpu: FakeGpu) -> None:
    exporter, small, large = CudaExporter(), FakeTensor(), FakeTensor(count=8)
    before = MemoryLease(small, "slot")
    old = exporter.lend(small, "a")
    after = MemoryLease(large, "slot")
    new = exporter.lend(large, "a")
    assert new.lease != old.lease and new.slot == old.slot
    assert exporter.lend(large, "a") == new and (before.slot, after.slot) == ("slot", "slot")


def test_cpu_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="CUDA tensor"):
        CudaExporter().export(torch.ones(1))


def test_torch_still_has_what_is_used() -> None:
    needed = {"storage_device", "storage_handle", "ref_counter_handle", "ref_counter_offset"}
    assert needed <= set(cuda_ipc._rebuild_parameters())
    assert hasattr(torch.UntypedStorage, "_release_ipc_counter_cuda")
    assert callable(cuda_ipc.reductions.reduce_tensor) and callable(torch.cuda.ipc_collect)


def serve(pipe: Any) -> None:
    """Receive messages and answer with what arrived."""
    while (message := pipe.recv()) is not None:
        released: list[int] = []
        out = decode(*message, device_hook=CudaImporter(released.append))
        pipe.send(({k: v.cpu() for k, v in out.items()}, out["x"].device.type, released))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_between_two_processes_on_one_gpu() -> None:
    context = mp.get_context("spawn")
    pipe, other = context.Pipe()
    reader = context.Process(target=serve, args=(other,), daemon=True)
    reader.start()
    exporter = CudaExporter()
    x = torch.zeros(1 << 22, device="cuda")
    for turn in range(1, 5):
        torch.cuda._sleep(200_000_000)  # the reader must wait for what is queued behind this
        x.fill_(turn)
        obj = {"x": x, "part": x.view(2048, 2048).T[3:7, ::2], "bf": x[:9].bfloat16()}
        with exporter.sending_to("reader") as hook:
            pipe.send(encode(obj, device_hook=hook))
        assert pipe.poll(60)
        out, device, released = pipe.recv()
        assert device == "cuda" and len(released) == 3
        for key, value in obj.items():
            assert torch.equal(out[key], value.cpu())
        for token in released:
            exporter.release(token)
        assert exporter.held() == {}
    with exporter.sending_to("reader") as hook:
        encode({"x": x.clone()}, device_hook=hook)
    os.kill(reader.pid, signal.SIGKILL)
    exporter.release_all_for("reader")
    before = torch.cuda.memory_allocated()
    del obj, x
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() < before


def borrow(pipe: Any) -> None:
    """Answer with what a lease holds, and with the memory that this process has of its own."""
    unpacker = Unpacker(None, None, None)
    while (token := pipe.recv()) is not None:
        tensor = unpacker.borrow("sender", token)
        values = tensor.cpu()
        del tensor
        pipe.send((values, torch.cuda.memory_allocated()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_loan_between_two_processes_on_one_gpu() -> None:
    context = mp.get_context("spawn")
    pipe, other = context.Pipe()
    reader = context.Process(target=borrow, args=(other,), daemon=True)
    reader.start()
    exporter = CudaExporter()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    handles = set()
    for size in (1 << 22, 1 << 23):
        buffer = torch.zeros(size, device="cuda")
        lease = MemoryLease(buffer, "slot")
        for turn in range(1, 4):
            torch.cuda._sleep(200_000_000)  # the reader must not see what was there before
            buffer.fill_(turn)
            part = buffer[: size // turn]
            token = exporter.lend(part, "reader")
            handles.add(token.lease)
            pipe.send(token)
            assert pipe.poll(60)
            values, memory = pipe.recv()
            assert torch.equal(values, part.cpu()) and memory == 0
        del part
    assert len(handles) == 2
    # The reader has closed the first when it opened the second.
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() - before == buffer.nbytes
    os.kill(reader.pid, signal.SIGKILL)
    exporter.release_all_for("reader")
    del buffer, lease
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before
