"""What the workers of a run learn of the driver's environment."""

from __future__ import annotations

import os

from rlinf.scheduler.cluster.nodes import _changed_env


def test_what_was_set_for_the_driver_alone_reaches_its_workers(monkeypatch):
    of_node = dict(os.environ)
    monkeypatch.setenv("COLOUR", "red")
    assert _changed_env(of_node) == {"COLOUR": "red"}


def test_what_ray_sets_in_a_driver_does_not(monkeypatch):
    """A variable of Python's own would cost each worker a second start of the interpreter."""
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    of_node = dict(os.environ)
    monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb._driver_set_trace")
    assert _changed_env(of_node) == {}
