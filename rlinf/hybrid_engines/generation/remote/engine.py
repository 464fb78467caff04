"""Generation by a server of vLLM or SGLang, which runs elsewhere and is reached by its URL."""

from __future__ import annotations

import logging
import queue
import time
import uuid
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from rlinf.hybrid_engines.generation.external import ExternalEngine, Made
from rlinf.hybrid_engines.generation.interface import KeptWeights, NamedTensors
from rlinf.hybrid_engines.generation.remote.folder import WeightFolder
from rlinf.hybrid_engines.generation.remote.http import (
    Cancelled,
    EngineServerError,
    Exchange,
    Server,
)
from rlinf.hybrid_engines.generation.remote.protocols import (
    Asked,
    Protocol,
    SglangProtocol,
    VllmProtocol,
)
from rlinf.hybrid_engines.generation.requests import GenerationRequest, SamplingParams, require
from rlinf.hybrid_engines.generation.responses import Response
from rlinf.hybrid_engines.generation.settings import PRECISIONS, EngineSettings, vocabulary
from rlinf.hybrid_engines.generation.weight_proof import KnownWeights, prove

logger = logging.getLogger(__name__)

_PROBE = [1, 2, 3]
_PROBE_TOKENS = 8
_SLICE_SECONDS = 0.05
"""How long a step waits for news before it lets others have their turn."""
_HEALTH_SECONDS = 0.5
_ASK_AGAIN_SECONDS = 0.2
"""After which an end is asked for again, of a response that the server may not have known yet."""


class RemoteEngine(ExternalEngine):
    """Generates with an engine behind HTTP.

    The server is asked for one response per request, as many at a time as `settings.max_running`.
    New weights are written to a folder that the server reads; the first update proves on changed
    weights that each kind takes effect, and every update that the server answers differently.

    Args:
        settings: `model_path` is needed; `options` are the keys of `rollout.server`, with one URL.

    Attributes:
        protocol: What kind of server it is.
    """

    protocol: ClassVar[type[Protocol]]

    def __init__(self, settings: EngineSettings):
        if settings.model_path is None or not Path(settings.model_path).is_dir():
            raise ValueError(
                f"model_path is {settings.model_path!r}: an engine elsewhere needs the folder of "
                "its model here, too, for its sizes; set rollout.model.model_path or "
                "actor.model.model_path"
            )
        options = settings.options
        require(bool(options.get("url")), "rollout.server.url is missing: where is the engine?")
        self._server = Server(
            options["url"],
            connect_timeout=options.get("start_timeout", 300.0),
            answer_timeout=options.get("answer_timeout", 600.0),
        )
        self._protocol = self.protocol(self._server)
        self._name = f"rlinf-{uuid.uuid4().hex[:8]}"
        self._updates = 0
        self._proven = False
        self._last: tuple[tuple[int, ...], tuple[float, ...]] | None = None
        self._expected: KnownWeights | None = None
        self._folder: WeightFolder | None = None
        self._model_path = settings.model_path
        if options.get("weights_folder"):
            self._folder = WeightFolder(
                options["weights_folder"],
                self._name,
                settings.model_path,
                getattr(torch, PRECISIONS[settings.precision]),
            )
        super().__init__(
            max_length=settings.max_length, vocab_size=vocabulary(settings), seed=settings.seed
        )
        self._meet()
        self._pool = ThreadPoolExecutor(settings.max_running, "rlinf-remote-engine")
        self._running: dict[str, tuple[Exchange, Future[None]]] = {}
        self._news: queue.SimpleQueue[Made | Exception] = queue.SimpleQueue()

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> RemoteEngine:
        """See the base."""
        return cls(settings)

    def _meet(self) -> None:
        """Wait for the server, and find out what it serves and how it counts."""
        self._wait_until_healthy()
        served = self._protocol.served()
        if served.max_length is not None and served.max_length < self.max_length:
            raise ValueError(
                f"runner.seq_length is {self.max_length}, but the server at {self._server.url} "
                f"has sequences of {served.max_length} tokens at most; lower it, or start the "
                "server with longer ones"
            )
        if self._folder is not None:
            self._protocol.require_updates()
        warm, plain = self._likeliest(temperature=0.5), self._likeliest()
        self._with_temperature = abs(warm - plain) > 1e-4
        self._after_cut = self._likeliest(top_k=1) > -1e-6
        # From here on nobody waits long for a connection.
        self._server.connect_timeout = min(30.0, self._server.connect_timeout)
        logger.info(
            "%s %s at %s serves %s",
            self._protocol.title,
            served.version,
            self._server.url,
            served.name,
        )

    def _wait_until_healthy(self) -> None:
        end = time.monotonic() + self._server.connect_timeout
        while True:
            try:
                self._server.get("/health")
                return
            except EngineServerError as error:
                # It says so while it loads its model.
                if error.status != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > end:
                    raise
            time.sleep(_HEALTH_SECONDS)

    @property
    def takes_stop_texts(self) -> bool:
        """See the base."""
        return True

    def _check(self, request: GenerationRequest, seen: set[Hashable]) -> None:
        super()._check(request, seen)
        params = request.params
        where = f"request {request.request_id!r}: the server at {self._server.url}"
        require(
            self._with_temperature or params.temperature in (0, 1),
            f"{where} gives log-probabilities without the temperature, which is "
            f"{params.temperature:g}; start vLLM with --logprobs-mode processed_logprobs (SGLang "
            "without SGLANG_RETURN_ORIGINAL_LOGPROB), or set the temperature to 1",
        )
        require(
            not (self._after_cut and params.cuts),
            f"{where} gives log-probabilities of what top_k {params.top_k} and top_p "
            f"{params.top_p:g} leave, and training needs those of all tokens; do without both, or "
            "with a temperature of 1 start vLLM with --logprobs-mode raw_logprobs",
        )

    # -- requests ----------------------------------------------------------------------------------

    def _begin(self, key: str, tokens: list[int], response: Response, most: int, seed: int) -> None:
        params = response.request.params
        exchange = self._protocol.ask(
            Asked(self._request(key), tokens, params, most, seed, self._salt)
        )
        self._running[key] = exchange, self._pool.submit(self._read, key, exchange)

    def _read(self, key: str, exchange: Exchange) -> None:
        """Pass on what comes of a request; runs in a thread."""
        try:
            for made in self._protocol.read(key, exchange):
                self._news.put(made)
        except Cancelled:
            return
        except Exception as error:
            # Raised where results are waited for.
            self._news.put(error)

    def _advance(self) -> Iterable[Made]:
        try:
            news = [self._news.get(timeout=_SLICE_SECONDS)]
        except queue.Empty:
            return []
        made = self._taken([*news, *self._waiting()])
        for each in made:
            if each.finished == "abort":
                raise self._server.error(
                    "generation", "the server ended a response that nobody had asked it to end"
                )
        return made

    def _waiting(self) -> list[Made | Exception]:
        return [self._news.get() for _ in range(self._news.qsize())]

    def _taken(self, news: list[Made | Exception]) -> list[Made]:
        made: list[Made] = []
        for each in news:
            if isinstance(each, Exception):
                raise each
            if each.finished is not None:
                self._running.pop(each.key, None)
            made.append(each)
        return made

    def _halt(self, keys: list[str]) -> Iterable[Made]:
        ending = {key: self._running[key] for key in keys if key in self._running}
        for exchange, future in ending.values():
            if future.cancel() or not self._protocol.ends_by_request:
                exchange.cancel()
        left = {key: future for key, (_, future) in ending.items() if not future.done()}
        while left:
            for key in left if self._protocol.ends_by_request else ():
                self._protocol.end(self._request(key))
            wait(left.values(), timeout=_ASK_AGAIN_SECONDS)
            left = {key: future for key, future in left.items() if not future.done()}
        made = self._taken(self._waiting())
        for key in keys:
            self._running.pop(key, None)
        for each in made:
            # Ours to end: the response may be carried on.
            if each.finished == "abort" and each.key in ending:
                each.finished = None
        return made

    def _request(self, key: str) -> str:
        # SGLang ends all requests whose names begin alike.
        return f"{self._name}-{key}."

    @property
    def _salt(self) -> str:
        """Keeps prefixes apart that belong to other weights."""
        return f"{self._name}-{self._updates}"

    # -- weights -----------------------------------------------------------------------------------

    def _load(self, named: NamedTensors) -> None:
        if self._folder is None:
            raise ValueError(
                f"the server at {self._server.url} can only have new weights through a folder "
                "that it sees: set rollout.server.weights_folder"
            )
        if self._expected is None:
            self._expected = KnownWeights(self._model_path)
        tensors = dict(named.items() if isinstance(named, Mapping) else named)
        self._expected.check(tensors)
        self._replace(tensors)
        before, self._last = self._last, self._trace()
        if not self._proven or self._last == before:
            title, tied = self._protocol.title, self._expected.tied
            prove(title, self._replace, lambda: self._trace()[1][0], tensors, tied, _PROBE)
            self._proven = True

    def _replace(self, tensors: dict[str, Tensor]) -> None:
        assert self._folder is not None
        self._updates += 1
        self._protocol.load(self._folder.write(tensors, str(self._updates)), self._salt)

    def _trace(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the likeliest tokens behind a prompt, and their log-probabilities."""
        params = SamplingParams(temperature=0.0, ignore_eos=True)
        asked = Asked(
            self._request(f"probe{self._updates}"), _PROBE, params, _PROBE_TOKENS, 0, self._salt
        )
        tokens: list[int] = []
        logprobs: list[float] = []
        for made in self._protocol.read("", self._protocol.ask(asked)):
            tokens += made.tokens
            logprobs += made.logprobs
        return tuple(tokens), tuple(logprobs)

    def _likeliest(self, **params: float) -> float:
        chosen = SamplingParams(ignore_eos=True, **params)  # type: ignore[arg-type]
        name = self._request(f"start{uuid.uuid4().hex[:8]}")
        return self._protocol.likeliest(Asked(name, _PROBE, chosen, 1, 0, self._salt, top=1))

    # -- memory ------------------------------------------------------------------------------------

    def _sleep(self, weights: KeptWeights) -> None:
        """Do nothing: the memory is the server's, and nobody here waits for it."""

    def _wake_weights(self) -> None:
        """Do nothing; see `_sleep`."""

    def _wake_cache(self) -> None:
        """Do nothing; see `_sleep`."""

    def close(self) -> None:
        """End what the server still makes for this engine; the server goes on."""
        for exchange, future in self._running.values():
            future.cancel()
            exchange.cancel()
        self._running.clear()
        self._pool.shutdown()
        if self._folder is not None:
            self._folder.remove()


class VllmServerEngine(RemoteEngine):
    """Generates with `vllm serve`."""

    protocol = VllmProtocol


class SglangServerEngine(RemoteEngine):
    """Generates with `python -m sglang.launch_server`."""

    protocol = SglangProtocol
