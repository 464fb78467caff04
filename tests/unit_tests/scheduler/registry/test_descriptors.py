"""The driver's limit of open files grows with the run, as far as it may."""

from __future__ import annotations

import resource

import pytest

from rlinf.scheduler.registry.descriptors import allow_descriptors
from rlinf.utils.processes import open_files


@pytest.fixture
def limits(monkeypatch):
    """Limits (soft, hard) that a test may set."""
    limits = [(1024, 8192)]
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _, new: limits.append(new))
    return limits


def test_a_small_run_leaves_the_limit_alone(limits):
    assert allow_descriptors(500) and len(limits) == 1


def test_a_large_run_raises_it(limits):
    assert allow_descriptors(4096) and limits[-1] == (8192, 8192)


def test_a_run_that_does_not_fit_is_told_of(limits, capsys):
    assert not allow_descriptors(9000)
    assert limits[-1] == (8192, 8192)
    said = capsys.readouterr().err
    assert "may have 8192 files open" in said and "9000 processes" in said and "ulimit" in said


def test_no_limit_is_enough(limits):
    limits[0] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert allow_descriptors(10**6) and len(limits) == 1
    limits.append((1024, resource.RLIM_INFINITY))
    assert allow_descriptors(4096) and limits[-1][0] > 4096
