"""Links over NCCL between two processes on one GPU, each made to believe that it has a host alone.

NCCL refuses two ranks on one GPU of one host. With a host id of its own for each process it
connects them by sockets, as it would two machines.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import queue
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rlinf.scheduler.collective.device_links import DeviceLinks  # noqa: E402
from rlinf.scheduler.collective.payload import Packer, Unpacker  # noqa: E402
from rlinf.scheduler.errors import WorkerDied  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Side:
    """One process: packs and unpacks as a worker does; a pipe carries the messages."""

    def __init__(self, rank: int, pipe: Any):
        self.peer = f"side:{1 - rank}"
        self.pipe = pipe
        self.outbox = ThreadPoolExecutor(1)
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.death: WorkerDied | None = None
        endpoint: Any = SimpleNamespace(
            name=f"side:{rank}",
            node_ip="127.0.0.1",
            visible=[rank],
            run=SimpleNamespace(timeout=lambda _: 60.0),
            info=lambda _: SimpleNamespace(
                available_accelerators=[1 - rank], accelerator_type="NV_GPU"
            ),
            gone=lambda _: self.death,
            lost=lambda _: self.death,
            on=lambda *_: None,
            post_soon=lambda *_: None,
        )
        self.links = DeviceLinks(endpoint)
        self.packer = Packer()
        self.unpacker = Unpacker(None, None, self.links)  # type: ignore[arg-type]
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def send(self, obj: Any, copy: bool = True) -> list[Any]:
        tensors = self.links.collect([self.peer], copy)
        encoded, _ = self.packer.encode(obj, copy=copy, links=tensors.taker(self.peer))
        tensors.close()
        packed = self.packer.pack(encoded, [self.peer], shared=False, timeout=1.0)
        self.links.dispatch(tensors)
        packed.transfers = tensors.transfers(self.peer)
        assert packed.transfers, "nothing goes by link"
        buffers = [bytes(buffer) for buffer in packed.buffers]
        # Like a connection, which does not wait for the reader either.
        self.outbox.submit(self.pipe.send, (buffers, None, packed.nbytes, packed.transfers))
        return tensors.left

    def read(self) -> None:
        """Like the I/O thread, which opens messages before anybody asks for them."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                buffers, *place = self.pipe.recv()
                views = [memoryview(buffer) for buffer in buffers]
                self.inbox.put(self.unpacker.open(None, self.peer, views, *place))

    def note_death(self, told: bool) -> float:
        """Waits for the end of the peer and makes it known; returns when it was."""
        self.reader.join(60)
        begin = time.monotonic()
        self.death = WorkerDied(self.peer, signal="SIGKILL")
        if told:
            self.links.peer_gone(self.peer, self.death)
        return begin

    def receive(self) -> Any:
        return self.inbox.get(timeout=60)


def nest(seed: int) -> dict[str, Any]:
    base = torch.arange(512 * 700, device="cuda", dtype=torch.float32).view(512, 700) + seed
    return {
        "plain": base,
        "view": base.T[3:, ::2],
        "bf16": base.bfloat16(),
        "bool": base > 1000,
        "int16": base.to(torch.int16),
        "conj": torch.complex(base, base).conj(),
        "parameter": torch.nn.Parameter(base.double()),
        "small": base[0, :5],
        "host": base.cpu(),
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(
        a[k].dtype == b[k].dtype and a[k].device == b[k].device and torch.equal(a[k], b[k])
        for k in b
    )


def links_alive() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("rlinf-link")]


def exchange(side: Side, rank: int) -> bool:
    """Both directions at once, in order; originals change as soon as they are sent."""
    import torch.distributed as dist

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    works = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for seed in range(6):
            torch.cuda._sleep(50_000_000)  # what is sent is not there yet
            obj = nest(seed + rank)
            side.send(obj)
            obj["plain"].zero_()
            obj["view"].fill_(-1)
            works += side.send(nest(100 + seed), copy=False)
        dist.all_reduce(torch.ones(100_000, device="cuda"))
        ok = True
        for seed in range(6):
            ok &= same(side.receive().load(), nest(seed + 1 - rank))
            ok &= same(side.receive().load(), nest(100 + seed))
    for work in works:
        work.wait(timeout=30)
    dist.destroy_process_group()
    return ok and len(links_alive()) == 2


def lose_receiver(side: Side, rank: int, told: bool) -> str:
    """The receiver dies with a transfer under way; the sender is told, or finds out by itself."""
    if rank == 1:
        assert same(side.receive().load(), nest(0))
        side.send(nest(1))
        side.receive()
        time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGKILL)
    huge = {"x": torch.ones(1 << 30, device="cuda")}
    side.send(nest(0))
    assert same(side.receive().load(), nest(1))
    works = side.send(huge, copy=False)
    return outcome(side, works[0], side.note_death(told))


def lose_sender(side: Side, rank: int) -> str:
    """The sender dies with a transfer under way."""
    if rank == 1:
        huge = {"x": torch.ones(1 << 30, device="cuda")}
        side.send(nest(0))
        assert same(side.receive().load(), nest(1))
        side.send(huge, copy=False)
        time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGKILL)
    assert same(side.receive().load(), nest(0))
    side.send(nest(1))
    payload = side.receive()
    begin = side.note_death(True)
    return outcome(side, SimpleNamespace(wait=lambda timeout: payload.load()), begin)


def outcome(side: Side, work: Any, begin: float) -> str:
    try:
        work.wait(timeout=20)
        return "no error"
    except WorkerDied as error:
        text = str(error).splitlines()[0]
    late = time.monotonic() - begin > 5
    # Sooner or later every process is told of a death, and then no link is left.
    side.links.peer_gone(side.peer, side.death)
    deadline = time.monotonic() + 5
    while links_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    torch.cuda.synchronize()
    fine = float(torch.ones(3, device="cuda").sum()) == 3.0
    return f"{text}; late {late}; alive {links_alive()}; cuda {fine}"


def run(rank: int, pipe: Any, results: Any, scenario: Any, arguments: tuple) -> None:
    os.environ.update(
        NCCL_HOSTID=f"host {rank}",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_IB_DISABLE="1",
        ACCELERATOR_TYPE="NV_GPU",
    )
    torch.cuda.init()
    side = Side(rank, pipe)
    results.send(scenario(side, rank, *arguments))
    side.links.close()


def play(scenario: Any, *arguments: Any) -> tuple[list[Any], list[int | None]]:
    """Results of both processes, None for one that died, and their exit codes."""
    context = mp.get_context("spawn")
    pipes, outcomes, processes = context.Pipe(), [], []
    for rank, pipe in enumerate(pipes):
        result, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run, args=(rank, pipe, theirs, scenario, arguments))
        process.start()
        theirs.close()
        pipe.close()
        processes.append(process)
        outcomes.append(result)
    values = []
    for result in outcomes:
        try:
            values.append(result.recv() if result.poll(90) else "nothing came")
        except EOFError:
            values.append(None)
    for process in processes:
        process.join(20)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return values, codes


def test_nests_arrive_equal_and_in_order_both_ways_at_once() -> None:
    assert play(exchange) == ([True, True], [0, 0])


@pytest.mark.parametrize("told", [True, False])
def test_a_receiver_that_dies_in_the_middle_fails_the_sender(told: bool) -> None:
    (message, _), codes = play(lose_receiver, told)
    assert message.startswith("worker side:1") and "killed by SIGKILL" in message
    assert message.endswith("late False; alive []; cuda True") and codes == [0, -9]


def test_a_sender_that_dies_in_the_middle_fails_the_receiver() -> None:
    (message, _), codes = play(lose_sender)
    assert message.startswith("worker side:1") and "killed by SIGKILL" in message
    assert message.endswith("late False; alive []; cuda True") and codes == [0, -9]
