"""Generation by SGLang, whose processes do the work while this one collects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlinf.hybrid_engines.generation.external import ExternalEngine, Made
from rlinf.hybrid_engines.generation.interface import KeptWeights, NamedTensors
from rlinf.hybrid_engines.generation.requests import FinishReason
from rlinf.hybrid_engines.generation.responses import Response
from rlinf.hybrid_engines.generation.settings import PRECISIONS, EngineSettings
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class SglangEngine(ExternalEngine):
    """Generates with `sglang.Engine`.

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
        self._engine = _start(settings)
        self._loop = self._engine.loop
        self._tasks: dict[asyncio.Task[dict[str, Any]], str] = {}
        self._released: list[str] = []
        super().__init__(
            max_length=settings.max_length,
            vocab_size=_vocabulary(settings),
            seed=settings.seed,
        )

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> SglangEngine:
        """See the base."""
        return cls(settings)

    # -- requests ----------------------------------------------------------------------------------

    def _begin(self, key: str, tokens: list[int], response: Response, most: int, seed: int) -> None:
        params = response.request.params
        theirs = {
            "temperature": params.temperature,
            "top_k": params.top_k if params.top_k > 0 else -1,
            "top_p": params.top_p,
            "max_new_tokens": most,
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": params.ignore_eos,
            "skip_special_tokens": False,
        }
        work = self._engine.async_generate(
            input_ids=tokens, sampling_params=theirs, return_logprob=True, rid=key
        )
        self._tasks[self._loop.create_task(work)] = key

    def _advance(self) -> Iterable[Made]:
        done, _ = self._loop.run_until_complete(
            asyncio.wait(list(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        )
        return [self._made(task) for task in done]

    def _halt(self, keys: list[str]) -> Iterable[Made]:
        if not keys:
            return []
        # Requests that were not sent yet are only known to their tasks.
        self._loop.run_until_complete(asyncio.sleep(0))
        for key in keys:
            self._engine.tokenizer_manager.abort_request(rid=key)
        # What is aborted ends soon, with what it has made.
        tasks = [task for task, key in self._tasks.items() if key in set(keys)]
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        made = [self._made(task) for task in tasks]
        for each in made:
            # Ours to end: the response may be carried on.
            if each.finished == "abort":
                each.finished = None
        return made

    def _made(self, task: asyncio.Task[dict[str, Any]]) -> Made:
        key = self._tasks.pop(task)
        meta = task.result()["meta_info"]
        reason = _REASONS.get(meta["finish_reason"]["type"])
        if reason is None:
            raise RuntimeError(f"SGLang ended a request with {meta['finish_reason']}")
        entries = meta.get("output_token_logprobs") or []
        return Made(key, [entry[1] for entry in entries], [entry[0] for entry in entries], reason)

    # -- weights and memory ------------------------------------------------------------------------

    def _load(self, named: NamedTensors) -> None:
        tensors = list(named.items() if isinstance(named, Mapping) else named)
        success, message, *_ = _answer(self._engine.update_weights_from_tensor(tensors))
        if not success:
            raise WeightMismatch(f"SGLang did not take the weights: {message}")

    def _sleep(self, weights: KeptWeights) -> None:
        self._released = ["kv_cache"] if weights == "keep" else ["kv_cache", "weights"]
        self._engine.release_memory_occupation(tags=self._released)

    def _wake_weights(self) -> None:
        if "weights" in self._released:
            self._engine.resume_memory_occupation(tags=["weights"])

    def _wake_cache(self) -> None:
        self._engine.resume_memory_occupation(tags=["kv_cache"])

    def close(self) -> None:
        """End SGLang."""
        self._engine.shutdown()


def _start(settings: EngineSettings) -> Any:
    try:
        import sglang
    except ImportError as error:
        raise ValueError(
            f"rollout_backend sglang: sglang cannot be imported ({error}); pip install sglang"
        ) from error
    options = {name: value for name, value in settings.options.items() if value is not None}
    compiled = options.pop("use_torch_compile", False) or settings.compiled
    return sglang.Engine(
        model_path=settings.model_path,
        skip_tokenizer_init=True,
        trust_remote_code=settings.trust_remote_code,
        dtype=PRECISIONS[settings.precision],
        tp_size=settings.tensor_parallel_size,
        context_length=settings.max_length,
        max_running_requests=settings.max_running,
        mem_fraction_static=settings.gpu_memory_utilization,
        random_seed=settings.seed & 0x7FFFFFFF,
        disable_cuda_graph=settings.enforce_eager,
        cuda_graph_max_bs=settings.cuda_graph_max_bs,
        enable_torch_compile=compiled,
        enable_memory_saver=True,
        **options,
    )


def _vocabulary(settings: EngineSettings) -> int:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        settings.model_path, trust_remote_code=settings.trust_remote_code
    )
    return config.vocab_size


def _answer(answer: Any) -> tuple[Any, ...]:
    """Return the versions answer with a tuple or with an object."""
    if isinstance(answer, tuple):
        return answer
    return answer.success, answer.message
