"""TRL's GRPOTrainer, for `benchmarks.reasoning`; its interpreter needs trl."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from answer import serve


def arithmetic(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 if what follows the last `;` is the sum; as our reward of that name."""
    pairs = zip(completions, answer, strict=True)
    return [float(text.rpartition(";")[2] == str(sum_)) for text, sum_ in pairs]


def parity(completions: list[str], **_: Any) -> list[float]:
    """Return whether the code points of a text add up to an odd number.

    As `benchmarks.parity_reward`.
    """
    return [float(sum(map(ord, text)) % 2) for text in completions]


REWARDS = {"arithmetic": arithmetic, "parity": parity}


class Trl:
    """Trains with `trl.GRPOTrainer`, generation by transformers."""

    def prepare(self, folder: str, threads: int, precision: str, reward: str) -> str:
        """Remember what to train.

        Args:
            folder: model, tokenizer and prompts; see `reasoning_model`.
            threads: of torch.
            precision: `fp32`, or `bf16` for weights and all.
            reward: one of `REWARDS`.

        Returns:
            How it computes.
        """
        import torch
        import transformers
        import trl

        torch.set_num_threads(threads)
        self._folder, self._precision, self._reward = folder, precision, REWARDS[reward]
        return f"trl {trl.__version__}, transformers {transformers.__version__}"

    def train(
        self, updates: int, groups: int, samples: int, tokens: int, micro_batch: int, lr: float
    ) -> dict[str, float]:
        """Train from the model of the folder.

        Args:
            updates: how many count; one more, before them, does not.
            groups: prompts of an update.
            samples: responses to each.
            tokens: most tokens of a response.
            micro_batch: sequences per forward and backward pass.
            lr: learning rate.

        Returns:
            Seconds per update, mean length of responses, and mean score.
        """
        import torch
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        ends: list[float] = []
        logs: list[dict[str, float]] = []

        class Clock(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                ends.append(time.perf_counter())

            def on_log(self, *_: Any, **keys: Any) -> None:
                logs.append(dict(keys.get("logs") or {}))

        small = self._precision == "fp32"
        cuda = torch.cuda.is_available()
        tokenizer = AutoTokenizer.from_pretrained(self._folder, padding_side="left")
        dtype = torch.float32 if small else torch.bfloat16
        model = AutoModelForCausalLM.from_pretrained(self._folder, dtype=dtype)
        lines = (Path(self._folder) / "prompts.jsonl").read_text().splitlines()
        with tempfile.TemporaryDirectory() as place:
            config = GRPOConfig(
                output_dir=place,
                per_device_train_batch_size=micro_batch,
                gradient_accumulation_steps=groups * samples // micro_batch,
                num_generations=samples,
                max_completion_length=tokens,
                max_steps=updates + 1,
                learning_rate=lr,
                lr_scheduler_type="constant",
                weight_decay=0.0,
                max_grad_norm=1.0,
                temperature=1.0,
                beta=0.0,
                num_iterations=1,
                loss_type="dapo",
                use_vllm=False,
                bf16=not small,
                use_cpu=not cuda,
                gradient_checkpointing=False,
                logging_steps=updates + 1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                dataloader_pin_memory=cuda,
            )
            trainer = GRPOTrainer(
                model,
                reward_funcs=self._reward,
                args=config,
                train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
                processing_class=tokenizer,
                callbacks=[Clock()],
            )
            trainer.train()
        seconds = (ends[-1] - ends[0]) / updates

        def mean(name: str) -> float:
            return statistics.mean([log[name] for log in logs if name in log] or [float("nan")])

        return {
            "seconds": seconds,
            "length": mean("completions/mean_length"),
            "score": mean("reward"),
        }

    def stop(self) -> None:
        """Nothing is to be ended."""


if __name__ == "__main__":
    serve(Trl())
