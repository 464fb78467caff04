"""What tests of environments of others share."""

import sys

import pytest


@pytest.fixture
def package(monkeypatch):
    """The package verifiers, or its double."""
    pytest.importorskip("transformers")
    from tests.unit_tests.agents.verifiers_double import REAL, Double, real_environment

    if REAL:
        import verifiers

        monkeypatch.setattr(verifiers, "load_environment", real_environment)
        return verifiers
    double = Double()
    for module in (double, double.types, double.clients):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return double
