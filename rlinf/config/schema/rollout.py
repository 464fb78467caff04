"""The `rollout` section: how the policy produces samples."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section
from rlinf.config.schema.model import ReasoningRolloutModelConfig, RolloutModelConfig

SERVERS = ("vllm_server", "sglang_server")
"""Engines that run elsewhere and are reached by URL."""


class HfConfig(Section):
    """Settings of our own engine."""

    paged_cache: bool | Literal["auto"] = Field(
        "auto",
        description="Keep keys and values in blocks that sequences take as they need them: less "
        "memory, equal results. auto does where the Triton kernels run (bf16 or fp16 on CUDA); on "
        "a CPU true is slower where contexts have several blocks.",
    )
    max_cache_tokens: Int | None = Field(
        None,
        gt=0,
        description="Most tokens of a paged cache; null is what max_running_requests full "
        "sequences take, on CUDA within gpu_memory_utilization.",
    )
    reuse_prefixes: bool = Field(
        True, description="Let sequences use blocks of others that begin with the same tokens."
    )


class VllmConfig(Section):
    """Settings of the vLLM engine."""

    attention_backend: str | None = Field(None, description="Attention kernel; null lets it pick.")
    enable_chunked_prefill: bool = Field(True, description="Read long prompts in pieces.")
    enable_prefix_caching: bool = Field(True, description="Share the cache of equal prefixes.")
    max_num_batched_tokens: Int | None = Field(
        None, gt=0, description="Most tokens per engine step; null lets it pick."
    )


class SglangConfig(Section):
    """Settings of the SGLang engine."""

    attention_backend: str | None = Field(None, description="Attention kernel; null lets it pick.")
    use_torch_compile: bool = Field(False, description="Compile the network.")
    torch_compile_max_bs: Int = Field(128, gt=0, description="Largest batch that is compiled.")
    decode_log_interval: Int = Field(500000, gt=0, description="Steps between engine log lines.")
    tool_call_parser: str | None = Field(None, description="Parser of tool calls.")


class EngineServerConfig(Section):
    """An engine that runs elsewhere."""

    url: str | list[str] | None = Field(
        None, description="Where it is, such as `http://host:8000`; one per rollout worker."
    )
    weights_folder: str | None = Field(
        None,
        description="Folder for new weights, which worker and server see under the same path; "
        "null is a server whose weights stay.",
    )
    start_timeout: Float = Field(
        300.0, gt=0, description="Seconds to wait until the server takes connections."
    )
    answer_timeout: Float = Field(
        600.0, gt=0, description="Seconds to wait for the next bytes of an answer."
    )


class RolloutConfig(Section):
    """Workers that run the policy."""

    group_name: str = Field("RolloutGroup", description="Name of the group of rollout workers.")
    model: RolloutModelConfig = Field(
        default_factory=RolloutModelConfig, description="The network; null keys are the actor's."
    )
    model_dir: str | None = Field(None, description="Older name of model.model_path.")
    seed: Int | None = Field(None, ge=0, description="Seed of sampling; null is runner.seed.")
    enable_offload: bool = Field(False, description="Free the device while others use it.")


class EmbodiedRolloutConfig(RolloutConfig):
    """Workers that act."""

    pipeline_stage_num: Int = Field(
        1, gt=0, description="Halves (or more) of the envs that take turns with the policy."
    )
    in_env_process: bool | Literal["auto"] = Field(
        "auto",
        description="Act inside of the env processes, without a message per step. auto does where "
        "env and rollout have the same placement and there is one pipeline stage.",
    )
    eval_batch_size: Int | None = Field(
        None,
        gt=0,
        description="Observations that the policy sees at a time in evaluations; null is 8 on a "
        "CPU, and on an accelerator what training acts on at a time in a process, but no more "
        "than env.eval has envs there.",
    )


class ReasoningRolloutConfig(RolloutConfig):
    """Workers that generate."""

    model: ReasoningRolloutModelConfig = Field(
        default_factory=ReasoningRolloutModelConfig,
        description="The network; null keys are the actor's.",
    )
    rollout_backend: Literal["hf", "vllm", "sglang", "vllm_server", "sglang_server"] = Field(
        "hf", description="Engine that runs the policy; `hf` is built in, servers run elsewhere."
    )
    enable_torch_compile: bool = Field(False, description="Compile the network.")
    gpu_memory_utilization: Float = Field(
        0.65, gt=0, le=1, description="Part of device memory that the engine may take."
    )
    tensor_parallel_size: Int = Field(1, gt=0, description="Devices that share one engine.")
    max_running_requests: Int = Field(256, gt=0, description="Sequences generated at a time.")
    enforce_eager: bool = Field(False, description="Do not use CUDA graphs for generation.")
    cuda_graph_max_bs: Int | None = Field(
        None, gt=0, description="Largest batch with a CUDA graph; null lets the engine pick."
    )
    return_logprobs: bool = Field(True, description="Keep the engine's own log-probabilities.")
    hf: HfConfig = Field(default_factory=HfConfig, description="For hf only.")
    vllm: VllmConfig = Field(default_factory=VllmConfig, description="For vllm only.")
    sglang: SglangConfig = Field(default_factory=SglangConfig, description="For sglang only.")
    server: EngineServerConfig = Field(
        default_factory=EngineServerConfig, description="For vllm_server and sglang_server only."
    )
