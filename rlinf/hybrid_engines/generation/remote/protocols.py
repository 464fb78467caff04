"""What servers of vLLM and of SGLang are asked, and how their answers read."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rlinf.hybrid_engines.generation.external import Made
from rlinf.hybrid_engines.generation.remote.http import EngineServerError, Exchange, Server
from rlinf.hybrid_engines.generation.requests import FinishReason, SamplingParams
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
_WAITED = "waiting queue"
"""In what SGLang says of a request that was aborted before it ran, or while it did not run."""
_STREAM_INTERVAL = 16
"""Tokens per piece of an answer; an abort loses those that were not sent yet."""


@dataclass(frozen=True)
class Asked:
    """One response that a server is asked for.

    Attributes:
        name: Of the request; the server knows no other that begins with it.
        tokens: The prompt.
        params: How to draw.
        most: New tokens, at most.
        seed: A positive 31-bit number.
        salt: Prefixes are shared among requests with the same salt only.
        top: How many of the likeliest tokens come with their log-probabilities.
    """

    name: str
    tokens: list[int]
    params: SamplingParams
    most: int
    seed: int
    salt: str
    top: int = 0


@dataclass(frozen=True)
class ServedModel:
    """What a server says of itself.

    Attributes:
        name: What it calls the model.
        version: Of the server's software.
        max_length: Most tokens of a sequence; None if it does not say.
        weights: What it calls the version of its weights; empty if it has no name for it.
    """

    name: str
    version: str
    max_length: int | None
    weights: str = ""


class Protocol(ABC):
    """The requests that one kind of server understands.

    Args:
        server: Whom to ask.

    Attributes:
        title: What the kind is called.
        ends_by_request: Whether a response in the making is ended by a request, and answered with
            what there is of it; if not, its connection is cut.
    """

    title: ClassVar[str]
    ends_by_request: ClassVar[bool]

    def __init__(self, server: Server):
        self.server = server

    @abstractmethod
    def served(self) -> ServedModel:
        """Return what the server says of itself.

        Raises:
            EngineServerError: It is not a server of this kind.
        """

    @abstractmethod
    def ask(self, asked: Asked) -> Exchange:
        """Return the request for one response, ready to be sent."""

    @abstractmethod
    def read(self, key: str, exchange: Exchange) -> Iterator[Made]:
        """Send a request and give what comes of it; the last piece says why it ended.

        Raises:
            EngineServerError: The answer is broken off, or lacks tokens or log-probabilities.
        """

    @abstractmethod
    def likeliest(self, asked: Asked) -> float:
        """Return the log-probability of the likeliest token behind a prompt."""

    @abstractmethod
    def require_updates(self) -> None:
        """Check that the server takes new weights.

        Raises:
            EngineServerError: It does not; says how to start it.
        """

    @abstractmethod
    def load(self, folder: str, label: str) -> None:
        """Let the server read new weights.

        Args:
            folder: Of a model, on the server's host.
            label: What the weights are called from now on.

        Raises:
            WeightMismatch: It did not.
        """

    def end(self, name: str) -> None:
        """End a response in the making; for servers with `ends_by_request`."""
        raise NotImplementedError

    def _broken(self, exchange: Exchange, what: str) -> EngineServerError:
        return self.server.error(exchange.what, what)

    def _not_ours(self, error: EngineServerError) -> EngineServerError:
        return EngineServerError(
            f"{error}; {self.server.url} does not answer as {self.title} does: check "
            "rollout.server.url, and whether rollout.rollout_backend is vllm_server or "
            "sglang_server",
            error.status,
        )


class VllmProtocol(Protocol):
    """`/v1/completions` with token ids; weights by `reload_weights` of all workers."""

    title = "vLLM"
    ends_by_request = False

    def served(self) -> ServedModel:
        """See the base."""
        try:
            version = self.server.get("/version")["version"]
            model = self.server.get("/v1/models")["data"][0]
        except EngineServerError as error:
            raise self._not_ours(error) from error
        self._model = model["id"]
        return ServedModel(model["id"], version, model.get("max_model_len"))

    def ask(self, asked: Asked) -> Exchange:
        """See the base."""
        return Exchange(self.server, "POST", "/v1/completions", self._body(asked, stream=True))

    def _body(self, asked: Asked, stream: bool) -> dict[str, Any]:
        params = asked.params
        return {
            "model": self._model,
            "request_id": asked.name,
            "prompt": asked.tokens,
            "max_tokens": asked.most,
            "temperature": params.temperature,
            "top_k": max(params.top_k, 0),
            "top_p": params.top_p,
            # The model's folder may have other defaults, which the server would take.
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": asked.seed,
            "stop": list(params.stop),
            "stop_token_ids": list(params.stop_token_ids),
            "include_stop_str_in_output": True,
            "ignore_eos": params.ignore_eos,
            "skip_special_tokens": False,
            "logprobs": asked.top,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "cache_salt": asked.salt,
            "stream": stream,
            **({"stream_interval": _STREAM_INTERVAL} if stream else {}),
        }

    def read(self, key: str, exchange: Exchange) -> Iterator[Made]:
        """See the base."""
        finished = False
        for line in exchange.lines():
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                continue
            piece = json.loads(text)
            if "error" in piece:
                raise self._broken(exchange, f"broken off: {piece['error']}")
            if not piece["choices"]:
                continue
            made = self._made(key, exchange, piece["choices"][0])
            finished = finished or made.finished is not None
            yield made
        if not finished:
            raise self._broken(exchange, "the answer ends without a reason")

    def _made(self, key: str, exchange: Exchange, choice: dict[str, Any]) -> Made:
        tokens = choice.get("token_ids")
        if tokens is None:
            raise self._broken(
                exchange, "the answer has no token_ids; use a vLLM that has return_token_ids"
            )
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        if len(tokens) != len(logprobs):
            raise self._broken(
                exchange, f"{len(tokens)} tokens came with {len(logprobs)} log-probabilities"
            )
        reason = choice["finish_reason"]
        if reason is not None and reason not in _REASONS:
            raise self._broken(exchange, f"ended with {reason!r}")
        return Made(key, tokens, logprobs, _REASONS.get(reason))

    def likeliest(self, asked: Asked) -> float:
        """See the base."""
        body = self._body(asked, stream=False)
        (choice,) = self.server.post("/v1/completions", body)["choices"]
        return max(choice["logprobs"]["top_logprobs"][0].values())

    def require_updates(self) -> None:
        """See the base."""
        try:
            self.server.get("/collective_rpc")
        except EngineServerError as error:
            # It is there for POST alone.
            if error.status == 405:
                return
            raise EngineServerError(
                f"{error}; to take new weights, vLLM is started with the environment variable "
                "VLLM_SERVER_DEV_MODE=1",
                error.status,
            ) from error

    def load(self, folder: str, label: str) -> None:
        """See the base."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        try:
            self.server.post("/collective_rpc", body)
        except EngineServerError as error:
            raise _not_read(error, folder) from error


class SglangProtocol(Protocol):
    """`/generate` with token ids; weights by `/update_weights_from_disk`."""

    title = "SGLang"
    ends_by_request = True

    def __init__(self, server: Server):
        super().__init__(server)
        self._weights: str | None = None

    def served(self) -> ServedModel:
        """See the base."""
        try:
            info = self.server.get("/model_info")
            model = self.server.get("/v1/models")["data"][0]
            version = self.server.get("/server_info").get("version", "")
        except EngineServerError as error:
            raise self._not_ours(error) from error
        self._weights = info.get("weight_version")
        return ServedModel(
            info["model_path"], version, model.get("max_model_len"), str(self._weights)
        )

    def ask(self, asked: Asked) -> Exchange:
        """See the base."""
        return Exchange(self.server, "POST", "/generate", self._body(asked))

    def _body(self, asked: Asked) -> dict[str, Any]:
        return {
            "rid": asked.name,
            "input_ids": asked.tokens,
            "sampling_params": sglang_params(asked.params, asked.most),
            "return_logprob": True,
            "top_logprobs_num": asked.top,
            "extra_key": asked.salt,
            "stream": False,
        }

    def read(self, key: str, exchange: Exchange) -> Iterator[Made]:
        """See the base."""
        meta = exchange.answer()["meta_info"]
        if meta.get("weight_version") != self._weights:
            raise self._broken(
                exchange,
                f"the weights are of version {meta.get('weight_version')!r} and should be of "
                f"{self._weights!r}: somebody else has replaced them",
            )
        yield sglang_made(key, meta)

    def likeliest(self, asked: Asked) -> float:
        """See the base."""
        meta = self.server.post("/generate", self._body(asked))["meta_info"]
        return max(entry[0] for entry in meta["output_top_logprobs"][0])

    def require_updates(self) -> None:
        """See the base."""

    def load(self, folder: str, label: str) -> None:
        """See the base."""
        # Asked to do so as part of an update, SGLang ends itself if a request has just ended.
        # Prefixes of other weights are kept apart by their salt anyway.
        body = {"model_path": folder, "weight_version": label, "flush_cache": False}
        try:
            answer = self.server.post("/update_weights_from_disk", body)
        except EngineServerError as error:
            raise _not_read(error, folder) from error
        if not answer["success"]:
            raise _not_read(answer["message"], folder)
        self._weights = self.server.get("/model_info")["weight_version"]
        if self._weights != label:
            raise WeightMismatch(
                f"engine at {self.server.url} says that its weights are of version "
                f"{self._weights!r} after it was given {label!r}"
            )

    def end(self, name: str) -> None:
        """See the base."""
        self.server.post("/abort_request", {"rid": name})


def sglang_params(params: SamplingParams, most: int) -> dict[str, Any]:
    """Return sampling params under the names of SGLang."""
    return {
        "temperature": params.temperature,
        "top_k": params.top_k if params.top_k > 0 else -1,
        "top_p": params.top_p,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": most,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        "no_stop_trim": True,
        "ignore_eos": params.ignore_eos,
        "skip_special_tokens": False,
    }


def sglang_made(key: str, meta: dict[str, Any]) -> Made:
    """Return what SGLang made, from the `meta_info` of its answer.

    A response that is aborted while it is made has one more token, of which SGLang does not look
    whether it ends the response: it is left out, and drawn again by whoever carries on. One that
    is aborted while it waits has what SGLang has reported of it, which is nothing unless it was
    interrupted for lack of memory.

    Raises:
        EngineServerError: It ended for a reason that is not known, or tokens are missing.
    """
    reason = _REASONS.get(meta["finish_reason"]["type"])
    if reason is None:
        raise EngineServerError(f"SGLang ended a request with {meta['finish_reason']}")
    entries = meta.get("output_token_logprobs") or []
    count = meta.get("completion_tokens", len(entries))
    if count > len(entries):
        raise EngineServerError(
            f"SGLang has made {count} tokens of a request and gave {len(entries)} of them "
            f"({meta['finish_reason']})"
        )
    if reason == "abort" and _WAITED not in (meta["finish_reason"].get("message") or ""):
        entries = entries[:-1]
    tokens, logprobs = [entry[1] for entry in entries], [entry[0] for entry in entries]
    return Made(key, tokens, logprobs, reason, meta.get("cached_tokens"))


def _not_read(error: object, folder: str) -> WeightMismatch:
    return WeightMismatch(
        f"{error}; the server has to read new weights from {folder}: rollout.server.weights_folder "
        "must be a folder that the worker and the server see under the same path"
    )
