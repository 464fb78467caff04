"""A language model to talk to: the policy of a run, or a model folder, with its own prompts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf.config.task_types import GENERATING
from rlinf.data.datasets.base import Message
from rlinf.data.prompt_encoder import PromptEncoder
from rlinf.data.tokenizer import load_tokenizer
from rlinf.hybrid_engines.fsdp.checkpoint import read_model
from rlinf.hybrid_engines.generation import EngineSettings, GenerationRequest, SamplingParams
from rlinf.hybrid_engines.generation.hf.streaming import StreamingEngine
from rlinf.hybrid_engines.generation.requests import FinishReason
from rlinf.models import get_model
from rlinf.models.causal_lm.load import load_causal_lm, transformers_module
from rlinf.models.evaluated import ANY_TYPE
from rlinf.models.settings import complete
from rlinf.utils.checkpoint import Checkpoint
from rlinf.utils.runs.folders import shown

LENGTH = 4096
"""Most tokens of a conversation; of a run with longer sequences, as many as those have."""


@dataclass(frozen=True)
class Wishes:
    """What the user wants otherwise than the model's own settings say.

    Attributes:
        temperature: None is the model's own.
        max_new_tokens: None is the model's own.
        greedy: Take the likeliest token each time.
        seed: Of the noise; the same seed and prompts give the same answers.
    """

    temperature: float | None = None
    max_new_tokens: int | None = None
    greedy: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"--seed is {self.seed}: 0 or more is needed")
        # Complains about a wrong value before anything is loaded.
        self.applied_to(SamplingParams())

    def applied_to(self, params: SamplingParams) -> SamplingParams:
        """Return settings of a model with what the user wants."""
        changes: dict[str, Any] = {}
        if self.temperature is not None:
            changes["temperature"] = self.temperature
        if self.greedy:
            changes["temperature"] = 0.0
        if self.max_new_tokens is not None:
            changes["max_new_tokens"] = self.max_new_tokens
        return replace(params, **changes)


@dataclass(frozen=True)
class Answer:
    """What a model said.

    Attributes:
        text: Without special tokens.
        reason: `stop` if the model ended it, `length` if it was cut, `abort` if the user did.
        tokens: Tokens of it.
    """

    text: str
    reason: FinishReason
    tokens: int


class ChatModel:
    """A language model and the way to ask it.

    Args:
        name: What it is, in words.
        engine: Generates.
        tokenizer: Of the model.
        data: A `data` section: `apply_chat_template`, `system_prompt`, `prompt_template`.
        params: How tokens are drawn.

    Attributes:
        has_turns: Whether it is asked with all that was said before; otherwise each prompt stands
            alone.
    """

    def __init__(
        self,
        name: str,
        engine: StreamingEngine,
        tokenizer: Any,
        data: Any,
        params: SamplingParams,
    ):
        self.name = name
        self.params = params
        self.has_turns: bool = data.apply_chat_template
        self._engine, self._tokenizer = engine, tokenizer
        self._encoder = PromptEncoder(tokenizer, data)
        self._template: str = data.prompt_template
        self._asked = 0

    def message(self, prompt: str) -> Message:
        """Return what the user says as a message, in the words that the model was trained with."""
        return {"role": "user", "content": self._template.replace("{prompt}", prompt)}

    def answer(
        self,
        said: Sequence[Message],
        prompt: str,
        show: Callable[[str], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Answer a prompt.

        Args:
            said: Messages before it; only models with turns are asked with them.
            prompt: What the user wants to know.
            show: Called with each new piece of the answer.
            stop: Asked before each token; true ends the answer.

        Raises:
            ValueError: The prompt cannot be encoded, or there is no room for it.
        """
        asked = [*said, self.message(prompt)] if self.has_turns else prompt
        _, tokens = self._encoder.encode(asked)
        params, length = self.params, self._engine.max_length
        room = length - len(tokens)
        if room < 1:
            before = " with all that was said before" if said else ""
            raise ValueError(
                f"the prompt has {len(tokens)} tokens{before}, and a conversation has at most "
                f"{length} with the answer; {'/new begins another' if said else 'shorten it'}"
            )
        if params.max_new_tokens is not None:
            params = replace(params, max_new_tokens=min(room, params.max_new_tokens))
        self._asked += 1
        text = _GrowingText(self._tokenizer, show)
        request = GenerationRequest(self._asked, tokens, params)
        result = self._engine.stream(request, text.add, stop)
        text.finish()
        return Answer(text.shown, result.finish_reason, len(result.token_ids))


class _GrowingText:
    """Turns tokens into text piece by piece.

    A character may have several tokens; a piece that ends within one waits for the rest.
    """

    def __init__(self, tokenizer: Any, show: Callable[[str], None]):
        self.shown = ""
        self._tokenizer, self._show = tokenizer, show
        self._tokens: list[int] = []

    def add(self, token: int) -> None:
        self._tokens.append(token)
        text = self._text()
        if not text.endswith("\ufffd"):
            self._show_rest(text)

    def finish(self) -> None:
        self._show_rest(self._text())

    def _text(self) -> str:
        # As rewards see it.
        return self._tokenizer.decode(self._tokens, skip_special_tokens=True)

    def _show_rest(self, text: str) -> None:
        if len(text) > len(self.shown):
            self._show(text[len(self.shown) :])
            self.shown = text


# -- loading ---------------------------------------------------------------------------------------


def load_chat_model(path: str, wishes: Wishes) -> ChatModel:
    """Load a model into this process.

    Args:
        path: Folder of a run, an experiment, a checkpoint, or a model in Hugging Face layout.
        wishes: What the user wants otherwise than the model's own settings say.

    Raises:
        ValueError: There is no model, or none of language.
    """
    folder = Path(path).expanduser()
    # A name of a checkpoint gets an answer that says which ones there are.
    if not folder.is_dir() and not folder.name.startswith("global_step_"):
        logs = Path("logs") / path
        hint = f"; did you mean {logs}?" if logs.is_dir() else "."
        raise ValueError(
            f"there is no folder {path}{hint} It must be that of a run, an experiment, a "
            "checkpoint (.../global_step_<N>), or a model in Hugging Face layout"
        )
    transformers_module().utils.logging.disable_progress_bar()
    if (folder / "config.json").is_file():
        return _of_folder(folder, wishes)
    return _of_checkpoint(Checkpoint.find(folder), wishes)


def _of_folder(folder: Path, wishes: Wishes) -> ChatModel:
    if json.loads((folder / "config.json").read_text()).get("model_type") == "rlinf_policy":
        raise ValueError(
            f"{folder} is a policy that acts in an env, and chat is for language models; "
            "its README.md shows how to use it"
        )
    network = complete({"model_type": ANY_TYPE, "model_path": str(folder)}, None)
    precision = "bf16" if torch.cuda.is_available() else "fp32"
    engine = _engine(network, precision, LENGTH, wishes.seed)
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
    return ChatModel(str(shown(folder)), engine, tokenizer, data, wishes.applied_to(params))


def _of_checkpoint(checkpoint: Checkpoint, wishes: Wishes) -> ChatModel:
    config, place = checkpoint.manifest.get("config"), shown(checkpoint.path)
    if config is None:
        raise ValueError(
            f"{place} does not say of which model it is: it was not written by a run of `rlinf "
            "train`; give the checkpoint of one"
        )
    runner = config["runner"]
    if runner["task_type"] not in GENERATING:
        raise ValueError(
            f"{place} is the policy of an {runner['task_type']} run, and chat is for language "
            f"models; see how it acts with: rlinf eval {place}"
        )
    actor = config["actor"]
    network = complete(actor["model"], None)
    tokenizer = load_tokenizer(OmegaConf.create(actor["tokenizer"]), network.model_path)
    on_rollout = (config["rollout"].get("model") or {}).get("precision")
    precision = (on_rollout or network.precision) if torch.cuda.is_available() else "fp32"
    section = SimpleNamespace(**config["algorithm"]["sampling_params"])
    tokens = {text: tokenizer.encode(text, add_special_tokens=False) for text in section.stop}
    with tempfile.TemporaryDirectory(prefix="rlinf-tokenizer-") as folder:
        tokenizer.save_pretrained(folder)
        length = max(LENGTH, runner["seq_length"])
        engine = _engine(network, precision, length, wishes.seed, folder)
    policy = get_model(network, dtype=torch.float32)
    policy.load_state_dict(read_model(checkpoint.path / "actor" / "tensors"))
    engine.update_weights(policy.policy_tensors(lambda tensor: tensor), checkpoint.step)
    ends = [tokenizer.eos_token_id, *(ids[0] for ids in tokens.values() if len(ids) == 1)]
    texts = tuple(text for text, ids in tokens.items() if len(ids) > 1)
    params = SamplingParams.from_config(section, stop_token_ids=ends, stop=texts)
    name = f"{runner['logger']['experiment_name']}, global step {checkpoint.step} ({place})"
    data = SimpleNamespace(**config["data"])
    return ChatModel(name, engine, tokenizer, data, wishes.applied_to(params))


def _engine(
    network: Any, precision: str, length: int, seed: int, tokenizer: str | None = None
) -> StreamingEngine:
    """Build an engine for one response at a time.

    Args:
        network: A model section, complete; weights are those of its folder, or random.
        precision: Number format to compute in.
        length: Tokens of a sequence; fewer if the model was made for fewer.
        seed: Of the noise.
        tokenizer: Folder of the tokenizer, for texts that end a response; None does without.
    """
    model = load_causal_lm(network, torch.float32)
    most = getattr(model.config, "max_position_embeddings", None)
    settings = EngineSettings(
        max_length=length if most is None else min(length, most),
        model=model,
        precision=precision,
        max_running=1,
        seed=seed,
        tokenizer_path=tokenizer,
    )
    return StreamingEngine.from_settings(settings)
