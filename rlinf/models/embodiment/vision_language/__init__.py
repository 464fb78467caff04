"""What a policy on a vision-language model of transformers inherits, and a tokenizer of words."""

from __future__ import annotations

import importlib
from typing import Any

from rlinf.models.embodiment.vision_language.config import VisionLanguageKeys

_LATER = {
    "VisionLanguagePolicy": "rlinf.models.embodiment.vision_language.policy",
    "word_tokenizer": "rlinf.models.embodiment.openvla.prompts",
}

__all__ = ["VisionLanguageKeys", "VisionLanguagePolicy", "word_tokenizer"]


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use: keys must load without it."""
    if name not in _LATER:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_LATER[name]), name)
