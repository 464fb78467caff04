"""From the prompt of a record to what the model sees: templates and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf.data.datasets.base import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptEncoder:
    """Turns the prompt of a record into text and tokens.

    Args:
        tokenizer: What `load_tokenizer` returns.
        cfg: The `data` section.

    Raises:
        ValueError: The chat template is asked for and the tokenizer has none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, cfg: Any) -> None:
        self._tokenizer = tokenizer
        self._chat = cfg.apply_chat_template
        self._system, self._template = cfg.system_prompt, cfg.prompt_template
        if self._chat and not tokenizer.chat_template:
            raise ValueError(
                "data.apply_chat_template is true, but the tokenizer has no chat template; set it "
                "to false, or use the tokenizer of an instruction-tuned model"
            )

    def encode(self, prompt: str | list[Message]) -> tuple[str, list[int]]:
        """Return the text that the model sees, and its tokens.

        Raises:
            ValueError: Messages without a chat template, or text that cannot be encoded.
        """
        if isinstance(prompt, str):
            prompt = self._template.replace("{prompt}", prompt)
            if not self._chat:
                return prompt, self._plain(prompt)
            prompt = [{"role": "user", "content": prompt}]
        if not self._chat:
            raise ValueError("a prompt is a list of messages; set data.apply_chat_template to true")
        if self._system is not None:
            prompt = [{"role": "system", "content": self._system}, *prompt]
        text = self._tokenizer.apply_chat_template(
            prompt, tokenize=False, add_generation_prompt=True
        )
        # The template has written all special tokens already.
        return text, self._ids(text, add_special_tokens=False)

    def solution(self, text: str) -> list[int]:
        """Return the tokens of a worked solution, with the end token."""
        return [*self._ids(text, add_special_tokens=False), self._tokenizer.eos_token_id]

    def _plain(self, text: str) -> list[int]:
        ids = self._ids(text, add_special_tokens=True)
        # Some tokenizers end every text; a prompt goes on.
        return ids[:-1] if ids and ids[-1] == self._tokenizer.eos_token_id else ids

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except Exception as error:
            known = "" if len(self._tokenizer) > 512 else f"; it knows {self._alphabet()!r}"
            raise ValueError(
                f"the tokenizer cannot encode {text[:80]!r} ({error}){known}"
            ) from error

    def _alphabet(self) -> str:
        tokens = sorted(self._tokenizer.get_vocab(), key=self._tokenizer.get_vocab().get)
        return "".join(token for token in tokens if len(token) == 1)
