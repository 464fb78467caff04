"""Whole GRPO steps with SGLang inside of a rollout worker, and with our engine."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_parts.settings import Row, Settings
from benchmarks.gpu_parts.vllm_grpo import compare


def measure(settings: Settings) -> Iterator[Row]:
    """A row per engine."""
    yield from compare(settings, "sglang")
