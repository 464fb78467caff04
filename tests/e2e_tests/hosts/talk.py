"""Workers on all nodes that talk to each other without pause, and check all that they hear."""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
from typing import Any

import numpy as np

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker

SIZES = (0, 1, 1000, 65_536, 1_000_000, 5_000_000)


class Talker(Worker):
    """Sends numbered messages to all others and counts those that it gets."""

    def talk(self, seconds: float, channel: Channel) -> dict[int, int]:
        """Talks to all others for a while; returns how many messages each of them sent here.

        Raises:
            AssertionError: a message is missing, twice there, out of order or damaged.
        """
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        heard: dict[int, int] = {}
        ended: queue.Queue[BaseException | None] = queue.Queue()

        def run(work: Any, *args: Any) -> None:
            try:
                work(*args)
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

        def listen(rank: int) -> None:
            heard[rank] = self._listen(rank)

        calls = [(listen, rank) for rank in others]
        calls += [(self._tell, rank, seconds) for rank in others]
        calls.append((self._put, channel, seconds))
        for call in calls:
            threading.Thread(target=run, args=call, daemon=True).start()
        for _ in calls:
            # What waits for a thread that failed never ends: the first failure ends all.
            if (error := ended.get()) is not None:
                raise error
        return heard

    def _tell(self, rank: int, seconds: float) -> None:
        chance = random.Random(f"{self._rank} {rank}")
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            self.send((number, content(self._rank, number, chance)), self._group_name, rank)
            number += 1
        self.send((number, None), self._group_name, rank)

    def _listen(self, rank: int) -> int:
        chance = random.Random(f"{rank} {self._rank}")
        due = 0
        while True:
            number, data = self.recv(self._group_name, rank)
            assert number == due, f"message {number} of {rank} came where {due} was due"
            if data is None:
                return number
            assert np.array_equal(data, content(rank, number, chance)), f"{number} is damaged"
            due += 1

    def _put(self, channel: Channel, seconds: float) -> None:
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            channel.put((self._rank, number, content(self._rank, number, random.Random(number))))
            number += 1
        channel.put((self._rank, number, None))

    def take(self, channel: Channel, producers: int) -> dict[int, int]:
        """Takes all from a channel; returns how many items each producer has put."""
        due = dict.fromkeys(range(producers), 0)
        open_ones = set(due)
        while open_ones:
            rank, number, data = channel.get()
            assert number == due[rank], f"item {number} of {rank} came where {due[rank]} was due"
            if data is None:
                open_ones.remove(rank)
                continue
            assert np.array_equal(data, content(rank, number, random.Random(number)))
            due[rank] += 1
        return due


def content(rank: int, number: int, chance: random.Random) -> np.ndarray:
    """What a message has in it."""
    return np.full(chance.choice(SIZES), (rank * 7 + number) % 251, np.uint8)


def main() -> None:
    """Talks for as many seconds as the argument says, encrypted if a last one says so."""
    nodes, seconds, log_dir = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    cfg = {"num_nodes": nodes, "encryption": "encrypted" in sys.argv[4:]}
    with Cluster(cluster_cfg=cfg, distributed_log_dir=log_dir):
        everywhere = NodePlacementStrategy(list(range(nodes)))
        talkers = Talker.create_group().launch(Cluster.current(), everywhere, name="talkers")
        last = NodePlacementStrategy([nodes - 1])
        taker = Talker.create_group().launch(Cluster.current(), last, name="taker")
        channel = Channel.create("items", maxsize=20)
        print("talking", flush=True)
        taking = taker.take(channel, nodes)
        heard = talkers.talk(seconds, channel).wait()
        taken = taking.wait()[0]
        print(f"heard {sum(sum(of.values()) for of in heard)}, taken {sum(taken.values())}")


if __name__ == "__main__":
    main()
