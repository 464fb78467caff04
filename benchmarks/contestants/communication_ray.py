"""Plain Ray, for `benchmarks.communication`: objects between actors, and `ray.util.queue`.

Messages are NumPy arrays, which Ray hands over without a copy on the receiver's side.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from answer import serve

INLINE = 100_000
"""Ray sends smaller arguments within the call; larger ones go through the object store."""


class Peer:
    """An actor that sends and receives."""

    def answer(self, message: np.ndarray) -> np.ndarray:
        """Take a message and give back one of its own of that size."""
        if getattr(self, "_mine", None) is None or self._mine.size != message.size:
            self._mine = np.full(message.size, 3, np.float32)
        return self._mine

    def take(self, message: np.ndarray) -> float:
        """Take a message."""
        return float(message[-1])

    def round_trips(self, other: Any, size: int, count: int) -> list[float]:
        """Return the seconds of each of `count` round trips to another actor."""
        import ray

        message = np.full(size // 4, 1, np.float32)
        times = []
        for step in range(count):
            message[-1] = step
            begin = time.perf_counter()
            back = ray.get(other.answer.remote(_sent(message)))
            times.append(time.perf_counter() - begin)
            assert back[-1] == 3 and back.size == message.size
        return times

    def one_way(self, other: Any, size: int, count: int) -> float:
        """Return the seconds until another actor has taken `count` messages."""
        import ray

        message = np.full(size // 4, 1, np.float32)
        begin = time.perf_counter()
        taken = ray.get([other.take.remote(_sent(message)) for _ in range(count)])
        assert taken == [1.0] * count
        return time.perf_counter() - begin

    def produce(self, queue: Any, size: int, count: int) -> float:
        """Put `count` items and return when the first one was begun."""
        item = np.full(size // 4, 1, np.float32)
        begin = time.monotonic()
        for _ in range(count):
            queue.put(item)
        return begin

    def consume(self, queue: Any, size: int, count: int) -> float:
        """Take `count` items and return when the last one was there."""
        for _ in range(count):
            assert queue.get().size == size // 4
        return time.monotonic()


def _sent(message: np.ndarray) -> Any:
    import ray

    return ray.put(message) if message.nbytes > INLINE else message


class RayObjects:
    """Two sets of actors that exchange objects."""

    def prepare(self) -> None:
        """Start Ray, the actors and the queue."""
        import ray
        from ray.util.queue import Queue

        ray.init(address="local", include_dashboard=False)
        remote = ray.remote(num_cpus=0)(Peer)
        self._left, self._right = ([remote.remote() for _ in range(4)] for _ in range(2))
        ray.get([actor.__ray_ready__.remote() for actor in self._left + self._right])
        self._queue = Queue(actor_options={"num_cpus": 0})
        self._queue.qsize()

    def first_contacts(self) -> list[float]:
        """Return the seconds of the first round trip of each pair that has never met."""
        import ray

        pairs = zip(self._left, self._right, strict=True)
        return [ray.get(a.round_trips.remote(b, 1024, 1))[0] for a, b in pairs]

    def round_trips(self, size: int, count: int) -> list[float]:
        """Return the seconds of each of `count` round trips of one pair."""
        import ray

        return ray.get(self._left[0].round_trips.remote(self._right[0], size, count))

    def one_way(self, size: int, count: int) -> float:
        """Return the seconds until one actor has taken `count` messages of another."""
        import ray

        return ray.get(self._left[0].one_way.remote(self._right[0], size, count))

    def channel(self, producers: int, consumers: int, size: int, count: int) -> float:
        """Return the seconds from the first put to the last get of `count` items."""
        import ray

        share = [("consume", self._right[:consumers]), ("produce", self._left[:producers])]
        ends, begins = (
            [getattr(a, what).remote(self._queue, size, count // len(actors)) for a in actors]
            for what, actors in share
        )
        return max(ray.get(ends)) - min(ray.get(begins))

    def stop(self) -> None:
        """End Ray."""
        import ray

        ray.shutdown()


if __name__ == "__main__":
    serve(RayObjects())
