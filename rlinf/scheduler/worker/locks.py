"""The device lock: workers that share a device take turns."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.errors import WaitTimeout
from rlinf.scheduler.net.interrupts import shielded_methods
from rlinf.scheduler.worker.runtime import ProcessRuntime


@shielded_methods
class DeviceLock:
    """Lock over all devices of a worker, first come first served, freed when its holder dies.

    Re-entrant: each `acquire` needs its own `release`. Use it as a context manager.
    """

    def __init__(self, runtime: ProcessRuntime, keys: list[str]):
        self._runtime = runtime
        self._keys = list(keys)

    def acquire(self, timeout: float | None = None) -> None:
        """Wait until all devices are free and take them.

        Raises:
            WaitTimeout: the deadline (`cluster.timeouts.lock` by default) passed; names the
            holders.
        """
        if not self._keys:
            return
        if timeout is None:
            timeout = self._runtime.run.timeout("lock")
        what = f"the lock of {', '.join(self._keys)}"
        try:
            self._runtime.registry.ask(
                "acquire",
                keys=self._keys,
                timeout=timeout,
                what=what,
                undo=("release", {"keys": self._keys}),
            )
        except WaitTimeout as error:
            holders = self._runtime.registry.ask("holders", keys=self._keys)
            raise WaitTimeout(
                what, waiter=self._runtime.name, seconds=error.seconds, holders=holders
            ) from None

    def release(self) -> None:
        """Give the devices back."""
        if self._keys:
            self._runtime.registry.ask("release", keys=self._keys)

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.release()
