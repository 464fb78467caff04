"""What it takes to build a generation engine, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf.config.schema.rollout import SERVERS
from rlinf.hybrid_engines.generation.requests import require

if TYPE_CHECKING:
    from torch import nn

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an engine; what an engine has no use for, it refuses or leaves alone.

    Attributes:
        max_length: Most tokens of prompt and response together.
        model_path: Folder of the model in the layout of Hugging Face.
        model: The model itself, for `hf`; None loads it from `model_path`.
        precision: Number format of the weights: `fp32`, `bf16` or `fp16`.
        max_running: Responses generated at a time.
        seed: Of the noise of requests without a seed of their own.
        device: None is CUDA if there is any.
        gpu_memory_utilization: Part of a CUDA device that the engine may take.
        tensor_parallel_size: Devices that share the engine.
        enforce_eager: Do not use CUDA graphs.
        cuda_graph_max_bs: Largest batch with a CUDA graph; None is up to the engine.
        compiled: Let `torch.compile` fuse what it can.
        trust_remote_code: Run Python code found in the folder.
        tokenizer_path: Folder of the tokenizer, for requests that end at texts; None does without.
        lora_rank: Of adapters that come by themselves; None is none.
        options: The section of the engine's own keys, such as `rollout.vllm`.
    """

    max_length: int
    model_path: str | None = None
    model: nn.Module | None = None
    precision: str = "fp32"
    max_running: int = 256
    seed: int = 0
    device: str | None = None
    gpu_memory_utilization: float = 0.65
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    cuda_graph_max_bs: int | None = None
    compiled: bool = False
    trust_remote_code: bool = False
    tokenizer_path: str | None = None
    lora_rank: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            self.precision in PRECISIONS,
            f"precision is {self.precision!r}: {', '.join(PRECISIONS)} are allowed",
        )
        require(
            self.model is not None or self.model_path is not None,
            "an engine needs a model or the folder of one: set actor.model.model_path",
        )

    @classmethod
    def from_config(
        cls, cfg: Any, model: nn.Module | None = None, network: Any = None, rank: int = 0
    ) -> EngineSettings:
        """Read a reasoning config.

        Args:
            cfg: The checked config.
            model: The model, if the caller has built it.
            network: The model section for what `rollout.model` leaves open; None is the actor's.
            rank: Of the rollout worker, whose engine may be one of several servers.
        """
        rollout = cfg.rollout
        of_rollout, others = rollout.model, cfg.actor.model if network is None else network

        def either(key: str) -> Any:
            value = getattr(of_rollout, key, None)
            return getattr(others, key, None) if value is None else value

        return cls(
            max_length=cfg.runner.seq_length,
            model_path=rollout.model_dir or either("model_path"),
            model=model,
            precision=either("precision"),
            max_running=rollout.max_running_requests,
            seed=cfg.runner.seed if rollout.seed is None else rollout.seed,
            gpu_memory_utilization=rollout.gpu_memory_utilization,
            tensor_parallel_size=rollout.tensor_parallel_size,
            enforce_eager=rollout.enforce_eager,
            cuda_graph_max_bs=rollout.cuda_graph_max_bs,
            compiled=rollout.enable_torch_compile,
            trust_remote_code=bool(either("trust_remote_code")),
            options=_options(rollout, rank),
        )


def runs_elsewhere(rollout: Any) -> bool:
    """Return whether the engine of a `rollout` section is a server that the run does not start."""
    return rollout.rollout_backend in SERVERS


def vocabulary(settings: EngineSettings) -> int:
    """Return the number of tokens of the model in a folder."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        settings.model_path, trust_remote_code=settings.trust_remote_code
    )
    return config.vocab_size


def _options(rollout: Any, rank: int) -> dict[str, Any]:
    if not runs_elsewhere(rollout):
        section = getattr(rollout, rollout.rollout_backend, None)
        return {} if section is None else dict(section)
    options, urls = dict(rollout.server), rollout.server.url
    urls = [urls] if isinstance(urls, str) else list(urls or ())
    require(
        rank < len(urls),
        f"rollout.server.url has {len(urls)} servers, and rollout worker {rank} has none of its "
        "own; name one per rollout worker",
    )
    return options | {"url": urls[rank]}
