"""The vision tower of PaliGemma and Eagle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from rlinf.models.causal_lm.load import transformers_module


def siglip_tower(sizes: Mapping[str, Any]) -> nn.Module:
    """Return a SigLIP of transformers with random weights.

    Args:
        sizes: As in its config.
    """
    transformers = transformers_module()
    config = {"attn_implementation": "sdpa", "vision_use_head": False, **sizes}
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**config))
