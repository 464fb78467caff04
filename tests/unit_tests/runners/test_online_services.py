"""A run that waits for clients ends with a reason when there will be none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.runners.online_services import OnlineServices
from rlinf.scheduler import WaitTimeout


class Silence:
    """A channel that nobody writes to."""

    def get(self, key: Any, timeout: float) -> Any:
        raise WaitTimeout("nothing came")


def services(patience: float, traffic: Any = lambda: None) -> OnlineServices:
    cfg = SimpleNamespace(rollout_server=SimpleNamespace(patience=patience))
    made = OnlineServices(cfg, None, None, None, traffic)
    made._verdicts = Silence()
    return made


def test_patience_ends() -> None:
    with pytest.raises(TimeoutError, match="rollout_server.patience"):
        services(patience=1e-6).next_live_verdict(3)


def test_users_that_have_gone_are_not_waited_for() -> None:
    def gone() -> None:
        raise RuntimeError("the simulated users ended")

    with pytest.raises(RuntimeError, match="users ended"):
        services(1000.0, gone).next_live_verdict(0)


def test_a_worker_that_fails_is_noticed() -> None:
    waiting = services(1000.0)

    class Failed:
        def done(self) -> bool:
            return True

        def wait(self) -> None:
            raise ValueError("the engine failed")

    waiting.generating = [Failed()]
    with pytest.raises(ValueError, match="engine failed"):
        waiting.next_live_verdict(0)
