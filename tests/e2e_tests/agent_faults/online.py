"""A run with live traffic that is struck: engines with a plan for their end, and its clients."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import torch

from rlinf.runners.coding_online_rl_runner import CodingOnlineRLRunner
from rlinf.workers.rollout.online_router_worker import OnlineRouterWorker
from rlinf.workers.rollout.server_rollout_worker import ServerRolloutWorker
from tests.e2e_tests.agent_faults.faults import Fault
from tests.e2e_tests.runners import BeginsAgain

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "coding_online_rl"
FEW = [
    "runner.max_steps=3",
    "runner.val_check_interval=-1",
    "cluster.component_placement.rollout=0-1",
    "actor.supervised.steps=0",
    "actor.model.hf_config.hidden_size=32",
    "actor.model.hf_config.intermediate_size=64",
    "actor.model.hf_config.num_hidden_layers=1",
    "algorithm.sampling_params.max_new_tokens=8",
    "data.rollout_batch_size=8",
    "data.depth=1",
    "data.val_size=12",
    "rollout_server.simulated_users=0",
]


class Engines(BeginsAgain, ServerRolloutWorker):
    """Are struck where the fault says."""

    def __init__(self, cfg: Any, fault: Fault) -> None:
        super().__init__(cfg)
        self._fault, self._updates = fault, 0

    @classmethod
    def restart_policy(cls, cfg: Any, fault: Any) -> str | dict[str, int]:
        return super().restart_policy(cfg)

    async def init_worker(self) -> None:
        await super().init_worker()
        torch.set_num_threads(1)

    def _note(self, name: Any, index: int, token: int, logprob: float) -> None:
        super()._note(name, index, token, logprob)
        # In the middle of a response.
        self._reach("serving")

    def _submit(self, request: Any) -> None:
        super()._submit(request)
        if getattr(request, "validation", False):
            self._reach("evaluation")

    def _load(self) -> int:
        self._updates += 1
        if self._updates == 2:
            self._reach("update")
        return super()._load()

    def _reach(self, phase: str) -> None:
        self._fault.strike(f"engine in {phase}", self._rank)
        self._fault.await_strike(f"endpoint in {phase}", self._rank)

    async def written(self) -> tuple[int, float]:
        """How often this was started anew, and what it wrote since."""
        return self.restarts, self.engine.stats()["new_tokens"]


class Endpoint(BeginsAgain, OnlineRouterWorker):
    """Is struck where the fault says."""

    def __init__(self, cfg: Any, fault: Fault) -> None:
        super().__init__(cfg)
        self._fault = fault

    async def serve(self, *arguments: Any) -> dict[str, float]:
        fate = asyncio.ensure_future(self._fault.strike_when_told())
        try:
            return await super().serve(*arguments)
        finally:
            fate.cancel()

    async def collect(self, *arguments: Any) -> None:
        self._fault.strike("endpoint in collecting")
        await super().collect(*arguments)


class Clients:
    """Users in threads of this process, who ask and reward until the run has ended.

    Args:
        runner: of the run.
        count: how many.

    Attributes:
        answers: tokens of each answer.
        errors: what went wrong while the run went on.
    """

    def __init__(self, runner: CodingOnlineRLRunner, count: int = 4) -> None:
        self._runner, self._over = runner, threading.Event()
        self.answers: list[list[int]] = []
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._live, args=(n,)) for n in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client waits for ever"

    def _live(self, number: int) -> None:
        place = self._runner.folder / "endpoint.json"
        while not place.exists():
            if self._over.wait(0.02):
                return
        facts = json.loads(place.read_text())
        turn = 0
        while not self._over.is_set():
            turn += 1
            name = f"{number}-{turn}"
            try:
                body = {"model": facts["model"], "prompt": "sum of a and b"}
                body |= {"return_token_ids": True}
                answer = self._post(facts, "/completions", body, {"X-RLinf-Session": name})
                self.answers.append(answer["choices"][0]["token_ids"])
                reward = {"reward": float(turn % 2)}
                self._post(facts, f"/sessions/{name}/reward", reward, {})
            except (OSError, urllib.error.HTTPError) as error:
                # Those who are refused since the run has ended have no complaint.
                if place.exists():
                    self.errors.append(repr(error))
                return

    @staticmethod
    def _post(facts: dict[str, str], path: str, body: Any, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(
            facts["url"] + path,
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {facts['key']}", "Content-Type": "application/json"}
            | headers,
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
