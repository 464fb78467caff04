"""Engines are found by name."""

import pytest

from rlinf.hybrid_engines.generation import get_engine, register_engine, registry
from rlinf.hybrid_engines.generation.hf.engine import HFEngine


def test_names_lead_to_classes():
    assert get_engine("hf") is HFEngine and get_engine("HF") is HFEngine


def test_an_unknown_name_is_told_with_near_ones():
    with pytest.raises(ValueError, match="no generation engine 'vlm'; did you mean 'vllm'"):
        get_engine("vlm")


def test_engines_can_be_added(monkeypatch):
    monkeypatch.setattr(registry, "_engines", dict(registry._engines))

    class Other(HFEngine):
        pass

    with pytest.raises(ValueError, match="an? generation engine 'hf' already"):
        register_engine("hf", Other)
    register_engine("mine", Other)
    assert get_engine("mine") is Other
