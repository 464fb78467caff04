"""Workers whose tensors go by link."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from typing import Any

from tests.unit_tests.scheduler.comm_workers import Talker, equal
from tests.unit_tests.scheduler.transfer_end import end_in_transfer

_LARGE = 40_000


def large_nest(seed: int) -> dict[str, Any]:
    """Large tensors of many kinds among small ones; the same for the same seed."""
    import numpy as np
    import torch

    base = torch.rand(300, 400, generator=torch.Generator().manual_seed(seed))
    return {
        "plain": base,
        "views": [base.T, base[::2, 1:], base[:1].expand(700, 400)],
        "halves": (base.bfloat16(), base.half()),
        "bool": base > 0.5,
        "conj": torch.complex(base, -base).conj(),
        "ints": {t: (base * 100).to(getattr(torch, t)) for t in ("int16", "uint8", "int64")},
        "parameter": torch.nn.Parameter(base.double()),
        "small": torch.arange(seed % 7 + 1),
        "scalar": torch.tensor(float(seed)),
        "array": np.full(_LARGE, seed),
        "text": f"nest {seed}",
    }


class Linker(Talker):
    """Sends and receives large tensors."""

    def pass_with_options(self, group: str, options: Any) -> list[Any]:
        """Rank 0 sends a large tensor with options; what each side's links were set up with."""
        import torch

        if self._rank == 0:
            self.send(torch.ones(1 << 16), group, 1, options=options)
        else:
            assert bool((self.recv(group, 0) == 1).all())
        return [link.address.options for link in self._runtime.endpoint.links._all()]

    def links(self, count: int | None = None) -> list[str]:
        """Names of the links that are alive; waits up to 20 s until there are `count`."""
        deadline = time.monotonic() + 20
        while True:
            names = [t.name for t in threading.enumerate() if t.name.startswith("rlinf-link")]
            if count is None or len(names) == count or time.monotonic() > deadline:
                return sorted(names)
            time.sleep(0.05)

    def swap(self, group: str, count: int) -> bool:
        """Sends nests to the other rank and takes as many, both at the same time and in order."""
        other = 1 - self._rank
        works = []
        for i in range(count):
            work = self.send(large_nest(i), group, other, async_op=bool(i % 2))
            works += [work] if work is not None else []
        ok = all(equal(self.recv(group, other), large_nest(i)) for i in range(count))
        for work in works:
            work.wait()
        return ok

    def swap_with_all(self, group: str, count: int) -> bool:
        """Every worker sends to every other, all at the same time."""
        import torch

        others = [rank for rank in range(self._world_size) if rank != self._rank]
        works = []
        for i in range(count):
            tensor = torch.full((_LARGE,), float(self._rank * count + i))
            works += [self.send(tensor, group, rank, async_op=True) for rank in others]
        for i in range(count):
            for rank in others:
                if not bool((self.recv(group, rank) == rank * count + i).all()):
                    return False
        for work in works:
            work.wait()
        return True

    def send_from_threads(self, group: str, rank: int, threads: int, count: int) -> None:
        import torch

        def send(thread: int) -> None:
            works = []
            for i in range(count):
                label = thread * count + i
                item = (label, torch.full((_LARGE + 1000 * thread,), float(label)))
                works.append(self.send(item, group, rank, async_op=i % 3 > 0))
            for work in works:
                if work is not None:
                    work.wait()

        runs = [threading.Thread(target=send, args=(t,)) for t in range(threads)]
        [run.start() for run in runs]
        [run.join() for run in runs]

    def recv_labelled(self, group: str, rank: int, count: int) -> list[int]:
        """Labels of what came, -1 for a tensor that is not the label's."""
        labels = []
        for _ in range(count):
            label, tensor = self.recv(group, rank)
            labels.append(label if bool((tensor == label).all()) else -1)
        return labels

    def send_unwanted(self, group: str, rank: int, count: int) -> None:
        """Sends to a stream that nobody reads; returns when the receiver has it nevertheless."""
        import torch

        mailbox = self._runtime.mailbox
        for i in range(count):
            tensor = torch.full((_LARGE,), float(i))
            mailbox.send(f"{group}:{rank}", tensor, "unread", keep=False).wait(timeout=30)

    def all_reduce_beside(self, group: str, count: int) -> list[float]:
        """Uses a process group of the user's own while tensors go by link."""
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        sums = []
        for i in range(count):
            work = self.send(torch.full((_LARGE,), float(i)), group, 1 - self._rank, async_op=True)
            total = torch.tensor([float(self._rank + i)])
            dist.all_reduce(total)
            received = self.recv(group, 1 - self._rank)
            assert bool((received == i).all())
            work.wait()
            sums.append(float(total))
        dist.destroy_process_group()
        return sums

    def send_huge_or_error(self, group: str, rank: int, megabytes: int) -> str:
        import torch

        try:
            self.send(torch.zeros(megabytes << 18), group, rank, async_op=True).wait()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "sent"

    def broadcast_nests(self, group: str, ranks: list[int], count: int) -> bool:
        """Every rank of some broadcasts nests to the others, all at the same time."""
        members = [(group, ranks)]
        works = [
            self.broadcast(large_nest(i), members, (group, self._rank), True) for i in range(count)
        ]
        ok = True
        for i in range(count):
            for rank in ranks:
                if rank != self._rank:
                    ok &= equal(self.broadcast(None, members, (group, rank)), large_nest(i))
        for work in works:
            work.wait()
        return ok

    def broadcast_or_error(self, group: str, source: int, megabytes: int) -> str:
        """Takes part in a broadcast of the whole group."""
        import torch

        try:
            self.broadcast(torch.zeros(megabytes << 18), src=(group, source))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "done"

    def die_in_next_transfer(self) -> None:
        """Ends without a word when a transfer has begun."""
        end_in_transfer(0)

    def send_huge_and_die(self, group: str, rank: int, megabytes: int) -> None:
        import torch

        self.send(torch.zeros(megabytes << 18), group, rank, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def send_when_asked(self, group: str, rank: int, megabytes: int) -> str:
        self.recv(group, rank)
        return self.send_huge_or_error(group, rank, megabytes)

    def recv_without_memory(self, group: str, rank: int) -> str:
        """Asks for a tensor while the process may take little more memory than it has."""
        import torch

        limits = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        size = pages * resource.getpagesize() + (100 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (size, limits[1]))
        taken = []
        try:
            # An allocator may have reserved address space: that of torch on aarch64 does, by GiB.
            with contextlib.suppress(RuntimeError):
                while True:
                    taken.append(torch.empty(64 << 18))
            self.send("now", group, rank)
            return self.recv_or_error(group, rank)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
