"""The endpoint over HTTP: who may ask, how much, and what comes of clients that leave."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from rlinf.agents.sequences import sequences_of
from rlinf.agents.serving.anthropic_messages import MessagesExchange
from rlinf.agents.serving.chat import ChatExchange
from rlinf.agents.serving.completions import CompletionExchange
from rlinf.agents.serving.endpoint import Endpoint
from rlinf.agents.serving.errors import ApiError
from rlinf.agents.serving.limits import Limits, RateLimit
from rlinf.agents.serving.protocol import ReadRequest, answer_of, events_of, sse
from rlinf.agents.serving.responses import Responses
from rlinf.agents.serving.sessions import HEADER

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OPEN = ("/health",)
"""Paths that need no key."""
_ANTHROPIC = "/v1/messages"
_STOP_SECONDS = 5.0
_MOST_REWARD = 1e6
"""Largest reward: sums and squares of such are numbers in float32."""
_ACCEPTING_TURNS = 3
"""Of the loop, from the accepted socket to the protocol that is told of it."""
_LINGER_SECONDS = 1.0
"""For a client to take note of its answer before it has sent all of its request."""


class Server:
    """Serves an endpoint.

    Args:
        endpoint: That answers.
        key: What clients have to give as bearer token.
        limits: How much they may do.

    Attributes:
        failures: Requests that failed without a fault of their client.
    """

    def __init__(self, endpoint: Endpoint, key: str, limits: Limits | None = None) -> None:
        self._endpoint, self._key = endpoint, key.encode()
        self.limits = limits or Limits()
        self._rate = RateLimit(self.limits.requests_per_second, self.limits.burst)
        self._in_flight = 0
        self.failures = 0
        self._runner: web.AppRunner | None = None
        self._sockets: asyncio.Server | None = None
        self._stops = False

    # -- life -----------------------------------------------------------------------------------

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; return the address for clients, which ends with `/v1`.

        Args:
            host: Address to listen at; loopback unless others are to be let in.
            port: Of it; 0 is a free one.
        """
        app = web.Application(
            middlewares=[self._errors, self._admission], client_max_size=self.limits.body_bytes
        )
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{name:.+}", self._model),
                web.post("/v1/chat/completions", self._exchange(ChatExchange)),
                web.post("/v1/completions", self._exchange(CompletionExchange)),
                web.post("/v1/responses", self._exchange(Responses())),
                web.post(_ANTHROPIC, self._exchange(MessagesExchange)),
                web.get("/v1/sessions/{name}", self._session),
                web.post("/v1/sessions/{name}/reward", self._reward),
            ]
        )
        # A client that leaves cancels its handler, and that ends its responses.
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            keepalive_timeout=self.limits.read_seconds,
            access_log=None,
            shutdown_timeout=_STOP_SECONDS,
            lingering_time=_LINGER_SECONDS,
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._sockets = await loop.create_server(self._protocol, host, port)
        address, found, *_ = self._sockets.sockets[0].getsockname()
        return f"http://{f'[{address}]' if ':' in address else address}:{found}/v1"

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        # One that was accepted while others are closed would wait for engines that have ended.
        if self._stops or len(server.connections) >= self.limits.connections:
            return _Refusal()
        return server()

    async def stop(self) -> None:
        """Close all connections."""
        self._stops = True
        if self._sockets is not None:
            # Python forgets a connection that it is accepting when its server closes, whose client
            # waits for ever. So nothing more is accepted, and what is gets its protocol before.
            for listening in self._sockets.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _ in range(_ACCEPTING_TURNS):
                await asyncio.sleep(0)
            self._sockets.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # -- admission ------------------------------------------------------------------------------

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer with errors as clients know them."""
        try:
            return await handler(request)
        except ApiError as error:
            self.failures += error.status >= 500
            return _refused(error, request)
        except web.HTTPRequestEntityTooLarge:
            return _refused(self._too_large(), request)
        except web.HTTPException as error:
            kind = "invalid_request_error"
            message = f"{request.method} {request.path}: {error.reason}"
            return _refused(ApiError(message, status=error.status, kind=kind), request)
        except ConnectionError:
            raise
        except Exception:
            logger.exception("a request of the endpoint failed")
            self.failures += 1
            message = "the endpoint failed; its log says why"
            return _refused(ApiError(message, status=500, kind="server_error"), request)

    @web.middleware
    async def _admission(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let only those in who may, and not too many."""
        if request.path in _OPEN:
            return await handler(request)
        wait = self._rate.wait_of(request.remote or "")
        if wait:
            raise _too_many("too many requests", wait)
        self._check_key(request)
        if (request.content_length or 0) > self.limits.body_bytes:
            raise self._too_large()
        if self._in_flight >= self.limits.in_flight:
            raise _too_many(f"{self._in_flight} requests are under way, which is the most", 1.0)
        self._in_flight += 1
        try:
            return await handler(request)
        finally:
            self._in_flight -= 1

    def _check_key(self, request: web.Request) -> None:
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            given = request.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.strip().encode(errors="surrogateescape"), self._key):
            raise ApiError(
                "the API key is missing or wrong; give the key of endpoint.json as bearer token",
                status=401,
                code="invalid_api_key",
            )

    def _too_large(self) -> ApiError:
        return ApiError(
            f"the body is larger than {self.limits.body_bytes} bytes, which is the most",
            status=413,
            code="request_too_large",
        )

    async def _body(self, request: web.Request) -> Any:
        """Return the JSON of a request."""
        try:
            raw = await asyncio.wait_for(request.read(), self.limits.read_seconds)
        except asyncio.TimeoutError as error:
            raise ApiError(
                f"the body did not arrive within {self.limits.read_seconds:g} s", status=408
            ) from error
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ApiError(f"the body is no JSON: {error}") from error

    # -- answers --------------------------------------------------------------------------------

    def _exchange(self, read: ReadRequest) -> Handler:
        """Return the handler of a protocol."""

        async def handle(request: web.Request) -> web.StreamResponse:
            body = await self._body(request)
            if not self._endpoint.backend.alive:
                message = "no engine is left that could answer"
                raise ApiError(message, status=503, kind="server_error", code="engine_gone")
            session = self._endpoint.sessions.use(request.headers.get(HEADER))
            try:
                exchange = read(self._endpoint, body, session)
            except ApiError:
                self._endpoint.sessions.drop_unused(session)
                raise
            if not exchange.streams:
                return web.json_response(await answer_of(self._endpoint, exchange))
            return await self._stream(request, exchange)

        return handle

    async def _stream(self, request: web.Request, exchange: Any) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        async with aclosing(events_of(self._endpoint, exchange)) as events:
            await response.prepare(request)
            try:
                async for event in events:
                    await self._write(response, event)
            except ApiError as error:
                # The status has been sent; the error is an event.
                self.failures += error.status >= 500
                await self._write(response, _error_event(error, request))
            except asyncio.TimeoutError:
                logger.warning("a client does not read its stream: its connection is closed")
                _abort(request)
            except ConnectionError:
                raise
            except Exception:
                # Another answer cannot begin in the middle of this one.
                logger.exception("a stream of the endpoint failed")
                self.failures += 1
                _abort(request)
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        await asyncio.wait_for(response.write(data), self.limits.write_seconds)

    async def _health(self, request: web.Request) -> web.Response:
        alive = self._endpoint.backend.alive
        return web.json_response(
            {"status": "ok" if alive else "dead"}, status=200 if alive else 503
        )

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._about_model()]})

    async def _model(self, request: web.Request) -> web.Response:
        self._endpoint.check_model(request.match_info["name"])
        return web.json_response(self._about_model())

    def _about_model(self) -> dict[str, Any]:
        backend = self._endpoint.backend
        return {
            "id": self._endpoint.model,
            "object": "model",
            "created": 0,
            "owned_by": "rlinf",
            "max_model_len": backend.max_length,
            "version": backend.version,
        }

    # -- sessions -------------------------------------------------------------------------------

    async def _session(self, request: web.Request) -> web.Response:
        session = self._endpoint.sessions.get(request.match_info["name"])
        return web.json_response(
            {
                "id": session.name,
                "calls": len(session.calls),
                "running": session.running,
                "sequences": len(sequences_of(session.calls)),
                "tokens_written": sum(len(call.response_ids) for call in session.calls),
            }
        )

    async def _reward(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        reward = body.get("reward") if isinstance(body, dict) else None
        plain = isinstance(reward, int | float) and not isinstance(reward, bool)
        if not plain or not -_MOST_REWARD <= reward <= _MOST_REWARD:
            raise ApiError(
                f'the body must be {{"reward": NUMBER}}, from {-_MOST_REWARD:g} to '
                f"{_MOST_REWARD:g}",
                param="reward",
            )
        ended = self._endpoint.sessions.reward(request.match_info["name"], float(reward))
        calls = len(ended.trajectory.calls)
        return web.json_response({"id": ended.name, "reward": ended.reward, "calls": calls})


def _abort(request: web.Request) -> None:
    """Cut the connection, so that its client sees that the answer is not whole."""
    if request.transport is not None:
        request.transport.abort()


class _Refusal(asyncio.Protocol):
    """A connection that is one too many, or comes too late."""

    def connection_made(self, transport: Any) -> None:
        transport.abort()


def _too_many(message: str, wait: float) -> ApiError:
    return ApiError(
        f"{message}; try again in {wait:.2f} s",
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=wait,
    )


def _error_event(error: ApiError, request: web.Request) -> bytes:
    if request.path == _ANTHROPIC:
        return sse(error.anthropic_body(), "error")
    return sse(error.body())


def _refused(error: ApiError, request: web.Request) -> web.Response:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = error.anthropic_body() if request.path == _ANTHROPIC else error.body()
    return web.json_response(body, status=error.status, headers=headers)
