"""A stand-in for `sglang`: changes its process and takes loops as the real engine does.

What it does was read from versions 0.5.11, 0.5.13 and 0.5.17. It computes with transformers.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

VARIABLE = "NCCL_CUMEM_ENABLE"


class Policy(asyncio.DefaultEventLoopPolicy):
    """In the place of uvloop's."""


def install(version: str = "0.5.13") -> None:
    """Let `import sglang` find this."""
    module = ModuleType("sglang")
    module.Engine, module.__version__ = Engine, version
    sys.modules["sglang"] = module


class Engine:
    """As `sglang.Engine`."""

    def __init__(self, **keys: Any) -> None:
        from transformers import AutoModelForCausalLM

        asyncio.set_event_loop_policy(Policy())
        threading._register_atexit = lambda *args, **kwargs: None
        os.environ[VARIABLE] = "0"
        os.environ["SGLANG_RUN_ID"] = "1"
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, lambda *_: os._exit(3))
        multiprocessing.set_start_method("spawn", force=True)
        self.keys = keys
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        if keys["model_path"].endswith("broken"):
            # A process that fails at the start tells its parent so, and then the parent sees it.
            os.kill(os.getpid(), signal.SIGQUIT)
            self.child.kill()
            raise RuntimeError("Rank 0 scheduler died during initialization")
        self.model = AutoModelForCausalLM.from_pretrained(keys["model_path"]).eval()
        self.tokenizer_manager = SimpleNamespace(abort_request=self._abort)
        self.known: set[str] = set()
        self.aborted: set[str] = set()
        self.calls: list[Any] = []
        self.asked: list[Any] = []
        self.stuck: tuple[str, ...] = ()
        self.refuses = ""
        self.slow = False
        self.busy, self.flushed = 0, False
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)

    def get_all_child_pids(self) -> list[int]:
        return [self.child.pid]

    def _abort(self, rid: str) -> None:
        # It sends a message, whose future belongs to the loop of the thread.
        assert asyncio.get_event_loop() is self.loop
        if rid in self.known:
            self.aborted |= {each for each in self.known if each.startswith(rid)}

    async def async_generate(
        self, *, input_ids: list[int], sampling_params: dict[str, Any], return_logprob: bool, rid=""
    ) -> dict[str, Any]:
        assert return_logprob and asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        self.known.add(rid)
        self.asked.append((rid, list(input_ids), sampling_params))
        tokens, made, reason = list(input_ids), [], {"type": "length"}
        for _ in range(sampling_params["max_new_tokens"]):
            await asyncio.sleep(0.01 if self.slow else 0)
            if rid in self.aborted and not made:
                reason = {"type": "abort", "message": "Abort in waiting queue"}
                break
            made.append(self._next(tokens, sampling_params))
            tokens.append(made[-1][1])
            if rid in self.aborted:
                # After one more step, and whether or not it was the last one.
                reason = {"type": "abort", "message": "Aborted"}
                break
            if tokens[-1] in sampling_params["stop_token_ids"]:
                reason = {"type": "stop"}
                break
        self.known.discard(rid)
        self.busy = 2
        meta = {"finish_reason": reason, "output_token_logprobs": made}
        meta["completion_tokens"] = len(made)
        return {"output_ids": [entry[1] for entry in made], "meta_info": meta}

    @torch.no_grad()
    def _next(self, tokens: list[int], params: dict[str, Any]) -> tuple[float, int, None]:
        logits = self.model(torch.tensor([tokens])).logits[0, -1].float()
        scores = (logits / (params["temperature"] or 1.0)).log_softmax(-1)
        token = scores.argmax() if params["temperature"] == 0 else scores.exp().multinomial(1)[0]
        return float(scores[token]), int(token), None

    def update_weights_from_tensor(self, named_tensors: list, flush_cache: bool = True):
        return self.loop.run_until_complete(self._update(named_tensors, flush_cache))

    async def _update(self, named_tensors: list, flush_cache: bool) -> tuple[bool, str]:
        self.calls.append(("weights", len(named_tensors)))
        assert not flush_cache, "it would end itself while it is busy"
        if self.refuses:
            return False, self.refuses
        kept = {n: t for n, t in named_tensors if not any(part in n for part in self.stuck)}
        self.model.load_state_dict(kept, strict=False)
        return True, ""

    def flush_cache(self) -> SimpleNamespace:
        """Fails for a moment after a request, as long as its batch is not through."""
        self.loop.run_until_complete(asyncio.sleep(0))
        self.busy -= 1
        self.flushed = self.busy < 0
        return SimpleNamespace(success=self.flushed, message="")

    def release_memory_occupation(self, tags: list[str]) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))
        self.calls.append(("release", tags))

    def resume_memory_occupation(self, tags: list[str]) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))
        self.calls.append(("resume", tags))

    def shutdown(self) -> None:
        self.calls.append(("shutdown",))
        self.child.kill()
        self.child.wait()
