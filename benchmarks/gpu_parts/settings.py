"""What all parts of `benchmarks.gpu_reasoning` are told, and how they count."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestants.generation_model import SHAPES

Row = dict[str, Any]
"""One line of a table: values by column."""

TINY = "small"
"""The shape that is measured without a GPU, to see that everything works."""
MODEL_TYPES = {"Qwen2": "qwen2.5", "Qwen3": "qwen3"}


@dataclass(frozen=True)
class Settings:
    """Options of a part.

    Attributes:
        out: folder for what a part leaves behind.
        tiny: a small model on a CPU, and as little work as there can be.
        sizes: shapes of `benchmarks.contestants.generation_model` to measure.
        trl: interpreter that has TRL.
        smollm2: folder of SmolLM2-135M-Instruct.
        steps: training steps of SmolLM2; None is those of the recipe.
        overrides: of agent recipes, such as `actor.optim.lr=1e-5`.
        compiled: measure generation and training with `torch.compile`, too.
        bandwidth: of the GPU's memory, in TB/s.
        seconds: after which a part begins nothing new, where it has many rows.
    """

    out: Path
    tiny: bool = False
    sizes: tuple[str, ...] = ("0.5B", "1.5B")
    trl: str = sys.executable
    smollm2: Path | None = None
    steps: int | None = None
    overrides: tuple[str, ...] = ()
    compiled: bool = False
    bandwidth: float = 4.8
    seconds: float = 300.0

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        return torch.device("cpu" if self.tiny else "cuda")


def section_of(shape: str) -> dict[str, Any]:
    """Return the model section of a random model of a shape."""
    keys = dict(SHAPES[shape])
    kind = MODEL_TYPES[keys.pop("family")]
    precision = "fp32" if shape == TINY else "bf16"
    sizes = keys | {"max_position_embeddings": 4096}
    return {"model_type": kind, "hf_config": sizes, "precision": precision}


def config_of(shape: str, length: int = 4096) -> Any:
    """Return the config of a shape, for sequences of up to that many tokens."""
    from transformers import AutoConfig

    keys = dict(SHAPES[shape])
    family = keys.pop("family").lower()
    architecture = f"{SHAPES[shape]['family']}ForCausalLM"
    return AutoConfig.for_model(
        family, **keys, max_position_embeddings=length, architectures=[architecture]
    )


def random_model(shape: str, device: torch.device, seed: int = 0, length: int = 4096) -> Any:
    """Return a random model of transformers, made where it is used."""
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if shape == TINY else torch.bfloat16
    torch.manual_seed(seed)
    with device:
        return AutoModelForCausalLM.from_config(config_of(shape, length), dtype=dtype).eval()


def seconds_of(action: Callable[[], Any], device: torch.device) -> float:
    """Return how long something takes until the device is done with it."""
    wait_for(device)
    begin = time.perf_counter()
    action()
    wait_for(device)
    return time.perf_counter() - begin


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
