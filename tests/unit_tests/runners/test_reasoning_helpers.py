"""Which optional groups a run launches, and that a runner refuses what the placement denies."""

from types import SimpleNamespace

import pytest

from rlinf.runners import reasoning_helpers
from rlinf.runners.reasoning_helpers import Helpers, launch_helpers
from tests.unit_tests.workers.actor.reasoning import CRITIC, make_cfg

PLACED = {
    **CRITIC,
    "algorithm.kl_beta": 0.1,
    "cluster.component_placement": {"actor,rollout,reward": "0", "reference": "1", "critic": "2-3"},
}


class Class:
    """Stands for a worker class: tells what would be launched."""

    def create_group(self, cfg, *further):
        return SimpleNamespace(launch=lambda cluster, **keys: (cluster, further, keys))


def test_those_that_the_placement_names_are_launched(monkeypatch):
    known = {role: (Class(), args) for role, (_, args) in reasoning_helpers._WORKERS.items()}
    monkeypatch.setattr(reasoning_helpers, "_WORKERS", known)
    placement = SimpleNamespace(get_strategy=lambda role: f"place of {role}")
    groups = launch_helpers(make_cfg(PLACED), "cluster", placement)
    assert groups == {
        "reference": (
            "cluster",
            ("reference",),
            {"name": "ReferenceGroup", "placement_strategy": "place of reference"},
        ),
        "critic": (
            "cluster",
            (),
            {"name": "CriticGroup", "placement_strategy": "place of critic"},
        ),
    }
    assert launch_helpers(make_cfg(), "cluster", placement) == {}


def test_a_group_that_the_placement_names_must_be_given():
    with pytest.raises(ValueError, match="a reference group was not given"):
        Helpers(make_cfg(PLACED), actor=None, critic=object())
    with pytest.raises(ValueError, match="a critic group was given, but .* does not name critic"):
        Helpers(make_cfg(), actor=None, critic=object())
