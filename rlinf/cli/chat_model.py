"""A language model to talk to: the policy of a run, or a model folder, with its own prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlinf.cli.language_model import load_language_model
from rlinf.data.datasets.base import Message
from rlinf.data.prompt_encoder import PromptEncoder
from rlinf.hybrid_engines.generation import GenerationRequest, SamplingParams
from rlinf.hybrid_engines.generation.hf.streaming import StreamingEngine
from rlinf.hybrid_engines.generation.requests import FinishReason


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
    found = load_language_model(path, "chat", StreamingEngine, max_running=1, seed=wishes.seed)
    params = wishes.applied_to(found.params)
    return ChatModel(found.name, found.engine, found.tokenizer, found.data, params)
