"""Workers that exchange data on command."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

from rlinf.scheduler import Channel, ChannelClosed, Worker


@dataclass
class Sample:
    """A nest of the kind that workers exchange."""

    obs: dict[str, Any]
    reward: Any
    note: str


def make_nest(seed: int) -> Sample:
    """Tensors of many kinds in one nest; the same for the same seed."""
    import numpy as np
    import torch

    generator = torch.Generator().manual_seed(seed)
    base = torch.rand(64, 48, generator=generator)
    return Sample(
        obs={
            "large": torch.rand(300, 200, generator=generator),
            "transposed": base.T,
            "strided": base[::3, 1::2],
            "expanded": base[:1].expand(5, 48),
            "empty": torch.empty(0, 7),
            "scalar": torch.tensor(3.5),
            "mask": base > 0.5,
            "half": base.to(torch.bfloat16),
            "complex": torch.complex(base, base),
            "array": np.arange(10_000, dtype=np.int16).reshape(100, 100),
            "list": [torch.arange(5), ("a", 1.5), None],
        },
        reward=torch.arange(3),
        note=f"sample {seed}",
    )


def equal(a: Any, b: Any) -> bool:
    """Whether two nests are equal, dtypes and shapes included."""
    import numpy as np
    import torch

    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Sample):
        return all(equal(getattr(a, n), getattr(b, n)) for n in ("obs", "reward", "note"))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


class Talker(Worker):
    """Sends and receives."""

    def pid(self) -> int:
        return os.getpid()

    def exchange(self, group: str) -> bool:
        """Even ranks send a nest to the next rank and check what comes back."""
        if self._rank % 2 == 0:
            nest = make_nest(self._rank)
            self.send(nest, group, self._rank + 1)
            return equal(self.recv(group, self._rank + 1), nest)
        self.send(self.recv(group, self._rank - 1), group, self._rank - 1)
        return True

    def send_many(self, group: str, rank: int, count: int, size: int, how: str) -> None:
        import torch

        works = []
        for i in range(count):
            item = (i, torch.full((size,), float(i)))
            work = self.send(
                item, group, rank, async_op=how != "sync" and (how == "async" or i % 2)
            )
            if work is not None:
                works.append(work)
        for work in works:
            work.wait()

    def recv_many(self, group: str, rank: int, count: int, how: str) -> bool:
        works = []
        for i in range(count):
            if how == "async" or (how == "mixed" and i % 3 == 0):
                works.append((i, self.recv(group, rank, async_op=True)))
            else:
                works.append((i, self.recv(group, rank)))
        for i, work in works:
            number, tensor = work if isinstance(work, tuple) else work.wait()
            if number != i or not bool((tensor == i).all()):
                return False
        return True

    def slow_recv(self, group: str, rank: int, count: int) -> list[int]:
        """Receives with pauses, so that the sender's window fills up; returns the order."""
        out = []
        for i in range(count):
            out.append(self.recv(group, rank)[0])
            if i % 50 == 0:
                time.sleep(0.05)
        return out

    def send_small_then_huge(self, group: str, rank: int, megabytes: int) -> None:
        import torch

        self.send("small", group, rank)
        self.send(torch.zeros(megabytes << 18), group, rank)

    def recv_two(self, group: str, rank: int) -> int:
        assert self.recv(group, rank) == "small"
        return self.recv(group, rank).numel()

    def cancelled_recv(self, group: str, rank: int) -> str:
        work = self.recv(group, rank, async_op=True)
        work.cancel()
        try:
            work.wait(timeout=20)
        except Exception as error:
            return type(error).__name__
        return "received"

    def mutate_after_send(self, group: str) -> None:
        import torch

        tensor = torch.ones(200_000)
        self.send(tensor, group, 1)
        tensor.zero_()

    def sum_received(self, group: str) -> float:
        return float(self.recv(group, 0).sum())

    def in_place(self, group: str) -> float:
        import torch

        if self._rank == 0:
            self.send_tensor(torch.arange(10.0), group, 1)
            return 45.0
        target = torch.zeros(10)
        self.recv_tensor(target, group, 0)
        return float(target.sum())

    def in_place_mismatch(self, group: str) -> str:
        import torch

        if self._rank == 0:
            self.send_tensor(torch.arange(10.0), group, 1)
            return ""
        try:
            self.recv_tensor(torch.zeros(9), group, 0)
        except ValueError as error:
            return str(error)
        return "no error"

    def threads(self, group: str, count: int) -> bool:
        """Several threads send at once; each tag's order is kept by its own thread."""
        other, results = 1 - self._rank, []

        def work() -> None:
            for i in range(count):
                self.send(i, group, other)
            results.append(sum(self.recv(group, other) for _ in range(count)))

        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        return sum(results) == 4 * sum(range(count))

    def piggyback(self, group: str) -> Any:
        if self._rank == 0:
            self.send("object", group, 1, piggyback_payload={"key": 1})
            return None
        return self.recv(group, 0)

    def spread(self, groups: list, src: tuple | None, size: int) -> bool:
        import torch

        name = (self._group_name, self._rank)
        source = src or (groups[0][0], groups[0][1][0])
        expected = torch.arange(size)
        obj = expected if name == tuple(source) else None
        received = self.broadcast(obj, groups, src)
        ok = torch.equal(received, expected)
        received.add_(self._rank)
        return ok

    def spread_and_hold(self, groups: list, seconds: float) -> float:
        """Broadcasts from rank 0; others give back after a while. Returns how long it took."""
        begin = time.monotonic()
        if self._rank == 0:
            works = [self.broadcast(i, groups, async_op=True) for i in range(2)]
            assert [work.wait() for work in works] == [0, 1]
            return time.monotonic() - begin
        held = [self.broadcast(None, groups, hold=True) for _ in range(2)]
        assert [each.obj for each in held] == [0, 1]
        time.sleep(seconds)
        for each in held:
            each.give_back()
        return time.monotonic() - begin

    def recv_or_error(self, group: str, rank: int, timeout: float | None = None) -> str:
        try:
            return f"got {self.recv(group, rank, timeout=timeout)}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def send_or_error(self, group: str, rank: int, count: int) -> str:
        import torch

        try:
            for _ in range(count):
                self.send(torch.ones(100_000), group, rank)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "sent"

    def send_then_die(self, group: str, rank: int) -> None:
        import torch

        self.send(torch.ones(100_000), group, rank)
        self.send("last words", group, rank)
        os.kill(os.getpid(), 9)

    def many_large(self, group: str, count: int, megabytes: int) -> int:
        """Sends or receives many large tensors; returns the resident bytes at the end."""
        import psutil
        import torch

        torch.set_num_threads(1)
        tensor = torch.ones(megabytes << 18)
        for _ in range(count):
            if self._rank == 0:
                self.send(tensor, group, 1)
            else:
                tensor = self.recv(group, 0)
        del tensor
        self.send(None, group, 1 - self._rank)
        self.recv(group, 1 - self._rank)
        return psutil.Process().memory_info().rss

    # -- re-sharding --------------------------------------------------------------------------

    def share_out(self, group: str, channel: Channel | None, total: int) -> None:
        import torch

        size = total // self._world_size
        data = torch.arange(self._rank * size, (self._rank + 1) * size)
        batch = {"x": data, "names": [str(int(i)) for i in data], "flag": True}
        self.send_to(group, channel, batch, route_key=1, tag="t")

    def share_in(self, group: str, channel: Channel | None, total: int | None) -> tuple[list, list]:
        batch = self.recv_from(group, channel, route_key=1, tag="t", batch_size=total)
        return batch["x"].tolist(), batch["names"]

    # -- channels -----------------------------------------------------------------------------

    def put_range(self, channel: Channel, start: int, count: int, size: int = 0) -> None:
        import torch

        for i in range(start, start + count):
            channel.put((i, torch.ones(size)) if size else i)

    def take(self, channel: Channel, count: int) -> list[int]:
        out = []
        for _ in range(count):
            item = channel.get()
            out.append(item[0] if isinstance(item, tuple) else item)
        return out

    def take_until_closed(self, channel: Channel) -> list[int]:
        out = []
        try:
            while True:
                item = channel.get()
                out.append(item[0] if isinstance(item, tuple) else item)
        except ChannelClosed:
            return out

    def take_batches(self, channel: Channel, target: float) -> list[list[int]]:
        out = []
        try:
            while True:
                out.append(channel.get_batch(target))
        except ChannelClosed:
            return out

    def take_one_and_die(self, channel: Channel) -> None:
        channel.get()
        os.kill(os.getpid(), 9)

    def take_some_and_die(self, channel: Channel, count: int) -> None:
        """Finishes `count` items and dies with whatever it was lent beside them."""
        assert self.take(channel, count) == list(range(count))
        channel.task_done()
        os.kill(os.getpid(), 9)

    def put_large_and_die(self, channel: Channel) -> None:
        import torch

        channel.put("small")
        channel.put(torch.ones(1_000_000))
        channel.qsize()
        os.kill(os.getpid(), 9)

    def use_channel(self, channel: Channel, method: str, *args: Any) -> str:
        try:
            return f"ok {getattr(channel, method)(*args)}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def fresh_keys(self, channel: Channel, count: int) -> int:
        """Uses a new key for each item; returns growth of resident memory in bytes."""
        import psutil

        process = psutil.Process()
        before = process.memory_info().rss
        for i in range(count):
            key = f"{self._rank}-{i}"
            channel.put(i, key=key)
            assert channel.get(key=key) == i
        return process.memory_info().rss - before

    def rss(self) -> int:
        import psutil

        return psutil.Process().memory_info().rss

    def connected(self, name: str) -> int:
        channel = self.connect_channel(name)
        return channel.get()

    def made(self, name: str) -> bool:
        channel = self.create_channel(name)
        channel.put(7)
        return channel.get() == 7

    def made_again(self, name: str) -> bool:
        channel = self.create_channel(name)
        channel.put(self._rank)
        return channel._spec.incarnation == 1


class AsyncTalker(Worker):
    """Uses channels in coroutines."""

    async def relay(self, source: Channel, target: Channel, count: int) -> None:
        async def one() -> None:
            item = await source.get(async_op=True)
            await target.put(item, async_op=True)

        await asyncio.gather(*[one() for _ in range(count)])

    async def give_up(self, channel: Channel) -> str:
        """Cancels a waiting get; the item must stay in the channel."""
        task = asyncio.ensure_future(channel.get(async_op=True).async_wait())
        await asyncio.sleep(0.2)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "got it"

    async def timeout(self, channel: Channel) -> str:
        begin = time.monotonic()
        try:
            await channel.get(async_op=True).async_wait(timeout=0.3)
        except TimeoutError as error:
            return f"{time.monotonic() - begin < 20} {error}"
        return "got it"
