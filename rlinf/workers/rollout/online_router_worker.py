"""The worker that clients talk to: an endpoint, a router over the engines, and their sessions."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf.agents.serving.backend import Drawing
from rlinf.agents.serving.endpoint import Endpoint
from rlinf.agents.serving.endpoint_file import new_key
from rlinf.agents.serving.limits import Limits
from rlinf.agents.serving.router import Router
from rlinf.agents.serving.server import Server
from rlinf.agents.serving.sessions import RewardedSession, Sessions
from rlinf.config.plugins import load_extension
from rlinf.data.tokenizer import stops_of, tokenizer_of_run
from rlinf.scheduler import (
    UNTIL_CLOSED,
    Channel,
    ChannelClosed,
    ItemLost,
    Worker,
    WorkerGroup,
    WorkerInfo,
)
from rlinf.workers.rollout.engine_link import EngineLink
from rlinf.workers.rollout.engine_watch import EngineWatch, HangDetector
from rlinf.workers.rollout.live_batches import LiveBatches, unlearnt_calls
from rlinf.workers.rollout.server_rollout_worker import ServerRolloutWorker

_LONGEST = 512
"""Tokens of an answer when neither the request nor the run names a limit."""


class OnlineRouterWorker(Worker):
    """Serves clients with the engines of the rollout, and hands on what they rewarded.

    Args:
        cfg: checked configuration, with a `rollout_server` section.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg
        self._batches = LiveBatches(cfg.algorithm.max_policy_age)
        self._came = asyncio.Event()
        self._stopped = asyncio.Event()
        self._links: list[EngineLink] = []
        self._watches: list[EngineWatch] = []
        self._engine_failures = 0
        self._told_sampling = False
        self._server: Server | None = None
        self._endpoint: Endpoint | None = None

    async def init_worker(self) -> None:
        """Load what is needed to speak with the model."""
        load_extension()
        self._tokenizer = tokenizer_of_run(self.cfg)

    async def start(self, requests: Channel, engines: list[int]) -> dict[str, str]:
        """Listen for clients.

        Args:
            requests: of the rollout workers, by rank.
            engines: most tokens of a sequence of each of them.

        Returns:
            `url`, `key` and `model` of the endpoint.
        """
        section, cfg = self.cfg.rollout_server, self.cfg
        group = WorkerGroup.from_group_name(ServerRolloutWorker, cfg.rollout.group_name)
        hangs = HangDetector(group, section.engine_timeout)
        for rank, length in enumerate(engines):
            link = EngineLink(rank, length, _sender(requests, rank))
            self._links.append(link)
            self._watches.append(self._watch(hangs, rank, link))
        # An engine is started anew when the run next waits; a run that waits in vain ends before.
        self._router = router = Router(self._links, patience=section.patience)
        model = section.model_name or cfg.runner.logger.experiment_name
        sampling = cfg.algorithm.sampling_params
        ends, texts = stops_of(self._tokenizer, sampling.stop)
        self._endpoint = Endpoint(
            router,
            self._tokenizer,
            model,
            Drawing(
                max_new_tokens=sampling.max_new_tokens or _LONGEST,
                temperature=float(sampling.temperature) if sampling.do_sample else 0.0,
                top_p=sampling.top_p,
                top_k=max(sampling.top_k, 0),
                stop_token_ids=ends,
            ),
            has_template=cfg.data.apply_chat_template,
            system_prompt=cfg.data.system_prompt,
            parser=section.parser,
            stops=texts,
            sessions=Sessions(
                self._rewarded,
                section.max_sessions,
                section.session_timeout,
                section.max_session_tokens,
            ),
            learns=True,
        )
        limits = Limits(
            requests_per_second=section.requests_per_second,
            body_bytes=int(section.max_body_mb * 2**20),
        )
        key = new_key()
        self._server = Server(self._endpoint, key, limits)
        url = await self._server.start(section.host, section.port)
        self.log_info(f"clients are served at {url}")
        return {"url": url, "key": key, "model": model}

    async def serve(self, live: Channel, responses: Channel) -> dict[str, float]:
        """Bring news of the engines to clients and rewarded sessions to the run, until `stop`.

        Args:
            live: news of the rollout workers.
            responses: gets the groups that steps have asked for.

        Returns:
            What `statistics` does.
        """
        tasks = [
            asyncio.ensure_future(self._bring_news(live)),
            asyncio.ensure_future(self._hand_on(responses)),
            *(asyncio.ensure_future(watch.follow()) for watch in self._watches),
        ]
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            return await self.statistics()
        finally:
            # Those who are being answered get their last tokens before the news ends.
            if self._server is not None:
                await self._server.stop()
            for task in (*tasks, stopped):
                task.cancel()

    async def stop(self) -> None:
        """Close the endpoint."""
        self._stopped.set()

    async def accept_engines(self, infos: list[WorkerInfo]) -> None:
        """Let clients use rollout workers that were started anew and have their weights.

        Args:
            infos: what the registry knows of them.
        """
        for info in infos:
            self._watches[info.rank].accept(info)

    async def collect(self, step: int, count: int, version: int) -> None:
        """Order the sessions that a step trains on, with weights of some version."""
        self._batches.order(step, count, version)
        self._came.set()

    async def statistics(self) -> dict[str, float]:
        """Return what clients have done since the start."""
        batches, endpoint = self._batches, self._endpoint
        found = {
            "sessions": batches.rewarded,
            "accepted": batches.accepted,
            "too_old": batches.too_old,
            "crowded_out": batches.crowded_out,
            "unlearnt": batches.unlearnt,
            "other_sampling": batches.other_sampling,
            "waiting": batches.waiting,
            "engines": sum(link.alive for link in self._links),
            "engine_failures": self._engine_failures,
        }
        if endpoint is not None and self._server is not None:
            found |= {name: endpoint.counts[name] for name in ("requests", "choices", "aborted")}
            found["failed_requests"] = self._server.failures
            found["expired"] = endpoint.sessions.expired
        return {name: float(value) for name, value in found.items()}

    # -- what goes on ---------------------------------------------------------------------------

    def _rewarded(self, session: RewardedSession) -> None:
        self._tell_sampling(session)
        self._batches.add(session)
        self._came.set()

    def _tell_sampling(self, session: RewardedSession) -> None:
        """Say once that clients draw otherwise than the run does."""
        left_out = unlearnt_calls(session)
        if not left_out or self._told_sampling:
            return
        self._told_sampling = True
        self.log_warning(
            f"session {session.name} has answers with {left_out[0].unlearnt}: they are not learnt "
            "from, since the trainer computes probabilities as algorithm.sampling_params draws. "
            "Leave these fields out of requests, or set algorithm.sampling_params to what clients "
            "send. Said once; rollout/live_other_sampling counts such answers, and "
            "rollout/live_unlearnt the sessions that have no others"
        )

    async def _bring_news(self, live: Channel) -> None:
        while True:
            try:
                news = await live.get(async_op=True, timeout=UNTIL_CLOSED)
            except ChannelClosed:
                return
            except ItemLost:
                # Of a rollout worker that died: whoever waits for it is told by its watch.
                continue
            self._links[news.rank].deliver(news)

    async def _hand_on(self, responses: Channel) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            for group in self._batches.take():
                await responses.put(group, async_op=True)

    def _watch(self, hangs: HangDetector, rank: int, link: EngineLink) -> EngineWatch:
        def failed(reason: str) -> None:
            self._engine_failures += 1
            left = sum(each.alive for each in self._links if each is not link)
            link.fail(reason)
            self.log_error(
                f"{reason}; {left} of {len(self._links)} engines are left, and go on with what it "
                "was doing"
                if left
                else f"{reason}; no engine is left, and requests wait until it is back"
            )

        def returned() -> None:
            link.revive()
            self._router.tell_return(link.name)
            self.log_info(f"{link.name} serves clients again")

        return EngineWatch(hangs, rank, failed, returned)


def _sender(requests: Channel, rank: int) -> Any:
    async def send(messages: list[Any]) -> None:
        await requests.put(messages, key=rank, async_op=True)

    return send
