"""One sample of a config, as a run would see it, for `rlinf check --show-sample`."""

from __future__ import annotations

from typing import Any

from rlinf.cli.sample_parts import NoSample
from rlinf.config.task_types import GENERATING


def sample_of(cfg: Any) -> dict[str, Any]:
    """Make one sample in this process, without a cluster.

    Args:
        cfg: What `validate_cfg` returned.

    Returns:
        Plain data, with `kind`, `embodied` or `reasoning`.

    Raises:
        NoSample: The task type has none, or env, tokenizer or data cannot be made here.
    """
    if cfg.runner.task_type == "embodied":
        from rlinf.cli.samples_embodied import embodied_sample

        return embodied_sample(cfg)
    if cfg.runner.task_type in GENERATING:
        from rlinf.cli.samples_reasoning import reasoning_sample

        return reasoning_sample(cfg)
    raise NoSample(f"task type {cfg.runner.task_type} has neither prompts nor envs")


def as_lines(sample: dict[str, Any]) -> list[str]:
    """Return a sample in words; numbers are rounded."""
    if sample["kind"] == "embodied":
        from rlinf.cli.samples_embodied import embodied_lines

        return embodied_lines(sample)
    from rlinf.cli.samples_reasoning import reasoning_lines

    return reasoning_lines(sample)
