"""A language model from a run, a checkpoint or a model folder, in an engine of this process."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf.cli.runs.find import not_a_run
from rlinf.config.task_types import GENERATING
from rlinf.data.tokenizer import load_tokenizer, stops_of
from rlinf.hybrid_engines.fsdp.checkpoint import read_model
from rlinf.hybrid_engines.generation import EngineSettings, SamplingParams
from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.models import get_model
from rlinf.models.causal_lm.load import load_causal_lm, transformers_module
from rlinf.models.evaluated import ANY_TYPE
from rlinf.models.settings import complete
from rlinf.utils.checkpoint import Checkpoint
from rlinf.utils.runs.folders import shown

LENGTH = 4096
"""Most tokens of a conversation; of a run with longer sequences, as many as those have."""


@dataclass(frozen=True)
class LanguageModel:
    """A model with what it takes to ask it.

    Attributes:
        name: What it is, in words.
        short_name: Name of its run, or of its folder.
        engine: Generates.
        tokenizer: Of the model.
        data: A `data` section: `apply_chat_template`, `system_prompt`, `prompt_template`.
        params: How tokens are drawn by default.
        parser: Format of the tool calls that it was trained with; None if there are none.
        run: Folder of its run; that of the model if there is no run.
    """

    name: str
    short_name: str
    engine: Any
    tokenizer: Any
    data: Any
    params: SamplingParams
    parser: str | None
    run: Path


def load_language_model(
    path: str,
    command: str,
    engine: type[HFEngine] = HFEngine,
    *,
    max_running: int,
    seed: int = 0,
    device: str | None = None,
) -> LanguageModel:
    """Load a model into this process.

    Args:
        path: Folder of a run, an experiment, a checkpoint, or a model in Hugging Face layout.
        command: For messages: what it is for.
        engine: Kind of the engine.
        max_running: Responses at a time.
        seed: Of the noise.
        device: To compute on; None is CUDA if there is any.

    Raises:
        ValueError: There is no model, or none of language.
    """
    folder = Path(path).expanduser()
    # A name of a checkpoint gets an answer that says which ones there are.
    if not folder.is_dir() and not folder.name.startswith("global_step_"):
        said = not_a_run(path)
        raise ValueError(
            f"{said if said.endswith('?') else f'{said}.'} Give the folder of a run, an "
            "experiment, a checkpoint (.../global_step_<N>), or a model in Hugging Face layout"
        )
    transformers_module().utils.logging.disable_progress_bar()

    def build(network: Any, precision: str, length: int, tokenizer: str | None = None) -> HFEngine:
        model = load_causal_lm(network, torch.float32)
        most = getattr(model.config, "max_position_embeddings", None)
        settings = EngineSettings(
            max_length=length if most is None else min(length, most),
            model=model,
            precision=precision,
            max_running=max_running,
            seed=seed,
            device=device,
            tokenizer_path=tokenizer,
        )
        return engine.from_settings(settings)

    if (folder / "config.json").is_file():
        return _of_folder(folder, command, build)
    return _of_checkpoint(Checkpoint.find(folder), command, build)


def _of_folder(folder: Path, command: str, build: Any) -> LanguageModel:
    if json.loads((folder / "config.json").read_text()).get("model_type") == "rlinf_policy":
        raise ValueError(
            f"{folder} is a policy that acts in an env, and {command} is for language models; "
            "its README.md shows how to use it"
        )
    network = complete({"model_type": ANY_TYPE, "model_path": str(folder)}, None)
    engine = build(network, "bf16" if torch.cuda.is_available() else "fp32", LENGTH)
    tokenizer = load_tokenizer(str(folder))
    data = SimpleNamespace(
        apply_chat_template=bool(tokenizer.chat_template),
        system_prompt=None,
        prompt_template="{prompt}",
    )
    # As transformers itself would generate with this folder.
    own = engine.model.generation_config
    drawn = {"temperature": 0.0}
    if own.do_sample:
        drawn = {name: getattr(own, name) for name in ("temperature", "top_k", "top_p")}
    known = {name: value for name, value in drawn.items() if value is not None}
    params = SamplingParams(stop_token_ids=(tokenizer.eos_token_id,), **known)
    place, name = str(shown(folder)), folder.resolve().name
    return LanguageModel(place, name, engine, tokenizer, data, params, None, folder)


def _of_checkpoint(checkpoint: Checkpoint, command: str, build: Any) -> LanguageModel:
    config, place = checkpoint.manifest.get("config"), shown(checkpoint.path)
    if config is None:
        raise ValueError(
            f"{place} does not say of which model it is: it was not written by a run of `rlinf "
            "train`; give the checkpoint of one"
        )
    runner = config["runner"]
    if runner["task_type"] not in GENERATING:
        raise ValueError(
            f"{place} is the policy of an {runner['task_type']} run, and {command} is for language "
            f"models; see how it acts with: rlinf eval {place}"
        )
    actor = config["actor"]
    network = complete(actor["model"], None)
    tokenizer = load_tokenizer(OmegaConf.create(actor["tokenizer"]), network.model_path)
    on_rollout = (config["rollout"].get("model") or {}).get("precision")
    precision = (on_rollout or network.precision) if torch.cuda.is_available() else "fp32"
    with tempfile.TemporaryDirectory(prefix="rlinf-tokenizer-") as folder:
        # For texts of several tokens that end a response.
        tokenizer.save_pretrained(folder)
        engine = build(network, precision, max(LENGTH, runner["seq_length"]), folder)
    policy = get_model(network, dtype=torch.float32)
    policy.load_state_dict(read_model(checkpoint.path / "actor" / "tensors"))
    engine.update_weights(policy.policy_tensors(lambda tensor: tensor), checkpoint.step)
    section = SimpleNamespace(**config["algorithm"]["sampling_params"])
    ends, texts = stops_of(tokenizer, section.stop)
    params = SamplingParams.from_config(section, stop_token_ids=ends, stop=texts)
    experiment = runner["logger"]["experiment_name"]
    name = f"{experiment}, global step {checkpoint.step} ({place})"
    data = SimpleNamespace(**config["data"])
    parser = (config.get("agentloop") or {}).get("parser")
    run = checkpoint.path.resolve().parents[1]
    return LanguageModel(name, experiment, engine, tokenizer, data, params, parser, run)
