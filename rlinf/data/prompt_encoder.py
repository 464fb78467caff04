"""From the prompt of a record to what the model sees: templates and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlinf.data.datasets.base import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptEncoder:
    """Turns the prompt of a record into text and tokens.

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
        self._tools = [dict(schema) for schema in tools] or None
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
        if not self._chat:
            if not isinstance(prompt, str):
                raise ValueError(
                    "a prompt is a list of messages; set data.apply_chat_template to true"
                )
            text = self._template.replace("{prompt}", prompt)
            return text, self._plain(text)
        text = self._tokenizer.apply_chat_template(
            self.messages(prompt), tools=self._tools, tokenize=False, add_generation_prompt=True
        )
        # The template has written all special tokens already.
        return text, self._ids(text, add_special_tokens=False)

    def messages(self, prompt: str | list[Message]) -> list[Message] | None:
        """Return the messages that the chat template gets; None if there is no template."""
        if not self._chat:
            return None
        if isinstance(prompt, str):
            text = self._template.replace("{prompt}", prompt)
            prompt = [{"role": "user", "content": text}]
        if self._system is not None:
            prompt = [{"role": "system", "content": self._system}, *prompt]
        return prompt

    def solution(self, solution: str | list[Message]) -> tuple[list[int], list[bool]]:
        """Return the tokens of a worked solution, with the end token, and which are learnt.

        Args:
            solution: See `Record.solution`.

        Raises:
            ValueError: Text that cannot be encoded, or messages for the chat template, whose
                tokens depend on it.
        """
        if isinstance(solution, str):
            solution = [{"role": "assistant", "content": solution}]
        elif self._chat:
            raise ValueError(
                "a worked solution is a list of messages, and data.apply_chat_template is true: "
                "solutions of several turns are for formats in which tools answer in the text"
            )
        ids: list[int] = []
        learnt: list[bool] = []
        for message in solution:
            part = self._ids(message["content"], add_special_tokens=False)
            if message.get("ends"):
                part = [*part, self._tokenizer.eos_token_id]
            ids += part
            learnt += [message["role"] == "assistant"] * len(part)
        return [*ids, self._tokenizer.eos_token_id], [*learnt, True]

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


def encoder_of_run(cfg: Any, tokenizer: PreTrainedTokenizerBase) -> PromptEncoder:
    """Make the encoder of a whole config; agents tell their chat template of their tools."""
    tools: Sequence[Mapping[str, Any]] = ()
    if cfg.get("agentloop") is not None:
        from rlinf.agents.loops import schemas_for_template

        tools = schemas_for_template(cfg.agentloop)
    return PromptEncoder(tokenizer, cfg.data, tools)
