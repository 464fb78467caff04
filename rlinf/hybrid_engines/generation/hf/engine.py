"""Our own generation engine: continuous batching over a transformers model."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.generation.hf.build import (
    Paging,
    build_model,
    end_tokens,
    load_model,
)
from rlinf.hybrid_engines.generation.hf.graphs import CapturedSteps
from rlinf.hybrid_engines.generation.hf.rows import Rows
from rlinf.hybrid_engines.generation.hf.sequences import Lanes, Pack, batches, packs_of
from rlinf.hybrid_engines.generation.hf.stop_texts import StopTexts
from rlinf.hybrid_engines.generation.hf.table import RowTable
from rlinf.hybrid_engines.generation.interface import GenerationEngine, KeptWeights, NamedTensors
from rlinf.hybrid_engines.generation.requests import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
)
from rlinf.hybrid_engines.generation.responses import Response
from rlinf.hybrid_engines.generation.settings import PRECISIONS, EngineSettings

logger = logging.getLogger(__name__)


@dataclass
class Launch:
    """Tokens that the device was asked for and the host has not read.

    Attributes:
        lanes: `[B]`, whose they are.
        result: `[B, 2]` on the host, tokens and log-probabilities.
        ready: Recorded behind the copy to the host; None when there is nothing to wait for.
        pinned: The memory of `result`, to be used again.
    """

    lanes: np.ndarray
    result: Tensor
    ready: torch.cuda.Event | None = None
    pinned: Tensor | None = None


class HFEngine(GenerationEngine):
    """Generates with a causal language model of transformers in this process.

    Up to `max_running` responses share each decoding step. One that ends makes room for the next;
    the batch shrinks when none waits. A prompt is read once for all its samples.

    Args:
        model: The model; its parameters become views of the engine's weights, so that whoever
            writes into them in place changes what is generated (call `weights_changed` then).
        max_length: Most tokens of prompt and response together.
        max_running: Responses generated at a time.
        device: None is CUDA if there is any.
        dtype: Number format of the weights; None is the model's.
        eos_token_ids: What ends a response; None asks the model.
        seed: Of the noise of requests without a seed of their own.
        version: Of the weights.
        kernels: `auto`, or one of the ways to compute: `triton` and `flash` (CUDA),
            `torch`, `transformers` (any architecture).
        cuda_graphs: Replay decoding steps as CUDA graphs.
        cuda_graph_max_rows: Largest batch with a graph; None is all.
        compiled: Let `torch.compile` fuse small operations (CUDA).
        gpu_memory_utilization: Part of the memory of a CUDA device that weights and cache may
            take; `max_running` gives way, or the tokens of a paged cache.
        max_prefill_tokens: Most prompt tokens read at once; None is what suits the device.
        paged: Keep keys and values in blocks, taken as sequences need them, instead of a row of
            `max_length` tokens each; the path `triton`, and `torch` on a CPU, have that. `auto` is
            true on the path `triton`, unless its kernels fail.
        max_cache_tokens: Most tokens of a paged cache; None is what `max_running` responses of
            `max_length` tokens take, or what fits into the memory. With less, the youngest response
            waits when there is no block left, and is read again later.
        reuse_prefixes: Let sequences use the blocks of others that began with the same tokens.
        tokenizer_path: Folder of the tokenizer, for requests that end at texts; None does without.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_length: int,
        max_running: int = 256,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        eos_token_ids: Sequence[int] | None = None,
        seed: int = 0,
        version: int = 0,
        kernels: str = "auto",
        cuda_graphs: bool = True,
        cuda_graph_max_rows: int | None = None,
        compiled: bool = False,
        gpu_memory_utilization: float = 0.65,
        max_prefill_tokens: int | None = None,
        paged: bool | Literal["auto"] = "auto",
        max_cache_tokens: int | None = None,
        reuse_prefixes: bool = True,
        tokenizer_path: str | None = None,
    ):
        super().__init__(
            max_length=max_length, vocab_size=model.config.vocab_size, seed=seed, version=version
        )
        if max_running < 1:
            raise ValueError(f"max_running is {max_running}: at least 1 is needed")
        self._device = torch.device(device or _default_device())
        # One more than max_length: a row whose end the host has not seen yet goes on for a step.
        self._decoder = build_model(
            model,
            slots=max_running,
            tokens=max_length + 1,
            device=self._device,
            dtype=dtype or next(model.parameters()).dtype,
            kernels=kernels,
            compiled=compiled,
            memory=gpu_memory_utilization,
            paging=Paging(paged, max_cache_tokens, reuse_prefixes),
        )
        self._slots = self._decoder.slots
        self._reuses = reuse_prefixes
        self._ends = end_tokens(model) if eos_token_ids is None else tuple(eos_token_ids)
        self._on_cuda = self._device.type == "cuda"
        self._prefill_tokens = max_prefill_tokens or (16384 if self._on_cuda else 2048)
        graphs = cuda_graphs and self._on_cuda and self._decoder.path != "transformers"
        self._steps = CapturedSteps(graphs, cuda_graph_max_rows or self._slots)
        self._lanes = Lanes(self._slots, max_length)
        self._table = RowTable(self._slots, self._lanes, few_sizes=self._on_cuda)
        self._state = Rows(self._slots, self._decoder, self._device)
        self._waiting: deque[Pack] = deque()
        self._launches: deque[Launch] = deque()
        self._done: list[GenerationResult] = []
        # The host reads the tokens of a step while the device works on the next one.
        self._behind = 1 if self._on_cuda else 0
        self._pinned: list[Tensor] = []
        self._weights_away = False
        self._texts: StopTexts | None = None
        if tokenizer_path is not None:
            self._texts = StopTexts.of_folder(tokenizer_path, model.config.vocab_size)
        self._most_running = self._slots
        self._counts = dict.fromkeys(
            (
                "prefills",
                "steps",
                "prompt_tokens",
                "shared_tokens",
                "reused_tokens",
                "new_tokens",
                "row_steps",
                "preempted",
            ),
            0,
        )

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> HFEngine:
        """See the base."""
        if settings.tensor_parallel_size != 1:
            raise ValueError(
                f"rollout.tensor_parallel_size is {settings.tensor_parallel_size}: rollout_backend "
                "hf runs on one device; use more rollout workers, or vllm or sglang"
            )
        device = torch.device(settings.device or _default_device())
        dtype = getattr(torch, PRECISIONS[settings.precision])
        if device.type == "cpu" and dtype != torch.float32:
            logger.warning("a CPU would emulate %s, slowly: it generates in fp32", dtype)
            dtype = torch.float32
        return cls(
            settings.model or load_model(settings),
            max_length=settings.max_length,
            max_running=settings.max_running,
            device=device,
            dtype=dtype,
            seed=settings.seed,
            cuda_graphs=not settings.enforce_eager,
            cuda_graph_max_rows=settings.cuda_graph_max_bs,
            compiled=settings.compiled,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            paged=settings.options.get("paged_cache", "auto"),
            max_cache_tokens=settings.options.get("max_cache_tokens"),
            reuse_prefixes=settings.options.get("reuse_prefixes", True),
            tokenizer_path=settings.tokenizer_path,
        )

    @property
    def takes_stop_texts(self) -> bool:
        """See the base: with a tokenizer."""
        return self._texts is not None

    @property
    def model(self) -> nn.Module:
        """The module whose parameters are the weights of this engine."""
        return self._decoder.module

    @property
    def path(self) -> str:
        """How it computes: `triton`, `flash`, `torch` or `transformers`."""
        return self._decoder.path

    def weights_changed(self, version: int, recompute: bool = False) -> None:
        """Say that somebody wrote new weights into the parameters of `model`.

        Args:
            version: Their number.
            recompute: As for `update_weights`.
        """
        with self._updating(version, recompute):
            self._restart()

    def stats(self) -> dict[str, float]:
        """Return the counters since the start and what is going on."""
        return {
            **self._counts,
            "running": self._table.running,
            "waiting": sum(len(pack.responses) for pack in self._waiting),
            "slots": self._slots,
            "cache_bytes": self._decoder.cache_bytes,
            "weight_bytes": self._decoder.weights.nbytes,
            "graphs": len(self._steps),
            "version": self.version,
        }

    # -- requests ----------------------------------------------------------------------------------

    def _submit(self, requests: list[GenerationRequest]) -> None:
        most = max(1, self._slots // 4)
        for request in requests:
            params = request.params
            stops = (*(() if params.ignore_eos else self._ends), *params.stop_token_ids)
            if self._texts is not None:
                self._texts.know(params.stop)
            for pack in packs_of(request, self._limit(request), stops, most):
                # Episodes of one question ask one after the other, each by itself.
                last = self._waiting[-1] if self._waiting and self._reuses else None
                if last is None or not last.take(pack, most):
                    self._waiting.append(pack)

    def _abort(self, request_ids: set[Hashable] | None) -> list[GenerationResult]:
        self._drain()

        def wanted(request_id: Hashable) -> bool:
            return request_ids is None or request_id in request_ids

        results = [result for result in self._done if wanted(result.request_id)]
        self._done = [result for result in self._done if not wanted(result.request_id)]
        for response in self._table:
            if wanted(response.request.request_id):
                self._leave(response)
                results.append(response.result("abort"))
        for pack in self._waiting:
            gone = [r for r in pack.responses if wanted(r.request.request_id)]
            pack.responses = [r for r in pack.responses if r not in gone]
            results += [response.result("abort") for response in gone]
        self._waiting = deque(pack for pack in self._waiting if pack.responses)
        self._compact()
        return results

    # -- work --------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _step(self) -> list[GenerationResult]:
        if self._table.parked:
            self._state.park(self._table.parked)
            self._table.parked = []
        self._admit()
        self._make_room()
        if self._table.running:
            self._decode()
        while len(self._launches) > (self._behind if self._table.running else 0):
            self._collect(self._launches.popleft())
        self._compact()
        done, self._done = self._done, []
        return done

    def _admit(self) -> None:
        """Give waiting packs rows, when enough are free to be worth reading prompts."""
        running = self._table.running
        if not self._waiting or self._most_running - running < max(1, self._most_running // 8):
            return
        self._most_running = self._slots
        free = self._table.free[::-1]
        chosen = []
        while self._waiting and len(self._waiting[0].responses) <= len(free):
            pack = self._claimed(self._waiting[0], free)
            if pack is None:
                # More do not fit: read the next ones when some of these have ended.
                self._most_running = self._table.running
                break
            for response in pack.responses:
                self._lanes.take(response)
                self._table.enter(response, free.pop())
            chosen.append(pack)
        for batch in batches(chosen, self._prefill_tokens, self._decoder.packed):
            self._prefill(batch)

    def _claimed(self, pack: Pack, free: list[int]) -> Pack | None:
        """Take room for the first pack that waits, and take it out; None if there is none.

        When nothing else runs, what fits of it must do.
        """
        count = len(pack.responses)
        while not self._decoder.claim(pack.prefix, free[: -count - 1 : -1]):
            if self._table.running or count == 1:
                return None
            count -= 1
        self._waiting.popleft()
        if count < len(pack.responses):
            self._waiting.appendleft(Pack(pack.prefix, pack.responses[count:]))
        return Pack(pack.prefix, pack.responses[:count])

    def _make_room(self) -> None:
        """Take room for a token of each row; the youngest responses wait again if there is none."""
        while self._table.running and not self._decoder.extend(self._table.positions):
            # Some may have come to their end.
            self._drain()
            if self._decoder.extend(self._table.positions):
                return
            self._wait_again(self._table.youngest)
            self._counts["preempted"] += 1

    def _prefill(self, batch: list[Pack]) -> None:
        rows = [[response.row for response in pack.responses] for pack in batch]
        logits = self._decoder.prefill([pack.prefix for pack in batch], rows)
        responses = [response for pack in batch for response in pack.responses]
        counts = torch.tensor([len(pack.responses) for pack in batch])
        source = torch.arange(len(batch)).repeat_interleave(counts).to(self._device)
        result = self._state.begin(responses, logits, source)
        self._launch(np.array([response.lane for response in responses]), result)
        self._counts["prefills"] += 1
        for pack in batch:
            reused = self._decoder.reused(pack.responses[0].row)
            self._counts["prompt_tokens"] += len(pack.prefix) - reused
            self._counts["reused_tokens"] += reused
            self._counts["shared_tokens"] += len(pack.prefix) * (len(pack.responses) - 1)
            for number, response in enumerate(pack.responses):
                response.read(len(pack.prefix), len(pack.prefix) if number else reused)

    def _decode(self) -> None:
        rows, longest, lanes = self._table.step()
        span, greedy, cuts = self._span(longest), self._table.greedy, self._table.cuts

        def advance() -> None:
            self._state.advance(rows, span, greedy, cuts)

        self._steps.run(rows, (span, greedy, cuts), advance)
        self._launch(lanes, self._state.result[:rows])
        self._counts["steps"] += 1
        self._counts["row_steps"] += rows

    def _launch(self, lanes: np.ndarray, result: Tensor) -> None:
        """Note tokens that will be there when the device comes so far."""
        if not self._on_cuda:
            self._launches.append(Launch(lanes, result))
            return
        pinned = self._pinned.pop() if self._pinned else _pinned(self._slots)
        host = pinned[: result.shape[0]]
        host.copy_(result, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        self._launches.append(Launch(lanes, host, ready, pinned))

    def _collect(self, launch: Launch) -> None:
        """Read the tokens of a launch and end the responses that are complete."""
        if launch.ready is not None:
            launch.ready.synchronize()
        tokens, logprobs = launch.result.numpy().T
        if not np.isfinite(logprobs).all():
            self._check_finite(launch.lanes, logprobs)
        tokens = tokens.astype(np.int64)
        if self.on_token is not None:
            self._tell(launch.lanes, tokens, logprobs)
        ended = dict(self._lanes.append(launch.lanes, tokens, logprobs))
        if self._texts is not None:
            ended |= self._ended_by_text(launch.lanes[self._texts.completes(tokens)])
        for response, reason in ended.items():
            self._leave(response)
            self._done.append(response.result(reason))
        self._counts["new_tokens"] += int(np.count_nonzero(launch.lanes != self._lanes.trash))
        if launch.pinned is not None:
            self._pinned.append(launch.pinned)

    def _ended_by_text(self, lanes: np.ndarray) -> dict[Response, FinishReason]:
        """Return the responses of some lanes that have come to a text that ends them."""
        assert self._texts is not None
        found: dict[Response, FinishReason] = {}
        for response in filter(None, map(self._lanes.owner, lanes)):
            stops = response.request.params.stop
            last = self._lanes.last(response, self._texts.reach(stops))
            if stops and self._texts.ends(stops, last):
                found[response] = "stop"
        return found

    def _tell(self, lanes: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        """Call `on_token` with the tokens of all responses that are read."""
        for lane, token, logprob in zip(lanes, tokens, logprobs, strict=True):
            response = self._lanes.owner(int(lane))
            if response is not None:
                name, index = response.request.request_id, response.sample_index
                self.on_token(name, index, int(token), float(logprob))

    def _check_finite(self, lanes: np.ndarray, logprobs: np.ndarray) -> None:
        if not np.isfinite(logprobs[lanes != self._lanes.trash]).all():
            raise RuntimeError(
                f"the model gave logits that are not finite, with weights of version {self.version}"
            )

    def _drain(self) -> None:
        while self._launches:
            self._collect(self._launches.popleft())

    # -- rows --------------------------------------------------------------------------------------

    def _leave(self, response: Response) -> None:
        """Free the row of a response and give it its tokens."""
        for launch in self._launches:
            launch.lanes[launch.lanes == response.lane] = self._lanes.trash
        self._lanes.give_back(response, self.version)
        # The newest token was drawn and not read.
        read = [*response.request.prompt_ids, *response.tokens][:-1]
        self._decoder.release(response.row, read)
        self._table.leave(response)

    def _wait_again(self, response: Response) -> None:
        """Let a response with a row wait, to be read anew with what it has."""
        self._leave(response)
        prefix = [*response.request.prompt_ids, *response.tokens]
        self._waiting.appendleft(Pack(prefix, [response]))

    def _compact(self) -> None:
        moves = self._table.moves()
        if moves is not None:
            source, target, length = moves
            self._decoder.move(source, target, length)
            self._state.move(source, target)

    def _span(self, longest: int) -> int:
        """Return the tokens of each row that a decoding step looks at."""
        capacity = self._decoder.capacity
        if self._decoder.fixed_span:
            return capacity
        step = max(256, 1 << (longest.bit_length() - 2)) if self._on_cuda else 16
        return min(capacity, longest + -longest % step)

    # -- weights and memory ------------------------------------------------------------------------

    def _update_weights(self, named: NamedTensors) -> None:
        self._restart()
        self._decoder.weights.load(named)

    @torch.inference_mode()
    def _restart(self) -> None:
        """Let responses with a row wait again, to be read anew with what they have."""
        self._drain()
        for response in list(self._table)[::-1]:
            self._wait_again(response)
        self._decoder.forget()

    def _sleep(self, weights: KeptWeights) -> None:
        self._drain()
        self._steps.clear()
        self._decoder.free()
        if weights != "keep":
            self._decoder.weights.release(keep=weights == "offload")
            self._weights_away = True
        if self._on_cuda:
            torch.cuda.empty_cache()

    def _wake_weights(self) -> None:
        if self._weights_away:
            self._decoder.weights.restore()
            self._weights_away = False

    def _wake_cache(self) -> None:
        self._decoder.allocate()


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _pinned(rows: int) -> Tensor:
    return torch.empty(rows, 2, dtype=torch.float64, pin_memory=True)
