"""SmolLM2-135M-Instruct writes and repairs programs: the recipe `code_agent_smollm2`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_parts.agent_recipe import measure_recipe
from benchmarks.gpu_parts.settings import Row, Settings


def measure(settings: Settings) -> Iterator[Row]:
    """See `measure_recipe`."""
    yield from measure_recipe("code_agent_smollm2", settings)
