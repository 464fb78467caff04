"""Finds generation engines by the names that `rollout.rollout_backend` uses."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rlinf.config.signatures import Call, check_method
from rlinf.config.suggest import did_you_mean, listed

if TYPE_CHECKING:
    from rlinf.hybrid_engines.generation.interface import GenerationEngine
    from rlinf.hybrid_engines.generation.settings import EngineSettings

_PACKAGE = "rlinf.hybrid_engines.generation"
_engines: dict[str, str | type[GenerationEngine]] = {
    "hf": f"{_PACKAGE}.hf.engine:HFEngine",
    "vllm": f"{_PACKAGE}.vllm_engine:VllmEngine",
    "sglang": f"{_PACKAGE}.sglang_engine:SglangEngine",
    "vllm_server": f"{_PACKAGE}.remote.engine:VllmServerEngine",
    "sglang_server": f"{_PACKAGE}.remote.engine:SglangServerEngine",
}


def register_engine(
    name: str, engine: type[GenerationEngine], *, replaces: bool = False
) -> type[GenerationEngine]:
    """Make an engine known.

    Args:
        name: Case does not matter.
        engine: Its class; `from_settings` builds one.
        replaces: Take the place of whoever has the name.

    Returns:
        The class.

    Raises:
        ValueError: The name is taken, or `from_settings` does not take the settings.
    """
    check_method(f"generation engine '{name}'", engine, "from_settings", Call(("settings",)))
    if name.lower() in _engines and not replaces:
        raise ValueError(
            f"there is a generation engine '{name}' already; pass replaces=True to take its place"
        )
    _engines[name.lower()] = engine
    return engine


def get_engine(name: str) -> type[GenerationEngine]:
    """Return the class of an engine.

    Raises:
        ValueError: There is no such engine; near ones are named.
    """
    engine = _engines.get(str(name).lower())
    if engine is None:
        hint = did_you_mean(name, _engines)
        raise ValueError(
            f"there is no generation engine '{name}'; {hint + ' ' if hint else ''}"
            f"known: {listed(_engines)}"
        )
    if isinstance(engine, str):
        module, _, attribute = engine.partition(":")
        engine = getattr(importlib.import_module(module), attribute)
        _engines[str(name).lower()] = engine
    return engine


def build_engine(name: str, settings: EngineSettings) -> GenerationEngine:
    """Build an engine.

    Args:
        name: Such as `cfg.rollout.rollout_backend`.
        settings: Such as `EngineSettings.from_config(cfg)`.

    Raises:
        ValueError: There is no such engine, or a setting is not for it.
    """
    return get_engine(name).from_settings(settings)
