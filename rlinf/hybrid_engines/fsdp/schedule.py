"""The course of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def learning_rate_factor(cfg: Any, total_steps: int) -> Callable[[int], float]:
    """Return the factor on the learning rate by planned optimiser step.

    A linear warm-up, then the chosen course down to the least learning rate.

    Args:
        cfg: the `optim` section.
        total_steps: optimiser steps of the whole run, where the section does not say.
    """
    total = cfg.total_training_steps or max(1, total_steps)
    warmup = max(cfg.lr_warmup_steps, int(cfg.lr_warmup_steps_ratio * total))
    floor = cfg.min_lr / cfg.lr if cfg.min_lr_rate is None else cfg.min_lr_rate

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if cfg.lr_scheduler == "constant":
            return 1.0
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        if cfg.lr_scheduler == "linear":
            return floor + (1 - floor) * (1 - done)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(2 * math.pi * cfg.num_cycles * done))

    return factor
