"""SGLang as an engine on one GPU, driven from a running event loop as in a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks.gpu_parts.settings import Row, Settings
from benchmarks.gpu_parts.vllm import Checks


class SglangChecks(Checks):
    """The checks of every engine of another project."""

    backend, title = "sglang", "SGLang"


def measure(settings: Settings) -> Iterator[Row]:
    """A row per check."""
    rows = SglangChecks(settings).run()

    async def following() -> Row | None:
        return next(rows, None)

    loop = asyncio.new_event_loop()
    while (row := loop.run_until_complete(following())) is not None:
        yield row
    loop.close()
