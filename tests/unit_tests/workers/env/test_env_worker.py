"""An env worker has all of its simulators, or none, and begins rollouts as it is told to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlinf.scheduler import CallCancelled
from rlinf.workers.env import env_worker
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.env.episode_player import Played
from rlinf.workers.env.stage_experts import StageExperts


class Simulators:
    """A vector env; the making of some of them is interrupted."""

    starts: tuple[str | None, str | None] = (None, None)
    made: int
    interrupted_at: tuple[int, ...]
    open: set[int]

    def __init__(self, cfg: Any, **further: Any) -> None:
        cls = type(self)
        cls.made += 1
        if cls.made in cls.interrupted_at:
            raise CallCancelled("init_worker() was cancelled")
        self.number = cls.made
        cls.open.add(self.number)

    def start_list(self, evaluation: bool) -> str | None:
        return self.starts[evaluation]

    def close(self) -> None:
        self.open.remove(self.number)


class Untied(EnvWorker):
    """Lives in this process."""

    worker_info = None

    def __new__(cls, *args: Any) -> Untied:
        return object.__new__(cls)

    def __init__(self) -> None:
        section = SimpleNamespace(
            env_type="fake",
            total_num_envs=4,
            enable_offload=False,
            video_cfg=SimpleNamespace(save_video=False),
        )
        self.cfg = SimpleNamespace(
            env=SimpleNamespace(train=section, eval=section),
            runner=SimpleNamespace(only_eval=False, task_type="embodied"),
            algorithm={},
        )
        self._rank, self._world_size, self.stages = 0, 1, 2
        self._runtime = SimpleNamespace(info=SimpleNamespace(incarnation=1))
        self._train, self._eval, self._fresh = [], [], [True, True]
        self._experts = StageExperts([])


@pytest.fixture
def simulators(monkeypatch):
    monkeypatch.setattr(env_worker, "env_settings", lambda cfg, part: getattr(cfg.env, part))
    monkeypatch.setattr(env_worker, "_without_video", lambda settings: settings)
    monkeypatch.setattr(env_worker, "check_evaluation", lambda env: None)
    monkeypatch.setattr(env_worker, "describe_envs", lambda train, evaluation: "spec")
    fields = {"made": 0, "interrupted_at": (), "open": set()}
    cls = type("Simulators", (Simulators,), fields)
    monkeypatch.setattr(env_worker, "get_env_cls", lambda name, cfg: cls)
    return cls


@pytest.mark.parametrize("at", [2, 3])
def test_who_is_interrupted_makes_all_the_next_time(simulators, at):
    """At 2 an env for training is missing; at 3 the one for evaluation is."""
    simulators.interrupted_at = (at,)
    worker = Untied()
    with pytest.raises(CallCancelled):
        worker.init_worker()
    assert simulators.open == set(), "what was made is closed"
    assert worker.init_worker() == "spec"
    assert [env.number for env in worker._train] == [at + 1, at + 2]
    assert [env.number for env in worker._eval] == [at + 3]
    worker.init_worker()
    assert simulators.made == at + 3, "they are made once"
    worker.on_shutdown()
    assert simulators.open == set()


@pytest.mark.parametrize(
    "starts, told",
    [(("stored", "stored"), 1), (("trials 0", "trials 1"), 0), ((None, None), 0)],
)
def test_evaluations_in_the_states_of_training_are_told_of(simulators, monkeypatch, starts, told):
    said: list[str] = []
    monkeypatch.setattr(Untied, "log_warning", lambda self, text: said.append(text), raising=False)
    simulators.starts = starts
    Untied().init_worker()
    assert len(said) == told and all("the same states as training" in text for text in said)


def test_a_process_without_simulators_has_nothing_to_save(tmp_path):
    with pytest.raises(RuntimeError, match="no simulators"):
        Untied().save_checkpoint(str(tmp_path))
    assert not list(tmp_path.iterdir())


class Player(Untied):
    """Plays rollouts with a policy that draws its actions; keeps the first observations."""

    def __init__(self, auto_reset: bool) -> None:
        super().__init__()
        section = {
            "env_type": "gymnasium",
            "id": "CartPole-v1",
            "group_size": 4,
            "auto_reset": auto_reset,
            "enable_offload": False,
            "total_num_envs": 16,
            "max_steps_per_rollout_epoch": 30,
            "rollout_epoch": 2,
        }
        model = OmegaConf.create({"num_action_chunks": 1})
        self.cfg = SimpleNamespace(
            env=SimpleNamespace(train=SimpleNamespace(**section)),
            rollout=SimpleNamespace(group_name="rollout"),
            actor=SimpleNamespace(group_name="actor", model=model),
        )
        env_cls = env_worker.get_env_cls("gymnasium", section)
        self._train = [env_cls(section, 8, stage, 2) for stage in range(2)]
        self._generator = torch.Generator().manual_seed(0)
        self.begun: list[torch.Tensor] = []

    @contextlib.contextmanager
    def worker_timer(self, tag: str | None = None) -> Iterator[None]:
        yield

    def send_to(self, *args: Any, **kwargs: Any) -> None:
        pass

    def _send_obs(self, stage: int, obs: Any, infos: Any, early: Any = None) -> None:
        if infos is None:
            self.begun.append(obs["states"])

    def _recv_actions(self, *args: int) -> torch.Tensor:
        return torch.randint(2, (8, 1, 1), generator=self._generator).float()


@pytest.mark.parametrize("auto_reset", [False, True])
def test_groups_begin_each_rollout_together_unless_envs_reset_themselves(auto_reset):
    worker = Player(auto_reset)
    for _ in range(3):
        EnvWorker.interact.__wrapped__(worker)
    assert len(worker.begun) == 3 * 2 * 2, "rollouts x epochs x stages"
    for states in worker.begun[0 if not auto_reset else 2 :]:
        groups = states.unflatten(0, (2, 4))
        assert bool((groups == groups[:, :1]).all()) is not auto_reset
        assert not torch.equal(groups[0], groups[1])
    if not auto_reset:
        firsts = torch.cat(worker.begun)[::4]
        assert len(firsts.unique(dim=0)) == len(firsts), "each rollout has starts of its own"


@pytest.mark.parametrize("chunk", [1, 4, 8])
def test_videos_are_as_fast_as_the_env_whatever_the_chunks(tmp_path, monkeypatch, chunk):
    """A second of the video is `fps` env steps, of which every second one is drawn."""
    asked: list[tuple[float, int]] = []

    def record(numbers, folder, speed, captions, stride):
        asked.append((speed, stride))
        return Played()

    worker = Untied()
    worker.cfg.actor = SimpleNamespace(model=SimpleNamespace(num_action_chunks=chunk))
    worker.cfg.env.eval.video_cfg = SimpleNamespace(fps=30, info_on_video=True)
    worker._video = (True, "")
    monkeypatch.setattr(worker, "_play", lambda play: play(SimpleNamespace(record=record)))
    worker.record([0], str(tmp_path))
    assert asked == [(30, 2)]
