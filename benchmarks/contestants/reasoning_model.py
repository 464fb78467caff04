"""What all contestants of a GRPO benchmark share: a model, its tokenizer and prompts, in a folder.

The folder has the layout of Hugging Face, and `prompts.jsonl` with `prompt` and `answer` per line.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from generation_model import SHAPES

PROMPTS = "prompts.jsonl"
FIRST_CHARACTER = 0x100
"""Characters from here on have no meaning for a tokenizer that cleans texts up."""


def make_arithmetic(folder: Path, recipe: str, prompts: int) -> int:
    """Return the model of a recipe after its supervised steps, and the first prompts of its run.

    Args:
        folder: made if absent.
        recipe: name of a recipe with `data.type: arithmetic`.
        prompts: how many.

    Returns:
        Number of weights.
    """
    import torch

    from rlinf.config import build_config, validate_cfg
    from rlinf.data.prompts import PromptStream, training_prompts
    from rlinf.data.tokenizer import tokenizer_of_run
    from rlinf.models import get_model
    from rlinf.workers.actor.learner import LearnerPlace
    from rlinf.workers.actor.reasoning_learner import ReasoningLearner

    cfg = validate_cfg(build_config(recipe))
    torch.manual_seed(cfg.runner.seed)
    model = get_model(cfg.actor.model, dtype=torch.float32)
    learner = ReasoningLearner(cfg, model, LearnerPlace(torch.device("cpu"), seed=cfg.runner.seed))
    tokenizer = tokenizer_of_run(cfg)
    stream = training_prompts(cfg, tokenizer)
    settings = cfg.actor.supervised
    if settings.steps:
        wanted = settings.steps * settings.batch_size
        examples = PromptStream(stream.prompts).take_supervised(wanted)
        learner.supervise([(example.prompt_ids, example.response_ids) for example in examples])
    plain = model.plain
    for config in (plain.config, plain.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    taken = [{"prompt": prompt.text, "answer": prompt.answer} for prompt in stream.take(prompts)]
    _write(folder, taken)
    return sum(parameter.numel() for parameter in model.parameters())


def make_random(folder: Path, shape: str, prompts: int, length: int) -> int:
    """Return a random model with a tokenizer of single characters, and random prompts.

    Args:
        folder: made if absent.
        shape: one of `generation_model.SHAPES`.
        prompts: how many.
        length: tokens of each.

    Returns:
        Number of weights.
    """
    import torch
    import transformers

    from rlinf.data.tokenizer import character_tokenizer

    keys: dict[str, Any] = dict(SHAPES[shape])
    family = keys.pop("family")
    # Two tokens are the end and the padding; surrogates are no characters.
    alphabet = [chr(FIRST_CHARACTER + i) for i in range(0xD800 - FIRST_CHARACTER)]
    alphabet += [chr(0xE000 + i) for i in range(keys["vocab_size"])]
    alphabet = alphabet[: keys["vocab_size"] - 2]
    tokenizer = character_tokenizer("".join(alphabet))
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = getattr(transformers, f"{family}Config")(
        **keys, **ends, bos_token_id=None, max_position_embeddings=4096
    )
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    small = keys["vocab_size"] < 1000
    model.to(torch.float32 if small else torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    chance = random.Random(0)
    texts = ["".join(chance.choices(alphabet, k=length)) for _ in range(prompts)]
    _write(folder, [{"prompt": text, "answer": ""} for text in texts])
    return sum(parameter.numel() for parameter in model.parameters())


def _write(folder: Path, records: list[dict[str, Any]]) -> None:
    lines = [json.dumps(record) for record in records]
    (folder / PROMPTS).write_text("\n".join(lines) + "\n")
