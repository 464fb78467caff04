"""Send, recv and channels of rlinf, for `benchmarks.communication`.

One program for this repository and for the public package, which have the same names; the
interpreter decides which one it is.
"""

from __future__ import annotations

import time
from typing import Any

from answer import serve


def worker_class() -> type:
    """Return the worker class; a function, so that nothing is imported before `serve`."""
    import torch

    from rlinf.scheduler import Worker

    class Peer(Worker):
        """A worker that sends and receives."""

        def __init__(self) -> None:
            super().__init__()
            torch.set_num_threads(1)

        def round_trips(self, other: str, rank: int, size: int, count: int) -> list[float]:
            """Return the seconds of each of `count` round trips to another worker."""
            message = torch.full((size // 4,), 1.0)
            times = []
            for step in range(count):
                message[-1] = step
                begin = time.perf_counter()
                self.send(message, other, rank)
                back = self.recv(other, rank)
                times.append(time.perf_counter() - begin)
                assert back[-1] == 3 and back.numel() == message.numel()
                # Let go of it before the next one comes, as a worker does that has used it.
                del back
            return times

        def answer(self, other: str, rank: int, size: int, count: int) -> None:
            """Take messages and answer each with one of its own."""
            mine = torch.full((size // 4,), 3.0)
            for step in range(count):
                message = self.recv(other, rank)
                self.send(mine, other, rank)
                assert message[-1] == step
                del message

        def one_way(self, other: str, rank: int, size: int, count: int) -> float:
            """Return the seconds until another worker has taken `count` messages."""
            message = torch.full((size // 4,), 1.0)
            begin = time.perf_counter()
            for _ in range(count):
                self.send(message, other, rank)
            assert self.recv(other, rank)[0] == count
            return time.perf_counter() - begin

        def take(self, other: str, rank: int, size: int, count: int) -> None:
            """Take messages and say so after the last."""
            for _ in range(count):
                message = self.recv(other, rank)
                assert message[-1] == 1 and message.numel() == size // 4
                del message
            self.send(torch.tensor([float(count)]), other, rank)

        def produce(self, channel: Any, size: int, count: int) -> float:
            """Put `count` items and return when the first one was begun."""
            item = torch.full((size // 4,), 1.0)
            begin = time.monotonic()
            for _ in range(count):
                channel.put(item)
            return begin

        def consume(self, channel: Any, size: int, count: int) -> float:
            """Take `count` items and return when the last one was there."""
            for _ in range(count):
                item = channel.get()
                assert item[-1] == 1 and item.numel() == size // 4
                del item
            return time.monotonic()

    return Peer


class SendRecv:
    """Two groups of workers that exchange tensors."""

    def prepare(self) -> None:
        """Start the cluster, two groups and a channel."""
        from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy

        self._cluster = Cluster(num_nodes=1)
        peer = worker_class()
        self._left, self._right = (
            peer.create_group().launch(
                self._cluster, placement_strategy=NodePlacementStrategy([0] * 4), name=name
            )
            for name in ("left", "right")
        )
        # The public package returns from a launch before its workers are up.
        for group in (self._left, self._right):
            group.pop_execution_times().wait()
        self._channel = Channel.create("items")

    def first_contacts(self) -> list[float]:
        """Return the seconds of the first round trip of each pair that has never met."""
        times = []
        for rank in range(4):
            other = self._right.execute_on(rank).answer("left", rank, 1024, 1)
            # The answering side waits already when the other one begins.
            time.sleep(0.3)
            times += self._left.execute_on(rank).round_trips("right", rank, 1024, 1).wait()[0]
            other.wait()
        return times

    def round_trips(self, size: int, count: int) -> list[float]:
        """Return the seconds of each of `count` round trips of one pair."""
        other = self._right.execute_on(0).answer("left", 0, size, count)
        times = self._left.execute_on(0).round_trips("right", 0, size, count).wait()[0]
        other.wait()
        return times

    def one_way(self, size: int, count: int) -> float:
        """Return the seconds until one worker has taken `count` messages of another."""
        other = self._right.execute_on(0).take("left", 0, size, count)
        seconds = self._left.execute_on(0).one_way("right", 0, size, count).wait()[0]
        other.wait()
        return seconds

    def channel(self, producers: int, consumers: int, size: int, count: int) -> float:
        """Return the seconds from the first put to the last get of `count` items."""
        ends = self._right.execute_on(*range(consumers)).consume(
            self._channel, size, count // consumers
        )
        begins = self._left.execute_on(*range(producers)).produce(
            self._channel, size, count // producers
        )
        return max(ends.wait()) - min(begins.wait())

    def stop(self) -> None:
        """End the cluster."""
        # The public package has no shutdown of its own.
        getattr(self._cluster, "shutdown", lambda: None)()


if __name__ == "__main__":
    serve(SendRecv())
