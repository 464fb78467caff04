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

    class SiglipTower(transformers.SiglipVisionModel):
        """SigLIP with weights that need not be there while it is made."""

        def init_weights(self) -> None:
            """Draw weights; truncated normals, as SigLIP has them, cannot be deferred."""
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear | nn.Conv2d):
                    nn.init.zeros_(module.bias)

    config = {"attn_implementation": "sdpa", "vision_use_head": False, **sizes}
    tower = SiglipTower(transformers.SiglipVisionConfig(**config))
    # A class that is made here could not be pickled.
    tower.__class__ = transformers.SiglipVisionModel
    return tower
