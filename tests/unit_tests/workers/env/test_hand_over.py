"""A rollout that others wait for ends after the chunk under way, and its episodes go on."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlinf.data.embodied_messages import ENV_TRAJECTORY, POLICY_TRAJECTORY
from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.env import env_worker
from rlinf.workers.env.async_acting_env_worker import AsyncActingEnvWorker
from rlinf.workers.env.describe_envs import describe_envs
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.env.stage_experts import StageExperts
from rlinf.workers.rollout.async_multi_step_rollout_worker import AsyncMultiStepRolloutWorker
from rlinf.workers.rollout.multi_step_rollout_worker import MultiStepRolloutWorker
from rlinf.workers.rollout.rollout_policy import RolloutPolicy

CHUNKS, CUT, ENVS, STAGES = 10, 4, 6, 2
SECTION = {
    "env_type": "gymnasium",
    "id": "CartPole-v1",
    "auto_reset": True,
    "enable_offload": False,
    "total_num_envs": ENVS * STAGES,
    "max_steps_per_rollout_epoch": CHUNKS,
    "rollout_epoch": 1,
    "seed": 3,
}
CFG = SimpleNamespace(
    env=SimpleNamespace(train=SimpleNamespace(**SECTION), group_name="env"),
    rollout=SimpleNamespace(group_name="rollout", enable_offload=False),
    actor=SimpleNamespace(group_name="actor", model=OmegaConf.create({"num_action_chunks": 1})),
)


class Wire:
    """Carries messages between workers of one process, in their order."""

    def __init__(self) -> None:
        self._queues: dict[Any, queue.Queue] = defaultdict(queue.Queue)
        self._lock = threading.Lock()

    def of(self, *key: Any) -> queue.Queue:
        with self._lock:
            return self._queues[key]


class Untied:
    """Lives in this process."""

    wire: Wire

    def __new__(cls, *args: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, wire: Wire) -> None:
        self.wire, self.cfg, self.stages = wire, CFG, STAGES
        self._rank, self._world_size = 0, 1

    @contextlib.contextmanager
    def worker_timer(self, tag: str | None = None) -> Any:
        yield

    def send_to(
        self, group: str, _: Any, data: Any, *, route_key: Any, tag: str, **__: Any
    ) -> None:
        self.wire.of(group, tag, route_key).put(data)

    def recv_from(self, group: str, _: Any, **how: Any) -> Any:
        return self.wire.of(self.own, how["tag"], how["route_key"]).get(timeout=60)


class CutAt:
    """Is asked to hand its second rollout over when it has played some chunks."""

    _asked = 0

    def _is_cut(self) -> bool:
        self._asked += self._rollout_number == 2
        if self._asked == CUT:
            # One that has ended long ago is nobody's concern.
            asyncio.run(self.cut_rollout(1))
            assert not super()._is_cut()
            asyncio.run(self.cut_rollout(2))
        return super()._is_cut()


def make_envs(worker: Any) -> EnvSpec:
    env_cls = env_worker.get_env_cls("gymnasium", SECTION)
    worker._train = [env_cls(SECTION, ENVS, stage, STAGES) for stage in range(STAGES)]
    worker._fresh, worker._experts = [True] * STAGES, StageExperts([])
    return describe_envs(worker._train, [])


def make_policy(spec: EnvSpec) -> RolloutPolicy:
    torch.manual_seed(0)
    policy = get_model({"model_type": "mlp_policy", "add_value_head": True}, spec).eval()
    ids = [list(range(stage * ENVS, (stage + 1) * ENVS)) for stage in range(STAGES)]
    return RolloutPolicy(policy, torch.device("cpu"), ids, seed=0)


class Env(Untied, EnvWorker):
    own = "env"


class Rollout(CutAt, Untied, AsyncMultiStepRolloutWorker):
    own = "rollout"


class ActingEnv(CutAt, Untied, AsyncActingEnvWorker):
    own = "env"


def play_apart(wire: Wire) -> RolloutPolicy:
    env, rollout = Env(wire), Rollout(wire)
    rollout._env_spec = make_envs(env)
    rollout._acting = make_policy(rollout._env_spec)
    env._add_time = lambda *_: None

    def act() -> None:
        for number in (1, 2, 3):
            MultiStepRolloutWorker.generate.__wrapped__(rollout, number)

    thread = threading.Thread(target=act)
    thread.start()
    counts = [EnvWorker.interact.__wrapped__(env, None, n)["env_steps"] for n in (1, 2, 3)]
    thread.join()
    assert counts == [n * ENVS * STAGES for n in (CHUNKS, CUT, CHUNKS)]
    return rollout._acting


def play_alike(wire: Wire) -> RolloutPolicy:
    env = ActingEnv(wire)
    env._acting = make_policy(make_envs(env))
    for number in (1, 2, 3):
        EnvWorker.interact.__wrapped__(env, None, number)
    return env._acting


@pytest.mark.parametrize("play", [play_alike, play_apart])
def test_what_is_handed_over_ends_with_the_value_of_what_follows(play):
    wire = Wire()
    acting = play(wire)
    assert acting.steps == 3 * CHUNKS, "noise that is left out is not drawn later"
    for stage in range(STAGES):
        env, policy = (
            [wire.of("actor", tag, (0, stage)).get_nowait() for _ in range(3)]
            for tag in (ENV_TRAJECTORY, POLICY_TRAJECTORY)
        )
        lengths = [CHUNKS, CUT, CHUNKS]
        assert [len(t.rewards) for t in env] == [len(t.prev_logprobs) for t in policy] == lengths
        assert [len(t.prev_values) for t in policy] == [n + 1 for n in lengths]
        for before, after in pairwise(policy):
            # What follows a rollout is what the next one begins with, cut or not.
            states = after.forward_inputs["states"][0]
            value = acting.policy.predict_values({"states": states})
            torch.testing.assert_close(before.prev_values[-1], value)


def tensors(trajectory: Any) -> dict[str, torch.Tensor]:
    own = {k: v for k, v in vars(trajectory).items() if isinstance(v, torch.Tensor)}
    return own | getattr(trajectory, "forward_inputs", {})


def test_whoever_acts_hands_over_the_same():
    alike, apart = Wire(), Wire()
    play_alike(alike), play_apart(apart)
    for tag in (ENV_TRAJECTORY, POLICY_TRAJECTORY):
        for place in [(0, stage) for stage in range(STAGES)] * 3:
            own, other = (tensors(w.of("actor", tag, place).get_nowait()) for w in (alike, apart))
            assert own.keys() == other.keys() and len(own) >= 6
            for name, tensor in own.items():
                assert torch.equal(tensor, other[name]), name
                assert not tensor.is_inference(), "a learner may ask gradients of it"


def test_who_acts_in_its_process_hands_over_what_the_envs_wrote():
    """What a rollout observed is not copied before it is sent, and nobody writes into it later."""
    wire = Wire()
    env = ActingEnv(wire)
    env._acting = make_policy(make_envs(env))
    for number in (1, 2, 3):
        EnvWorker.interact.__wrapped__(env, None, number)
        present = env._train[0].last_obs["states"]
        sent = wire.of("actor", POLICY_TRAJECTORY, (0, 0)).get_nowait().forward_inputs["states"]
        memory = sent.untyped_storage()
        assert memory.data_ptr() == present.untyped_storage().data_ptr()
        before = sent.clone()
        EnvWorker.interact.__wrapped__(env, None, 4)
        wire.of("actor", POLICY_TRAJECTORY, (0, 0)).get_nowait()
        assert torch.equal(sent, before)
