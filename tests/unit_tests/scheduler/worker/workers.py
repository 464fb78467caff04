"""Workers used by the tests."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time

from rlinf.scheduler import Worker


class Picky(Exception):
    """Cannot be unpickled the usual way: its constructor takes other arguments than `args`."""

    def __init__(self, code: int, *, detail: str):
        super().__init__(f"code {code}")
        self.code, self.detail = code, detail


class Echo(Worker):
    """Answers, waits, fails and dies on command."""

    def __init__(self, base: int = 0):
        super().__init__()
        self.base = base

    def add(self, x: int = 0) -> int:
        return self.base + self._rank + x

    def env(self, *names: str) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    def pid(self) -> int:
        return os.getpid()

    def loaded(self, name: str) -> bool:
        return name in sys.modules

    def hash_of(self, text: str) -> int:
        return hash(text)

    def in_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def busy(self, seconds: float) -> int:
        end, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < end and not self.cancel_requested:
            rounds += 1
        return rounds

    def say(self, text: str) -> None:
        self.log_info(text)

    def timed(self) -> None:
        with self.worker_timer("inner"):
            time.sleep(0.02)
        with self.worker_timer("inner"):
            time.sleep(0.02)

    @Worker.timer("decorated")
    def decorated(self) -> dict[str, float]:
        return self.pop_execution_times()

    def fail(self) -> None:
        raise ValueError("this method fails")

    def fail_picky(self) -> None:
        raise Picky(3, detail="kept")

    def leave(self) -> None:
        sys.exit(7)

    def die(self, how: str) -> None:
        die(how)

    def die_on_rank(self, rank: int, how: str, clock: str | None = None) -> None:
        """Notes the time in a file, if one is named, and dies."""
        if self._rank == rank:
            if clock is not None:
                with open(clock, "w") as file:
                    file.write(str(time.time()))
            die(how)
        time.sleep(600)

    def fork(self, folder: str, then: str) -> None:
        """Forks a child that ends at once or goes on until a file is there; then dies."""
        child = os.fork()
        if child == 0:
            while then == "child lives" and not os.path.exists(f"{folder}/over"):
                time.sleep(0.05)
            os._exit(0)
        if then == "child ends":
            os.waitpid(child, 0)
        die("kill")

    def lock_for(self, seconds: float) -> tuple[float, float]:
        with self.device_lock:
            begin = time.time()
            time.sleep(seconds)
            return begin, time.time()

    def take_lock(self, timeout: float | None = None) -> None:
        self.device_lock.acquire(timeout)

    def give_lock(self) -> None:
        self.device_lock.release()

    def port(self) -> int:
        return self.acquire_free_port()

    def all_reduce(self) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        value = torch.tensor([float(self._rank + 1)])
        dist.all_reduce(value)
        dist.destroy_process_group()
        return value.item()


class Doomed(Worker):
    """Fails or dies in its constructor, on one rank."""

    def __init__(self, how: str, rank: int = 1):
        super().__init__()
        if self._rank == rank:
            die(how)


class Coroutines(Worker):
    """Has coroutine methods beside plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        self.event = asyncio.Event()

    async def wait_for_event(self) -> int:
        await self.event.wait()
        return self._rank

    async def set_event(self) -> None:
        self.event.set()

    async def forever(self) -> None:
        await asyncio.sleep(3600)

    async def fail(self) -> None:
        raise LookupError("a coroutine fails")

    def plain_in_own_thread(self) -> bool:
        return threading.get_ident() == self.thread

    def block(self, seconds: float) -> None:
        time.sleep(seconds)


class Closing(Worker):
    """Writes a file when it is shut down."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def ping(self) -> None:
        pass

    def on_shutdown(self) -> None:
        with open(f"{self.path}.{self._rank}", "w") as file:
            file.write("closed")


def die(how: str) -> None:
    """Ends, or blocks, this process in one of the ways that happen in real life."""
    if how == "raise":
        raise ArithmeticError("raised on purpose")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "hang":
        time.sleep(3600)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
