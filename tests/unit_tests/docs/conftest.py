"""What tests of pages share."""

from __future__ import annotations

import pytest

from rlinf.config import SupportedModel, plugins
from rlinf.models import registry


@pytest.fixture
def fresh_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after a test which models it has registered."""
    # A module registers its schema once per process: all must be there before the copy.
    for kind in plugins.KINDS:
        for name in plugins.known_names(kind):
            plugins.get_schema(kind, name)
    for name in ("_builders", "_lazy"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    schemas = {kind: dict(names) for kind, names in plugins._schemas.items()}
    monkeypatch.setattr(plugins, "_schemas", schemas)
    monkeypatch.setattr(SupportedModel, "_known", dict(SupportedModel._known))
