"""A server that speaks the protocols of vLLM and SGLang, on top of our own engine."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rlinf.data.tokenizer import character_tokenizer
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationEngine,
    GenerationRequest,
    SamplingParams,
    build_engine,
)

PIECE = 4
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST"


@dataclass
class Behaviour:
    """What a server does otherwise than it should, or than others do.

    Attributes:
        max_length: What it says of itself.
        development: Whether vLLM has the calls for new weights.
        with_temperature: Whether log-probabilities are those of the tempered distribution.
        after_cut: Whether they are those of what top-k leaves.
        stuck: Part of the names of weights that it does not replace.
        breaks_after: Pieces after which it closes the connection; None never does.
        holds: Whether responses wait until `release`.
        key: What clients must show; empty is nothing.
    """

    max_length: int = 64
    development: bool = True
    with_temperature: bool = True
    after_cut: bool = False
    stuck: str | None = None
    breaks_after: int | None = None
    holds: bool = False
    key: str = ""


@dataclass
class SmallServer:
    """A running server.

    Args:
        folder: Of the model, with its tokenizer.
        behaviour: See there.

    Attributes:
        asked: Bodies of requests for responses.
        at_once: Most requests for responses at a time.
        weights: Version of the weights, as SGLang calls it.
    """

    folder: str
    behaviour: Behaviour = field(default_factory=Behaviour)
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    weights: str = "default"

    def __post_init__(self) -> None:
        settings = EngineSettings(max_length=64, model_path=self.folder, max_running=16)
        self.engine: GenerationEngine = build_engine("hf", settings)
        self.tokenizer = character_tokenizer(ALPHABET)
        self.ended: set[str] = set()
        self.released = threading.Event()
        self.came = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._running = 0
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._http = _Http(("127.0.0.1", self.port), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> SmallServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # -- what handlers use -------------------------------------------------------------------------

    def pieces(self, name: str, prompt: list[int], params: SamplingParams, most: int):
        """Gives tokens, their log-probabilities and the reason, None but for the last piece."""
        with self._lock:
            self._running += 1
            self.at_once = max(self.at_once, self._running)
        self.came.release()
        if self.behaviour.holds:
            self.released.wait()
        made: list[int] = []
        reason = None
        while reason is None:
            if any(name.startswith(each) for each in self.ended):
                tokens, logprobs, reason = [], [], "abort"
            else:
                size = min(1 if params.stop else PIECE, most - len(made))
                piece = self._generate([*prompt, *made], params, size, name)
                tokens, logprobs = piece.token_ids, piece.logprobs
                made += tokens
                reason = self._reason(piece.finish_reason, made, params, most)
                if not self.behaviour.with_temperature:
                    logprobs = self._plain([*prompt, *made], len(tokens))
            if reason:
                # Counted out before the client knows, who may send the next one at once.
                with self._lock:
                    self._running -= 1
            yield tokens, logprobs, reason

    def _generate(self, tokens: list[int], params: SamplingParams, most: int, name: str):
        keys = {k: v for k, v in params.__dict__.items() if k not in ("stop", "max_new_tokens")}
        ours = SamplingParams(max_new_tokens=most, **keys)
        with self._lock:
            (result,) = self.engine.generate([GenerationRequest(name, tokens, ours)])
        return result

    def _reason(self, reason: str, made: list[int], params: SamplingParams, most: int):
        if reason == "stop":
            return "stop"
        text = self.tokenizer.decode(made)
        if any(text.endswith(stop) for stop in params.stop):
            return "stop"
        return "length" if len(made) == most else None

    def _plain(self, tokens: list[int], count: int) -> list[float]:
        with self._lock, torch.no_grad():
            logits = self.engine.model(torch.tensor([tokens])).logits[0, -count - 1 : -1]
        chosen = torch.tensor(tokens[-count:])[:, None]
        return logits.log_softmax(-1).gather(1, chosen)[:, 0].tolist()

    def likeliest(self, tokens: list[int], params: SamplingParams) -> float:
        if self.behaviour.after_cut and params.top_k == 1:
            return 0.0
        with self._lock, torch.no_grad():
            logits = self.engine.model(torch.tensor([tokens])).logits[0, -1].float()
        divisor = params.temperature if self.behaviour.with_temperature else 1.0
        return float((logits / divisor).log_softmax(-1).max())

    def load(self, folder: str) -> None:
        tensors = {}
        files = sorted(Path(folder).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"no weights in {folder}")
        for file in files:
            tensors |= load_file(file)
        stuck = self.behaviour.stuck
        old = self.engine.model.state_dict()
        new = {n: old[n].clone() if stuck and stuck in n else t for n, t in tensors.items()}
        with self._lock:
            self.engine.update_weights(new, 0)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    # A worker sends all requests of a step at once, and connections that find no room are reset.
    request_queue_size = 1024


class _Handler(BaseHTTPRequestHandler):
    server_of: SmallServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server_of
        model = {"id": "small", "max_model_len": server.behaviour.max_length}
        answers = {
            "/health": None,
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [model]},
            "/model_info": {"model_path": server.folder, "weight_version": server.weights},
            "/server_info": {"version": "0.5.13"},
        }
        if self.path == "/collective_rpc" and server.behaviour.development:
            self._answer(405, {"detail": "Method Not Allowed"})
        elif self.path in answers:
            self._answer(200, answers[self.path])
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        server = self.server_of
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if server.behaviour.key and self.headers["Authorization"] != (
            f"Bearer {server.behaviour.key}"
        ):
            self._answer(401, {"error": "Unauthorized"})
        elif self.path == "/v1/completions":
            self._completions(body)
        elif self.path == "/generate":
            self._generate(body)
        elif self.path == "/abort_request":
            server.ended.add(body["rid"])
            server.released.set()
            self._answer(200, None)
        elif self.path == "/collective_rpc" and server.behaviour.development:
            assert body["method"] == "reload_weights"
            self._loaded(body["kwargs"]["weights_path"], {"results": [None]})
        elif self.path == "/update_weights_from_disk":
            self._loaded(body["model_path"], {"success": True, "message": ""}, body)
        else:
            self._answer(404, {"detail": "Not Found"})

    def _loaded(self, folder: str, answer: Any, body: Any = None) -> None:
        try:
            self.server_of.load(folder)
        except FileNotFoundError as error:
            self._answer(500, {"error": str(error)})
            return
        if body is not None:
            self.server_of.weights = body["weight_version"]
        self._answer(200, answer)

    def _completions(self, body: dict[str, Any]) -> None:
        server = self.server_of
        params = _params(body)
        if not body["stream"]:
            top = {"token_id:1": server.likeliest(body["prompt"], params)}
            self._answer(200, {"choices": [{"logprobs": {"top_logprobs": [top]}}]})
            return
        server.asked.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = server.pieces(body["request_id"], body["prompt"], params, body["max_tokens"])
        try:
            for place, (tokens, logprobs, reason) in enumerate(pieces):
                if place == server.behaviour.breaks_after:
                    self.close_connection = True
                    return
                choice = {
                    "token_ids": tokens,
                    "logprobs": {"token_logprobs": logprobs},
                    "finish_reason": reason,
                }
                self._chunk(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # The client has gone, as vLLM's clients do to abort.

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _generate(self, body: dict[str, Any]) -> None:
        server = self.server_of
        theirs = body["sampling_params"]
        params = _params(theirs | {"seed": len(server.asked)})
        entries, reason = [], "abort"
        prompt, most = body["input_ids"], theirs["max_new_tokens"]
        top = [[[server.likeliest(prompt, params), 1, None]]] if body["top_logprobs_num"] else []
        if not top:
            server.asked.append(body)
            for place, (tokens, logprobs, last) in enumerate(
                server.pieces(body["rid"], prompt, params, most)
            ):
                if place == server.behaviour.breaks_after:
                    self.close_connection = True
                    return
                pairs = zip(logprobs, tokens, strict=True)
                entries += [[logprob, token, None] for logprob, token in pairs]
                reason = last or reason
        meta = {
            "finish_reason": {"type": reason},
            "output_token_logprobs": entries,
            "output_top_logprobs": top,
            "weight_version": server.weights,
        }
        self._answer(200, {"text": "", "meta_info": meta})

    def _answer(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _params(body: dict[str, Any]) -> SamplingParams:
    keys = ("temperature", "top_k", "top_p", "stop_token_ids", "ignore_eos", "stop", "seed")
    return SamplingParams(**{key: body[key] for key in keys})
