"""Adapters beside fixed weights in vLLM, against the same adapters in peft."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu_parts.settings import Row, Settings
from benchmarks.gpu_parts.vllm import Checks, requests
from rlinf.models.lora import adapter_tensors

RANK = 16


def measure(settings: Settings) -> Iterator[Row]:
    """A row per check."""
    yield from LoraChecks(settings, lora_rank=RANK).run()


class LoraChecks(Checks):
    """Checks of an engine that takes adapters; its weights are those that it began with."""

    def all(self) -> list[Callable[[], str]]:
        """Return the checks."""
        return [self.adapters, self.speed]

    def adapters(self) -> str:
        """Replace adapters twice; each time responses must be of the new ones."""
        import peft

        config = peft.LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model: Any = peft.get_peft_model(self.models[0], config)
        said = []
        for version in (1, 2):
            torch.manual_seed(version)
            with torch.no_grad():
                for name, tensor in model.named_parameters():
                    if "lora_B" in name:
                        tensor.normal_(std=0.02)
            begin = time.perf_counter()
            named = dict(adapter_tensors(model, lambda tensor: tensor))
            self.engine.update_adapters(named, config, version)
            took = time.perf_counter() - begin
            results = self.generate(requests(32, new=48))
            found = self.agree(results, model)
            with model.disable_adapter():
                without = self.differ(results, model)
            if not found < without / 3:
                raise AssertionError(f"differs by {found:.4f}, by {without:.4f} without adapters")
            said.append(f"{1e3 * took:.0f} ms, differs by {found:.5f} (without {without:.3f})")
        return "; ".join(said)
