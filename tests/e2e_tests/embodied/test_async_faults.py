"""Whoever is struck in an asynchronous run, however, whenever: it goes on, or ends by name."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Cluster, WaitTimeout, WorkerDied
from rlinf.scheduler.deadlines import set_paused
from rlinf.scheduler.failure.card import FailureCard
from rlinf.workers.env.async_acting_env_worker import AsyncActingEnvWorker
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.reward.embodied_reward_worker import EmbodiedRewardWorker
from rlinf.workers.rollout.async_multi_step_rollout_worker import AsyncMultiStepRolloutWorker
from tests.e2e_tests.embodied.test_env_crashes import SHORT
from tests.e2e_tests.embodied.workers import Actor
from tests.e2e_tests.faults.parts import strike
from tests.long_tests import ALL_TESTS

RUN = [
    *SHORT,
    "algorithm.max_policy_age=1",
    "runner.max_epochs=4",
    "runner.save_interval=2",
    "runner.val_check_interval=2",
]
STEPS = 4 * 16 * 20
PATIENCE = 3.0
"""Seconds that a call may take when a process has been stopped."""

PHASES = ("start", "weights", "rollout", "advantages", "training", "evaluation", "save")
KINDS = ("kill", "stop", "exception")
METHODS = {
    "reward": {"start": ("init_worker", 0), "rollout": ("compute_rewards", 1)},
    "acting env": {
        "start": ("init_worker", 0),
        "weights": ("sync_model_from_actor", 2),
        "rollout": ("interact", 2),
        "evaluation": ("evaluate", 0),
        "save": ("save_checkpoint", 0),
    },
    "env": {
        "start": ("init_worker", 0),
        "rollout": ("interact", 2),
        "evaluation": ("evaluate", 0),
        "save": ("save_checkpoint", 0),
    },
    "rollout": {
        "start": ("init_worker", 0),
        "weights": ("sync_model_from_actor", 1),
        "rollout": ("generate", 1),
        "evaluation": ("evaluate", 0),
        "save": ("save_checkpoint", 0),
    },
    "actor": {
        "start": ("init_worker", 0),
        "weights": ("sync_model_to_rollout", 1),
        "rollout": ("recv_rollout_batch", 1),
        "advantages": ("compute_advantages_and_returns", 1),
        "training": ("run_training", 1),
        "save": ("save_checkpoint", 0),
    },
}
"""What each role does in a phase, and how many calls of it go well before it is struck."""


class Fault(NamedTuple):
    """What happens to whom, and when."""

    role: str
    phase: str
    kind: str

    @property
    def survived(self) -> bool:
        """Env processes that die come back; what cannot be saved costs that checkpoint."""
        comes_back = self.kind == "kill" and self.role in ("env", "acting env")
        return comes_back or (self.kind, self.phase) == ("exception", "save")


MATRIX = [
    Fault(role, phase, kind)
    for role, methods in METHODS.items()
    for phase, kind in itertools.product(methods, KINDS)
]
IN_EVERY_RUN = [
    Fault("reward", "rollout", "kill"),
    Fault("acting env", "weights", "kill"),
    # Found in the evaluation, as the rollout is ahead.
    Fault("env", "rollout", "exception"),
    Fault("acting env", "evaluation", "exception"),
    Fault("rollout", "weights", "stop"),
    Fault("actor", "advantages", "exception"),
    Fault("actor", "training", "kill"),
    Fault("rollout", "start", "kill"),
    Fault("acting env", "save", "kill"),
]


def test_every_run_strikes_every_role_in_every_phase_and_way():
    roles, phases, kinds = (set(column) for column in zip(*IN_EVERY_RUN, strict=True))
    assert (roles, phases, kinds) == (set(METHODS), set(PHASES), set(KINDS))
    assert set(IN_EVERY_RUN) <= set(MATRIX)


class Struck:
    """Is struck when a method is called for the n-th time; those who come back are not.

    Args:
        cfg: configuration.
        fault: what happens.
        mark: a file that is made just before.
    """

    def __init__(self, cfg: Any, fault: Fault, mark: Path) -> None:
        super().__init__(cfg)
        method, self._left = METHODS[fault.role][fault.phase]
        whole = getattr(self, method)

        def struck(*args: Any, **kwargs: Any) -> Any:
            if self._left == 0 and not self.restarts:
                self._left = -1
                mark.touch()
                strike(fault.kind)
            self._left -= 1
            return whole(*args, **kwargs)

        setattr(self, method, struck)

    @classmethod
    def restart_policy(cls, cfg: Any, fault: Fault, mark: Path) -> Any:
        return super().restart_policy(cfg)


class Reward(EmbodiedRewardWorker):
    """Finds everything as likely as not, and needs no run that has trained a model."""

    def init_worker(self, env_spec: Any) -> None:
        self._model = lambda observations: torch.zeros(len(observations["states"]))


class StruckActingEnv(Struck, AsyncActingEnvWorker):
    pass


class StruckEnv(Struck, AsyncEnvWorker):
    pass


class StruckRollout(Struck, AsyncMultiStepRolloutWorker):
    pass


class StruckActor(Struck, Actor):
    pass


class StruckReward(Struck, Reward):
    pass


ACTING = {"acting": (AsyncActingEnvWorker, ())}
APART = {"env": (AsyncEnvWorker, ()), "rollout": (AsyncMultiStepRolloutWorker, ())}
CASTS = {
    "reward": (ACTING, "reward", StruckReward, "RewardGroup:0"),
    "acting env": (ACTING, "acting", StruckActingEnv, "EnvGroup:0"),
    "env": (APART, "env", StruckEnv, "EnvGroup:0"),
    "rollout": (APART, "rollout", StruckRollout, "RolloutGroup:0"),
    "actor": (APART, "actor", StruckActor, "ActorGroup:0"),
}
"""By who is struck: the others, its key among them, its class and its name."""
SAID = {
    "kill": (WorkerDied, "SIGKILL"),
    "stop": (WaitTimeout, "stopped by a signal"),
    "exception": (RuntimeError, "struck by a test"),
}


def make_runner(runners: Any, folder: Path, fault: Fault, mark: Path) -> EmbodiedRunner:
    others, key, cls, _ = CASTS[fault.role]
    places = "actor:0,rollout:1,env:1" if others is ACTING else "actor:0,rollout:2,env:1"
    more = []
    if fault.role == "reward":
        places += ",reward:0"
        more = ["reward.use_reward_model=true", "reward.model.model_path=none"]
    place = f"cluster.component_placement={{{places}}}"
    workers = {**others, key: (cls, (fault, mark))}
    return runners.runner(folder, "gymnasium_ppo_mlp", [*RUN, place, *more], workers)


@contextlib.contextmanager
def deadlines_after(mark: Path, timeouts: dict[str, float | None]) -> Iterator[None]:
    """Give calls a deadline whose clock stands until a file is there."""
    before, over = timeouts["call"], threading.Event()
    timeouts["call"] = PATIENCE
    set_paused(True)

    def watch() -> None:
        while not mark.exists() and not over.wait(0.02):
            pass
        set_paused(False)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        timeouts["call"] = before


def card_of(cluster: Cluster, error: BaseException) -> FailureCard:
    """What a program would print that this error has ended."""
    reporter = cluster._supervisor.reporter
    reporter.card = None
    card = reporter.report(error)
    reporter.card = None
    return card


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", MATRIX if ALL_TESTS else IN_EVERY_RUN, ids="-".join)
def test_a_worker_is_struck(runners, cluster, tmp_path, fault):
    mark = tmp_path / "struck"
    if fault.survived:
        runner = make_runner(runners, tmp_path, fault, mark)
        summary = runner.run()
        assert mark.exists() and summary["status"] == "finished"
        assert summary["env_restarts"] == (fault.kind == "kill")
        # Who dies elsewhere may have been writing one.
        assert summary["checkpoint_failures"] == 1 or fault.phase != "save"
        assert summary["env_steps"] == STEPS and summary["policy_age_max"] <= 1
        assert summary["evaluation"]["eval/episodes"] == 4
        assert [saved.step for saved in runner.checkpoints.store.all()][-1] == 4
        return
    kind, said = SAID[fault.kind]
    stops = fault.kind == "stop"
    patience = deadlines_after(mark, cluster.run.timeouts) if stops else contextlib.nullcontext()
    with patience, pytest.raises(kind) as caught:
        make_runner(runners, tmp_path, fault, mark).run()
    assert mark.exists()
    card = card_of(cluster, caught.value)
    assert card.who == CASTS[fault.role][3], card
    assert said in card.what, card
    (file,) = tmp_path.rglob("summary.json")
    status = json.loads(file.read_text())["status"]
    assert status == ("running" if fault.phase == "start" else "failed")
    # Whoever waited for the one that was struck may still do so.
    runners.end_of_test(sound=False)
