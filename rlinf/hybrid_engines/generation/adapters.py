"""Low-rank adapters on their way to an engine that uses them beside fixed weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlinf.models.causal_lm.load import shape_of_causal_lm
from rlinf.models.lora import adapter_tensors, lora_config, shape_with_adapters


def keeps_adapters(cfg: Any) -> bool:
    """Return whether the engine of a reasoning config takes adapters as they are.

    Other engines get merged weights.
    """
    return cfg.rollout.rollout_backend == "vllm"


class ReceivedAdapters(nn.Module):
    """The adapters of a model, as a module that weights can be received into.

    Args:
        network: The model section.

    Attributes:
        config: Their `peft.LoraConfig`.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.config = lora_config(network)
        shell = shape_with_adapters(shape_of_causal_lm(network), network)
        self._tensors = {
            name: torch.zeros(tensor.shape, dtype=torch.float32)
            for name, tensor in adapter_tensors(shell, lambda tensor: tensor)
        }

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the adapters by the names of peft's files."""
        return dict(self._tensors)
