"""Loads a model of transformers for a policy, whole or with its weights left for later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlinf.models.causal_lm.load import read_later, transformers_module

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlinf.models.deferred import DeferredWeights


def load_model(
    kind: Any,
    folder: str | Path,
    torch_dtype: torch.dtype,
    deferral: DeferredWeights | None = None,
) -> PreTrainedModel:
    """Load a model from a folder as `save_pretrained` of transformers writes it.

    Args:
        kind: Class of transformers, such as `AutoModel`.
        folder: Where it is.
        torch_dtype: Number format of the weights.
        deferral: As a builder is given it: where set, the weights are read later, by each rank its
            own part.
    """
    folder = Path(folder).expanduser()
    if deferral is None:
        return kind.from_pretrained(folder, dtype=torch_dtype)
    config = transformers_module().AutoConfig.from_pretrained(folder)
    model = kind.from_config(config, dtype=torch_dtype)
    read_later(model, folder, deferral)
    return model
