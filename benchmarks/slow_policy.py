"""A policy that is slowed down to cost as much as the simulator, for `benchmarks.embodied`.

Named by RLINF_EXT_MODULE, it is `model_type: slow_mlp_policy`: the MLP policy, with work in front
of every action that nobody uses. The work grows with the number of observations, as that of a large
network does when the batch is not tiny. There are two kinds:

- `slow_passes`: matrix products, on the core of the rollout worker.
- `slow_ms`: waiting, which leaves the cores to others, as a network on an accelerator does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from rlinf.config.schema.base import Float, Int
from rlinf.models import register_model
from rlinf.models.embodiment.head_settings import HeadSettings
from rlinf.models.embodiment.mlp_policy.config import MLPPolicyKeys
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy

WIDTH = 512
"""Of the matrix: small enough to stay in the cache, so that the time grows with the rows."""


class SlowPolicyKeys(MLPPolicyKeys):
    """Keys of the MLP policy, and how slow it is."""

    slow_passes: Int = Field(0, ge=0, description="Matrix products before each action.")
    slow_ms: Float = Field(0.0, ge=0, description="Milliseconds to wait per observation.")


class SlowPolicy(MLPPolicy):
    """The MLP policy with work in front of every action."""

    slow_passes = 0
    slow_ms = 0.0
    _matrix = torch.eye(WIDTH)

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Mapping[str, Any], *args: Any, noise: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """As the MLP policy does, later."""
        rows = len(env_obs["states"])
        work = torch.ones(rows, WIDTH)
        for _ in range(self.slow_passes):
            work = work @ self._matrix
        if self.slow_ms:
            time.sleep(rows * self.slow_ms / 1e3)
        return super().predict_action_batch(env_obs, *args, noise=noise, **kwargs)


def build(cfg: Any, torch_dtype: torch.dtype, env_spec: Any = None) -> SlowPolicy:
    """Build the policy from its model section."""
    policy = SlowPolicy(cfg.obs_dim, cfg.action_dim, HeadSettings.of(cfg), env_spec)
    policy.slow_passes, policy.slow_ms = cfg.slow_passes, cfg.slow_ms
    return policy.to(torch_dtype)


def register() -> None:
    """Make the policy known; called in the driver and in every worker."""
    register_model("slow_mlp_policy", build, schema=SlowPolicyKeys)
