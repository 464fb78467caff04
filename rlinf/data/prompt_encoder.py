"""From the prompt of a record to what the model sees: templates and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlinf.agents.templates import ChatFormat
from rlinf.data.datasets.base import Message
from rlinf.data.tokenizer import tokens_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptEncoder:
    """Turns the prompt of a record into text and tokens.

    Attributes:
        chat: Renders conversations; None if there is no chat template.

    Args:
        tokenizer: What `load_tokenizer` returns.
        cfg: The `data` section.
        tools: Schemas of the tools that the chat template tells the model of.

    Raises:
        ValueError: The chat template is asked for and the tokenizer has none.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        cfg: Any,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._system, self._template = cfg.system_prompt, cfg.prompt_template
        if cfg.apply_chat_template and not tokenizer.chat_template:
            raise ValueError(
                "data.apply_chat_template is true, but the tokenizer has no chat template; set it "
                "to false, or use the tokenizer of an instruction-tuned model"
            )
        self.chat = ChatFormat(tokenizer, tools) if cfg.apply_chat_template else None

    def encode(self, prompt: str | list[Message]) -> tuple[str, list[int]]:
        """Return the text that the model sees, and its tokens.

        Raises:
            ValueError: Messages without a chat template, or text that cannot be encoded.
        """
        if self.chat is None:
            if not isinstance(prompt, str):
                raise ValueError(
                    "a prompt is a list of messages; set data.apply_chat_template to true"
                )
            text = self._template.replace("{prompt}", prompt)
            return text, self._plain(text)
        text = self.chat.render(self.messages(prompt) or [], to_answer=True)
        # The template has written all special tokens already.
        return text, tokens_of(self._tokenizer, text, add_special_tokens=False)

    def messages(self, prompt: str | list[Message]) -> list[Message] | None:
        """Return the messages that the chat template gets; None if there is no template."""
        if self.chat is None:
            return None
        if isinstance(prompt, str):
            text = self._template.replace("{prompt}", prompt)
            prompt = [{"role": "user", "content": text}]
        if self._system is not None:
            prompt = [{"role": "system", "content": self._system}, *prompt]
        return prompt

    def _plain(self, text: str) -> list[int]:
        ids = tokens_of(self._tokenizer, text, add_special_tokens=True)
        # Some tokenizers end every text; a prompt goes on.
        return ids[:-1] if ids and ids[-1] == self._tokenizer.eos_token_id else ids
