"""`generate` and continuous batching of transformers, for `benchmarks.generation`."""

from __future__ import annotations

import time
from typing import Any

import generation_model
from answer import serve


class Transformers:
    """Generates with transformers alone."""

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
        continuous: bool = False,
    ) -> str:
        """Load the model.

        Args:
            folder: Of the model.
            threads: Of torch.
            precision: `fp32` or `bf16`.
            length: Most tokens of a sequence.
            rows: Sequences at a time.
            continuous: Use its continuous batching.

        Returns:
            How it computes.
        """
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self._continuous = continuous
        self._rows = rows
        return "generate_batch" if continuous else "generate"

    def generate(
        self, prompts: list[list[int]], n: int, tokens: int, ends: bool, seed: int
    ) -> dict[str, float]:
        """See `generation_rlinf.Ours.generate`."""
        import torch

        torch.manual_seed(seed)
        repeated = [prompt for prompt in prompts for _ in range(n)]
        begin = time.perf_counter()
        if self._continuous:
            # It computes in a thread of its own, which could not write into inference tensors.
            made = self._batched(repeated, tokens, ends)
        else:
            with torch.inference_mode():
                made = self._plain(repeated, tokens, ends)
        return {"tokens": made, "seconds": time.perf_counter() - begin}

    def _plain(self, prompts: list[list[int]], tokens: int, ends: bool) -> int:
        import torch

        longest = max(map(len, prompts))
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self._model.device
        keys: dict[str, Any] = {} if ends else {"min_new_tokens": tokens}
        out = self._model.generate(
            torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            do_sample=True,
            top_k=0,
            max_new_tokens=tokens,
            **keys,
        )
        made = out[:, longest:]
        return int((made != 0).sum()) if ends else made.numel()

    def _batched(self, prompts: list[list[int]], tokens: int, ends: bool) -> int:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        generation = GenerationConfig(
            do_sample=True,
            top_k=0,
            max_new_tokens=tokens,
            eos_token_id=1 if ends else -1,
            pad_token_id=0,
        )
        options = ContinuousBatchingConfig(
            max_requests_per_batch=self._rows, return_logprobs=True, page_size=32
        )
        done = self._model.generate_batch(
            inputs=prompts,
            generation_config=generation,
            continuous_batching_config=options,
            persistent_manager=True,
        )
        # It logs what goes wrong, and returns what it has.
        errors = {str(result.error) for result in done.values() if result.error is not None}
        if errors or len(done) < len(prompts):
            raise RuntimeError(
                f"{len(done)} of {len(prompts)} requests came back; errors: {sorted(errors)[:3]}"
            )
        return sum(len(result.generated_tokens) for result in done.values())


if __name__ == "__main__":
    serve(Transformers())
