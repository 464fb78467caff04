"""Who failed first, whatever the order in which it became known."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlinf.scheduler import WorkerDied
from rlinf.scheduler.channel.errors import ChannelError
from rlinf.scheduler.errors import RemoteTraceback
from rlinf.scheduler.failure.reporter import FailureReporter
from rlinf.scheduler.registry.state import Death, Raised, RegistryState


def autopsy(name: str, reason: str) -> WorkerDied:
    return WorkerDied(name, signal="SIGKILL", activity="idle")


def raised_in(name: str, error: Exception, state: RegistryState, after: float) -> None:
    """A worker has raised this, and the driver got it."""
    error.__cause__ = RemoteTraceback(f"traceback of {name}")
    kind, seconds = type(error).__name__, time.time() - 10 + after
    state.raised.append(Raised(name, "play", kind, str(error), error.__cause__.text, seconds))


@pytest.mark.parametrize("noticed", [-0.1, 0.1], ids=["at once", "late"])
@pytest.mark.parametrize("error", [WorkerDied("keeper:0"), ChannelError("its keeper ended")])
def test_a_death_comes_before_what_others_say_of_it(tmp_path: Path, error, noticed):
    state = RegistryState()
    raised_in("env:0", error, state, after=0.0)
    state.deaths.append(Death("keeper:0", None, time.time() - 10 + noticed, 0, "it is gone"))
    card = FailureReporter(state, tmp_path, autopsy).report(error)
    assert (card.who, card.what) == ("keeper:0", "the process was killed by SIGKILL")


def test_an_exception_comes_before_a_death_that_it_leads_to(tmp_path: Path):
    state = RegistryState()
    error = ValueError("a bad action")
    raised_in("env:0", error, state, after=0.0)
    state.deaths.append(Death("rollout:0", None, time.time() - 9, 0, "it is gone"))
    card = FailureReporter(state, tmp_path, autopsy).report(error)
    assert (card.who, card.what) == ("env:0", "ValueError: a bad action")
    assert card.followers == ["rollout:0"]


def test_what_was_dealt_with_is_not_blamed(tmp_path: Path):
    state = RegistryState()
    reporter = FailureReporter(state, tmp_path, autopsy)
    state.deaths.append(Death("rollout:0", None, time.time() - 20, 0, "it is gone"))
    reporter.told(WorkerDied("rollout:0"))
    error = ChannelError("an item was lost")
    raised_in("env:0", error, state, after=0.0)
    assert reporter.report(error).who == "env:0"
