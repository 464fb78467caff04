"""What the errors of the scheduler know."""

from __future__ import annotations

import pytest

from rlinf.scheduler.errors import WorkerDied


@pytest.mark.parametrize(
    "facts, explained",
    [
        ({"pid": 7, "signal": "SIGKILL"}, True),
        ({"pid": 7, "exit_code": 0}, True),
        ({"pid": 7}, False),
        ({"signal": "SIGKILL"}, False),
        ({}, False),
    ],
)
def test_a_death_is_explained_by_its_facts(facts, explained):
    assert WorkerDied("env:0", **facts).explained is explained
