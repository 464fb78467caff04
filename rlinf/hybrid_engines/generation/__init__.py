"""Generation engines behind one interface."""

from rlinf.hybrid_engines.generation.interface import GenerationEngine
from rlinf.hybrid_engines.generation.registry import build_engine, get_engine, register_engine
from rlinf.hybrid_engines.generation.requests import (
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from rlinf.hybrid_engines.generation.settings import EngineSettings

__all__ = [
    "EngineSettings",
    "GenerationEngine",
    "GenerationRequest",
    "GenerationResult",
    "SamplingParams",
    "build_engine",
    "get_engine",
    "register_engine",
]
