"""The endpoint of a run that learns: what it tells of clients that draw tokens in their own way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

pytest.importorskip("transformers")

from rlinf.agents.serving.backend import Piece  # noqa: E402
from rlinf.config.schema.algorithm import SamplingConfig  # noqa: E402
from rlinf.config.schema.rollout_server import RolloutServerConfig  # noqa: E402
from rlinf.data.live import LiveNews  # noqa: E402
from rlinf.data.tokenizer import load_tokenizer  # noqa: E402
from rlinf.workers.rollout import online_router_worker  # noqa: E402
from rlinf.workers.rollout.online_router_worker import OnlineRouterWorker  # noqa: E402
from tests.unit_tests.workers.short_channels import pause, short_channel  # noqa: E402

DEADLINE = 60


class Router(OnlineRouterWorker):
    """Lives in this process."""

    def __new__(cls, *args: Any) -> Router:
        return object.__new__(cls)

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.warnings: list[str] = []
        self._tokenizer = load_tokenizer("characters")

    def log_info(self, message: Any) -> None: ...

    def log_warning(self, message: Any) -> None:
        self.warnings.append(message)


class Answers:
    """Requests of a worker that is answered at once: two tokens."""

    def __init__(self, worker: Router) -> None:
        self._worker = worker

    async def put(self, messages: list[Any], key: int, async_op: bool) -> None:
        for one in messages:
            news = LiveNews(key, 3, {one.number: [Piece([5, 6], [-0.1] * 2, [3] * 2, "length")]})
            asyncio.get_running_loop().call_soon(self._worker._links[key].deliver, news)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Router:
    rollout = SimpleNamespace(worker_info_list=[None])
    group = SimpleNamespace(from_group_name=lambda *args: rollout)
    monkeypatch.setattr(online_router_worker, "WorkerGroup", group)
    cfg = SimpleNamespace(
        rollout_server=RolloutServerConfig(model_name="tiny"),
        rollout=SimpleNamespace(group_name="rollout"),
        algorithm=SimpleNamespace(
            max_policy_age=2, sampling_params=SamplingConfig(temperature=0.5)
        ),
        data=SimpleNamespace(apply_chat_template=False, system_prompt=None),
    )
    return Router(cfg)


async def test_clients_that_draw_otherwise_are_told_of_once(worker: Router) -> None:
    facts = await worker.start(Answers(worker), [64])
    headers = {"Authorization": f"Bearer {facts['key']}"}
    async with aiohttp.ClientSession(headers=headers) as client:

        async def session(name: str, *asked: dict[str, float]) -> None:
            for number, each in enumerate(asked):
                body = {"model": "tiny", "prompt": f"{number}", "max_tokens": 2, **each}
                own = {"X-RLinf-Session": name}
                url = facts["url"]
                async with client.post(f"{url}/completions", json=body, headers=own) as answer:
                    assert answer.status == 200
            async with client.post(f"{url}/sessions/{name}/reward", json={"reward": 1}) as answer:
                assert answer.status == 200

        await session("default", {}, {"temperature": 0.5, "top_p": 1.0})
        assert not worker.warnings
        await session("greedy", {"temperature": 0}, {"temperature": 0})
        await session("mixed", {"top_p": 0.5}, {})
    await worker._server.stop()
    (warning,) = worker.warnings
    assert "temperature 0 instead of 0.5" in warning and "algorithm.sampling_params" in warning
    await worker.collect(step=0, count=8, version=3)
    default, mixed = worker._batches.take()
    assert [sample.loss_mask for sample in default.samples] == [[True] * 2] * 2
    assert [sample.loss_mask for sample in mixed.samples] == [[False] * 2, [True] * 2]
    found = await worker.statistics()
    assert (found["other_sampling"], found["unlearnt"], found["sessions"]) == (3, 1, 3)


async def test_engines_that_are_idle_for_longer_than_the_deadline_of_channels_are_kept(
    worker: Router,
) -> None:
    """Sequential clients never reach a second engine."""
    heard: asyncio.Queue[LiveNews] = asyncio.Queue()
    worker._links = [SimpleNamespace(deliver=heard.put_nowait, alive=True)]
    live, responses = short_channel("live"), short_channel("responses")
    serving = asyncio.ensure_future(worker.serve(live, responses))
    for version in range(2):
        await pause()
        assert not serving.done()
        live.put(LiveNews(0, version, {}))
        assert (await asyncio.wait_for(heard.get(), DEADLINE)).version == version
    live.close()
    await asyncio.wait_for(serving, DEADLINE)
