"""Generation by SGLang, whose processes do the work while this one collects."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from packaging.version import Version
from torch import Tensor

from rlinf.hybrid_engines.generation.engine_thread import (
    EngineThread,
    process_kept,
    survive_sigquit,
)
from rlinf.hybrid_engines.generation.external import ExternalEngine, Made
from rlinf.hybrid_engines.generation.interface import KeptWeights, NamedTensors
from rlinf.hybrid_engines.generation.remote.protocols import sglang_made, sglang_params
from rlinf.hybrid_engines.generation.requests import SamplingParams, require
from rlinf.hybrid_engines.generation.responses import Response
from rlinf.hybrid_engines.generation.settings import PRECISIONS, EngineSettings, vocabulary
from rlinf.hybrid_engines.generation.vllm_weights import BUCKET_BYTES, buckets
from rlinf.hybrid_engines.generation.weight_proof import KnownWeights, prove
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch

FIRST, LAST = Version("0.5.11"), Version("0.5.17")
"""Versions whose interface is the one that is used here."""

_PROBE = [1, 2, 3]
_RESET_SECONDS = 60.0
_SLICE_SECONDS = 0.05
"""How long a step waits for news before it lets others have their turn."""


class SglangEngine(ExternalEngine):
    """Generates with `sglang.Engine`, which lives in a thread of its own.

    SGLang draws with noise of its own: seeds of requests have no effect. Log-probabilities are of
    the distribution with the temperature, before top-k and top-p, as everywhere here.

    Args:
        settings: `model_path` is needed; `options` are the keys of `rollout.sglang`.
    """

    def __init__(self, settings: EngineSettings):
        if settings.model_path is None or not Path(settings.model_path).is_dir():
            raise ValueError(
                f"model_path is {settings.model_path!r}: rollout_backend sglang needs a folder; "
                "set rollout.model.model_path or actor.model.model_path"
            )
        self._pids: list[int] = []
        self._on_cuda = torch.cuda.is_available()
        self._thread = EngineThread("rlinf-sglang", self._require_alive)
        survive_sigquit()
        try:
            self._engine = self._thread.call(_start, settings)
            # Kept by the policy that was in place meanwhile.
            self._thread.call(asyncio.set_event_loop, self._engine.loop)
        except BaseException:
            self._thread.close()
            faulthandler.unregister(signal.SIGQUIT)
            raise
        self._pids = list(self._engine.get_all_child_pids())
        self._tasks: dict[asyncio.Task[dict[str, Any]], str] = {}
        self._released: list[str] = []
        self._expected: KnownWeights | None = None
        self._model_path = settings.model_path
        self._dtype = getattr(torch, PRECISIONS[settings.precision])
        self._has_tokenizer = settings.tokenizer_path is not None
        super().__init__(
            max_length=settings.max_length, vocab_size=vocabulary(settings), seed=settings.seed
        )

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> SglangEngine:
        """See the base."""
        return cls(settings)

    @property
    def takes_stop_texts(self) -> bool:
        """See the base."""
        return self._has_tokenizer

    # -- requests ----------------------------------------------------------------------------------

    def _begin(self, key: str, tokens: list[int], response: Response, most: int, seed: int) -> None:
        theirs = sglang_params(response.request.params, most)
        self._thread.call(self._ask, key, tokens, theirs)

    def _ask(self, key: str, tokens: list[int], params: dict[str, Any]) -> None:
        work = self._engine.async_generate(
            input_ids=tokens, sampling_params=params, return_logprob=True, rid=_request(key)
        )
        self._tasks[self._engine.loop.create_task(work)] = key

    def _advance(self) -> Iterable[Made]:
        made = self._thread.call(self._wait)
        if not made:
            self._require_alive()
        return made

    def _wait(self) -> list[Made]:
        first = asyncio.wait(
            list(self._tasks), timeout=_SLICE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        done, _ = self._engine.loop.run_until_complete(first)
        return [self._made(task) for task in done]

    def _halt(self, keys: list[str]) -> Iterable[Made]:
        if not keys:
            return []
        tasks = [task for task, key in self._tasks.items() if key in set(keys)]
        self._thread.call(lambda: self._engine.loop.run_until_complete(self._end(tasks)))
        made = [self._made(task) for task in tasks]
        for each in made:
            # Ours to end: the response may be carried on.
            if each.finished == "abort":
                each.finished = None
        return made

    async def _end(self, tasks: list[asyncio.Task[dict[str, Any]]]) -> None:
        left = set(tasks)
        while left:
            for task in left:
                self._engine.tokenizer_manager.abort_request(rid=_request(self._tasks[task]))
            # One that SGLang did not know yet is asked for again.
            _, left = await asyncio.wait(left, timeout=_SLICE_SECONDS)

    def _made(self, task: asyncio.Task[dict[str, Any]]) -> Made:
        return sglang_made(self._tasks.pop(task), task.result()["meta_info"])

    def _require_alive(self) -> None:
        """Raise if one of SGLang's processes has ended."""
        pid = self._lost()
        if pid is not None:
            raise RuntimeError(
                f"SGLang's process {pid} has ended; the log of this worker has what it said"
            )

    def _lost(self) -> int | None:
        for pid in self._pids:
            if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return pid
        return None

    # -- weights -----------------------------------------------------------------------------------

    def _load(self, named: NamedTensors) -> None:
        tensors = dict(named.items() if isinstance(named, Mapping) else named)
        first = self._expected is None
        if self._expected is None:
            self._expected = KnownWeights(self._model_path)
        self._expected.check(tensors)
        self._replace(tensors)
        if first:
            prove("SGLang", self._replace, self._probe, tensors, self._expected.tied, _PROBE)

    def _replace(self, tensors: dict[str, Tensor]) -> None:
        self._thread.call(self._send, tensors)

    def _send(self, tensors: dict[str, Tensor]) -> None:
        device = "cuda" if self._on_cuda else "cpu"
        for group in buckets(tensors.items(), self._dtype, BUCKET_BYTES):
            theirs = [(name, self._cast(tensor, device)) for name, tensor in group]
            success, message, *_ = _answer(
                self._engine.update_weights_from_tensor(theirs, flush_cache=False)
            )
            if not success:
                raise WeightMismatch(f"SGLang did not take the weights: {message}")
        self._forget_prefixes()

    def _forget_prefixes(self) -> None:
        """Empty the cache of prefixes, which belong to the old weights; runs in the thread."""
        # Asked to do so as part of an update, SGLang ends itself if a request has just ended.
        end = time.monotonic() + _RESET_SECONDS
        while not _answer(self._engine.flush_cache())[0]:
            if time.monotonic() > end:
                raise RuntimeError(
                    f"SGLang kept keys and values of old weights for {_RESET_SECONDS:g} s"
                )
            time.sleep(0.01)

    def _cast(self, tensor: Tensor, device: str) -> Tensor:
        kind = self._dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(device, kind)

    def _probe(self) -> float:
        params = sglang_params(SamplingParams(temperature=0.0, ignore_eos=True), 1)
        answer = self._thread.call(
            lambda: self._engine.loop.run_until_complete(
                self._engine.async_generate(
                    input_ids=_PROBE, sampling_params=params, return_logprob=True
                )
            )
        )
        return answer["meta_info"]["output_token_logprobs"][0][0]

    # -- memory ------------------------------------------------------------------------------------

    def _sleep(self, weights: KeptWeights) -> None:
        if not self._on_cuda:
            return
        self._released = ["kv_cache"] if weights == "keep" else ["kv_cache", "weights"]
        self._thread.call(self._engine.release_memory_occupation, tags=self._released)

    def _wake_weights(self) -> None:
        if "weights" in self._released:
            self._thread.call(self._engine.resume_memory_occupation, tags=["weights"])

    def _wake_cache(self) -> None:
        if not self._on_cuda:
            return
        self._thread.call(self._engine.resume_memory_occupation, tags=["kv_cache"])

    def close(self) -> None:
        """End SGLang, which ends all processes that this one has started."""
        if self._lost() is None:
            self._thread.call(self._stop)
        else:
            # The thread may wait for the process that is gone.
            self._engine.shutdown()
        self._thread.close()
        faulthandler.unregister(signal.SIGQUIT)

    def _stop(self) -> None:
        self._pids = []
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._engine.loop.run_until_complete(asyncio.wait(list(self._tasks)))
        self._engine.shutdown()


def _start(settings: EngineSettings) -> Any:
    """Start SGLang; runs in its thread."""
    on_cuda = torch.cuda.is_available()
    if not on_cuda:
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    with process_kept(own_variables="SGLANG_"):
        try:
            import sglang
        except ImportError as error:
            raise ValueError(
                f"rollout_backend sglang: sglang cannot be imported ({error}); "
                f"pip install sglang=={LAST}"
            ) from error
        check_version(sglang.__version__)
        options = {name: value for name, value in settings.options.items() if value is not None}
        compiled = options.pop("use_torch_compile", False) or settings.compiled
        if not on_cuda:
            # Without its package of kernels for CPUs, SGLang can compute by torch alone.
            options = {"device": "cpu", "attention_backend": "torch_native"} | options
        if settings.cuda_graph_max_bs is not None:
            options["cuda_graph_max_bs"] = settings.cuda_graph_max_bs
        return sglang.Engine(
            model_path=settings.model_path,
            tokenizer_path=settings.tokenizer_path,
            skip_tokenizer_init=settings.tokenizer_path is None,
            trust_remote_code=settings.trust_remote_code,
            dtype=PRECISIONS[settings.precision],
            tp_size=settings.tensor_parallel_size,
            context_length=settings.max_length,
            max_running_requests=settings.max_running,
            mem_fraction_static=settings.gpu_memory_utilization,
            random_seed=settings.seed & 0x7FFFFFFF,
            disable_cuda_graph=settings.enforce_eager or not on_cuda,
            enable_torch_compile=compiled,
            enable_memory_saver=on_cuda,
            # What is released is gone otherwise, and `sleep("offload")` keeps it.
            enable_weights_cpu_backup=on_cuda,
            **options,
        )


def check_version(version: str) -> None:
    """Refuse versions of SGLang whose interface may be another one.

    Raises:
        ValueError: It is not between `FIRST` and `LAST`.
    """
    require(
        FIRST.release <= Version(version).release <= LAST.release,
        f"rollout_backend sglang: SGLang {version} is installed, and {FIRST} to {LAST} are "
        f"supported; pip install sglang=={LAST}",
    )


def _request(key: str) -> str:
    # SGLang ends all requests whose names begin alike.
    return f"{key}."


def _answer(answer: Any) -> tuple[Any, ...]:
    """Return the versions answer with a tuple or with an object."""
    if isinstance(answer, tuple):
        return answer
    return answer.success, answer.message
