"""Our generation engine, for `benchmarks.generation`."""

from __future__ import annotations

import time
from typing import Any

import generation_model
from answer import serve


class Ours:
    """Generates with `rollout_backend: hf`, log-probabilities included."""

    def make(self, shape: str, folder: str) -> dict[str, float]:
        """See `generation_model.make`."""
        return generation_model.make(shape, folder)

    def prepare(
        self,
        folder: str,
        threads: int,
        precision: str,
        length: int,
        rows: int,
        paged: bool = False,
    ) -> str:
        """Build the engine.

        Returns:
            How it computes.
        """
        import torch

        from rlinf.hybrid_engines.generation import EngineSettings, build_engine

        torch.set_num_threads(threads)
        settings = EngineSettings(
            max_length=length,
            model_path=folder,
            precision=precision,
            max_running=rows,
            options={"paged_cache": paged},
        )
        self._engine = build_engine("hf", settings)
        return f"{self._engine.path}, paged" if paged else self._engine.path

    def generate(
        self, prompts: list[list[int]], n: int, tokens: int, ends: bool, seed: int
    ) -> dict[str, float]:
        """Generate n responses to each prompt.

        Args:
            prompts: Tokens.
            n: Responses each.
            tokens: Most tokens of a response.
            ends: Whether a response may end sooner.
            seed: Of the noise.

        Returns:
            `tokens` made and `seconds` taken.
        """
        from rlinf.hybrid_engines.generation import GenerationRequest, SamplingParams

        requests = [
            GenerationRequest(
                index,
                prompt,
                SamplingParams(tokens, ignore_eos=not ends, seed=seed * 100_000 + index),
                n,
            )
            for index, prompt in enumerate(prompts)
        ]
        begin = time.perf_counter()
        results: list[Any] = self._engine.generate(requests)
        seconds = time.perf_counter() - begin
        return {"tokens": sum(len(r.token_ids) for r in results), "seconds": seconds}


if __name__ == "__main__":
    serve(Ours())
