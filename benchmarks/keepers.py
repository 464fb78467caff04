"""Throughput of a channel whose keys are spread over one, two and four keepers.

Part of `python -m benchmarks.scaling`; `python -m benchmarks.keepers` measures it alone. Keepers
are processes of one machine here; `Channel.create(distributed=True)` has one on each node.

On few cores, keepers and those who use the channel compete, so items per second say little. Items
per second of CPU of the busiest keeper are what a channel carries whose keepers have cores of their
own.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence

import psutil

from rlinf.scheduler import Channel, Cluster, FlexiblePlacementStrategy, Worker
from rlinf.scheduler.channel.spec import ChannelSpec
from rlinf.scheduler.current import current_runtime
from rlinf.scheduler.worker.channel_keeper import ChannelKeeper

_USERS = 4
_KEYS = 16
"""Keys of each user. Which keeper has a key is decided by its hash."""
_ITEMS = 4000
_ITEM = bytes(100)


class User(Worker):
    """Puts items under keys of its own and takes them out again."""

    def use(self, channel: Channel, items: int) -> int:
        """Return the number of items that came back."""
        keys = [f"{self._rank} {number % _KEYS}" for number in range(items)]
        puts = [channel.put(_ITEM, key=key, async_op=True) for key in keys]
        for put in puts:
            put.wait()
        return sum(channel.get(key=key) == _ITEM for key in keys)


def measure_keepers(counts: Sequence[int], repeats: int, items: int = _ITEMS) -> str:
    """Return a table of the throughput by number of keepers.

    Args:
        counts: numbers of keepers.
        repeats: rounds.
        items: items of each user and round.
    """
    rates: dict[int, list[float]] = {count: [] for count in counts}
    capacities: dict[int, list[float]] = {count: [] for count in counts}
    with Cluster(num_nodes=1, trace=False) as cluster:
        users = User.create_group().launch(cluster, _spread(_USERS), name="User")
        channels = {count: _channel(cluster, count) for count in counts}
        for channel, _ in channels.values():
            users.use(channel, items // 10).wait()
        for _ in range(repeats):
            for count, (channel, keepers) in channels.items():
                before = [_cpu(keeper) for keeper in keepers]
                begin = time.perf_counter()
                assert users.use(channel, items).wait() == [items] * _USERS
                rates[count].append(_USERS * items / (time.perf_counter() - begin))
                busiest = max(_cpu(k) - b for k, b in zip(keepers, before, strict=True))
                capacities[count].append(_USERS * items / busiest)
    lines = [
        "| keepers | items/s | items per CPU second of the busiest keeper | x 1 keeper |",
        "| ---: | ---: | ---: | ---: |",
    ]
    one = statistics.median(capacities[counts[0]])
    for count in counts:
        capacity = statistics.median(capacities[count])
        cells = [_cell(rates[count]), _cell(capacities[count]), f"{capacity / one:.2f}"]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(count: int) -> FlexiblePlacementStrategy:
    return FlexiblePlacementStrategy([[slot] for slot in range(count)])


def _channel(cluster: Cluster, count: int) -> tuple[Channel, list[psutil.Process]]:
    """Start keepers and make a channel that they keep together."""
    group = ChannelKeeper.create_group().launch(cluster, _spread(count), name=f"Keepers-{count}")
    infos = group.worker_info_list
    spec = ChannelSpec(f"kept by {count}", keepers=tuple(info.name for info in infos))
    for work in current_runtime().channels.ask_all(spec, "q.open", spec):
        work.wait()
    return Channel(spec), [psutil.Process(info.pid) for info in infos]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} [{min(values):,.0f}–{max(values):,.0f}]"


if __name__ == "__main__":
    print(measure_keepers([1, 2, 4], 5))
    sys.exit(0)
