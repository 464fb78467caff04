"""Agents for real: episodes with a tool, at their own pace, and resumed as if undisturbed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf.agents.episode import Episode
from rlinf.agents.trajectory import Trajectory
from rlinf.data.reasoning import GroupRequest
from rlinf.runners.agent_runner import AgentRunner
from rlinf.scheduler import Cluster
from rlinf.workers.rollout.agent_loop_worker import AgentLoopWorker
from rlinf.workers.rollout.multi_agent_loop_worker import MultiAgentLoopWorker
from rlinf.workers.tools.tool_worker import ToolWorker
from tests.e2e_tests.reasoning.jobs import Actor, Reward, metrics_of
from tests.e2e_tests.runners import BeginsAgain, RunnerFactory

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "agents" / "config"
SHORT = [
    # On policy, runs can be repeated.
    "algorithm.max_policy_age=0",
    "runner.max_steps=4",
    "runner.save_interval=2",
    "runner.val_check_interval=-1",
    "actor.supervised.steps=40",
    "actor.supervised.batch_size=32",
    "data.rollout_batch_size=8",
    "data.digits=1",
    "data.terms=2",
    "algorithm.group_size=4",
]


class Tools(BeginsAgain, ToolWorker):
    """Is killed in one of its calls, once in a run."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._calls, self._mark = 0, Path(cfg.runner.logger.log_path, "killed")

    async def call_tool(self, *arguments: Any) -> Any:
        self._calls += 1
        if self._calls == 10:
            # The other worker may be at its tenth call at the same time, and has to live.
            with contextlib.suppress(FileExistsError):
                self._mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return await super().call_tool(*arguments)


class Agents(BeginsAgain, AgentLoopWorker):
    """Leaves the other cores to the other tests."""

    async def init_worker(self) -> None:
        await super().init_worker()
        torch.set_num_threads(1)


@pytest.fixture
def agents(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[RunnerFactory]:
    """Makes runners of agents."""
    cast = {"rollout": Agents, "reward": Reward, "actor": Actor}
    kept = {(role, "0") for role in cast}
    optional = {"tools": (Tools, ())}
    factory = RunnerFactory(cluster, CONFIGS, cast, AgentRunner, kept, optional)
    yield factory
    factory.end_of_test(sound=False)


class Awaited(Agents):
    """Play an episode of the first step for as long as there is none of the second."""

    async def init_worker(self) -> None:
        await super().init_worker()
        self._later = asyncio.Event()
        self._waits: Episode | None = None

    def _episode(self, request: GroupRequest, number: int) -> Episode:
        made = super()._episode(request, number)
        made.step = request.key
        self._waits = self._waits or made
        return made

    async def run(self, episode: Episode) -> Trajectory:
        if episode is self._waits:
            await self._later.wait()
        elif episode.step != self._waits.step:
            self._later.set()
        return await super().run(episode)


class Teams(BeginsAgain, MultiAgentLoopWorker):
    """Likewise."""

    async def init_worker(self) -> None:
        await super().init_worker()
        torch.set_num_threads(1)


@pytest.fixture
def teams(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[RunnerFactory]:
    """Makes runners of a lead and its workers."""
    cast = {"rollout": Teams, "reward": Reward, "actor": Actor}
    factory = RunnerFactory(cluster, CONFIGS, cast, AgentRunner, set())
    yield factory
    factory.end_of_test(sound=False)


@pytest.mark.timeout(240)
def test_a_lead_and_its_workers_learn_together(teams, tmp_path):
    few = [
        # On policy, all that is trained on can be computed again.
        "algorithm.max_policy_age=0",
        "runner.max_steps=2",
        "runner.val_check_interval=-1",
        "actor.supervised.steps=40",
        "actor.supervised.batch_size=32",
        "data.rollout_batch_size=4",
        "data.max_items=3",
        "algorithm.group_size=4",
        "algorithm.advantage_mode=agent",
        "algorithm.loss_agg_func=seq-mean-token-mean",
        "algorithm.loss_scales=[group_level,agent_level,turn_level]",
    ]
    runner = teams.runner(tmp_path, "wideseek_small", few)
    start = runner.actor.weights().wait()[0]
    runner.run()
    trained = runner.actor.weights().wait()[0]
    assert any(not torch.equal(start[name], trained[name]) for name in start)
    lines = [line for line in metrics_of(runner) if "rollout/score" in line]
    assert len(lines) == 2
    for line in lines:
        assert line["rollout/workers"] > 0 and line["rollout/tool_calls"] > 0
        assert line["rollout/sequences_per_episode"] > 1
        assert line["rollout/context_tokens"] <= 64
        assert line["rollout/total_tokens"] > line["rollout/context_tokens"]
        assert 0 <= line["rollout/prefix_reuse"] < 1
        # What each agent wrote is learnt behind what that agent had read.
        assert line["train/actor/rollout_gap_max"] < 1e-4
    episodes = [json.loads(line) for line in (runner.folder / "samples.jsonl").open()]
    assert {turn["agent"] for episode in episodes for turn in episode["turns"]} > {0, 1}


@pytest.mark.timeout(240)
def test_a_resumed_run_of_an_agent_is_as_if_nothing_had_happened(agents, tmp_path):
    whole = agents.runner(tmp_path / "a", "calculator_agent", SHORT)
    start = whole.actor.weights().wait()[0]
    whole.run()
    expected = whole.actor.weights().wait()[0]
    assert any(not torch.equal(start[name], expected[name]) for name in start)
    half = agents.runner(tmp_path / "b", "calculator_agent", SHORT)
    half.max_steps = 2
    half.run()
    resumed = agents.runner(tmp_path / "b", "calculator_agent", [*SHORT, "runner.resume_dir=auto"])
    assert resumed.global_step == 2
    resumed.run()
    found = resumed.actor.weights().wait()[0]
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    lines = [line for line in metrics_of(whole) if "rollout/score" in line]
    assert len(lines) == 4 and all(line["rollout/tool_calls"] > 0 for line in lines)
    # The engine's log-probabilities of what it wrote, turn by turn, are those of the trainer.
    assert max(line["train/actor/rollout_gap_max"] for line in lines) < 1e-4
    assert any(line["rollout/score"] > 0 for line in lines)
    episodes = [json.loads(line) for line in (whole.folder / "samples.jsonl").open()]
    roles = {turn["role"] for episode in episodes for turn in episode["turns"]}
    assert roles == {"assistant", "tool"}


@pytest.mark.timeout(240)
def test_an_episode_that_lasts_does_not_stop_those_of_the_next_step(agents, tmp_path):
    few = [*SHORT[1:], "runner.max_steps=3", "runner.save_interval=-1"]
    runner = agents.runner(tmp_path, "calculator_agent", few, {"rollout": (Awaited, ())})
    assert runner.cfg.algorithm.max_policy_age == 1, "what agents do unless they are told"
    facts = runner.run()
    assert facts["status"] == "finished"
    lines = [line for line in metrics_of(runner) if "rollout/score" in line]
    assert [line["rollout/samples"] for line in lines] == [32.0] * 3
    assert all(0.0 <= line["train/actor/policy_age"] <= 1.0 for line in lines)
    assert lines[-1]["train/actor/policy_age"] > 0.0


@pytest.mark.timeout(240)
def test_a_run_goes_on_when_a_worker_of_its_tools_is_killed(agents, tmp_path):
    overrides = [
        "runner.max_steps=3",
        "runner.val_check_interval=-1",
        "actor.supervised.steps=30",
        "actor.supervised.batch_size=32",
        "data.rollout_batch_size=8",
        "algorithm.group_size=4",
        "+cluster.component_placement.tools=1-2",
    ]
    runner = agents.runner(tmp_path, "code_agent", overrides)
    runner.run()
    assert (tmp_path / "killed").exists()
    lines = [line for line in metrics_of(runner) if "rollout/score" in line]
    assert len(lines) == 3
    # What was under way in that worker is lost, and nothing else.
    failed = [line["rollout/failed"] for line in lines]
    assert 0 < sum(failed) and failed[-1] == 0.0 and max(failed) < 1.0
    assert all(line["rollout/tools/python/calls"] > 0 for line in lines)


@pytest.mark.timeout(240)
def test_an_agent_of_a_chat_calls_by_json(agents, tmp_path):
    few = [*SHORT, "runner.max_steps=1", "runner.save_interval=-1", "actor.supervised.steps=60"]
    runner = agents.runner(tmp_path, "calculator_agent_chat", few)
    runner.run()
    (line,) = [line for line in metrics_of(runner) if "rollout/score" in line]
    assert line["rollout/tool_calls"] > 0
    # Template, tokens and trainer agree on what the model read and wrote.
    assert line["train/actor/rollout_gap_max"] < 1e-4
    episodes = [json.loads(line) for line in (runner.folder / "samples.jsonl").open()]
    turns = [turn for episode in episodes for turn in episode["turns"]]
    assert {turn["role"] for turn in turns} == {"assistant", "tool"}
    called = [turn for turn in turns if turn["role"] == "assistant" and turn["calls"]]
    assert any(
        call.get("name") == "calculator" and "expression" in call["arguments"]
        for turn in called
        for call in turn["calls"]
    )
    assert all(turn["text"].startswith("<tool_call>") for turn in called)
