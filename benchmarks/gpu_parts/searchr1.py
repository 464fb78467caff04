"""SmolLM2-135M-Instruct looks facts up: the recipe `searchr1`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_parts.agent_recipe import measure_recipe
from benchmarks.gpu_parts.settings import Row, Settings


def measure(settings: Settings) -> Iterator[Row]:
    """See `measure_recipe`."""
    yield from measure_recipe("searchr1", settings)
