"""What policies on vision-language models of transformers share, and how they load them."""

from __future__ import annotations

import importlib
from typing import Any

from rlinf.models.embodiment.vision_language.config import VisionLanguageKeys

_LATER = {
    "VisionLanguagePolicy": "rlinf.models.embodiment.vision_language.policy",
    "load_model": "rlinf.models.embodiment.vision_language.load",
    "word_tokenizer": "rlinf.models.embodiment.openvla.prompts",
}

__all__ = ["VisionLanguageKeys", "VisionLanguagePolicy", "load_model", "word_tokenizer"]


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use: keys must load without it."""
    if name not in _LATER:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_LATER[name]), name)
