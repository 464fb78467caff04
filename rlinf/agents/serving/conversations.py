"""Token-exact conversations: a client that sends its history again gets the tokens of it.

What an engine wrote is kept, as tokens, under the history that the client saw. A request whose
history is known goes on from these tokens, and only what is new is tokenised. A history that was
altered is not known from there on, and goes on from the longest part of it that is; if there is
none, it is tokenised as a whole. Either way it is a sequence of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.agents.serving.errors import ApiError
from rlinf.agents.serving.messages import Message, digests, for_template
from rlinf.agents.templates import ChatFormat, TemplateRewrites

_MOST_TOKENS = 16_000_000
"""Tokens that are kept of all conversations together; the longest unused ones go first."""
_SCOPES, _LENGTHS = 65536, 256
"""Scopes whose texts are remembered, and lengths of texts of each of them."""


@dataclass(frozen=True)
class Prompt:
    """What an engine is to read.

    Attributes:
        token_ids: The tokens.
        known: How many of them were kept from earlier calls, exactly as they were.
        messages: The conversation as it was rendered: what the model wrote stands as it wrote it.
        rewritten: Whether the history was known, but the template would have changed it.
    """

    token_ids: list[int]
    known: int = 0
    messages: tuple[Message, ...] = ()
    rewritten: bool = False


@dataclass(frozen=True)
class _Kept:
    token_ids: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    """All before the answer, as rendered."""
    answer: str = ""
    """What the model wrote, as text."""
    ended: bool = False
    """Whether the last token is the end token."""


class Kept:
    """What is remembered, by scope and history, up to a number of tokens."""

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._most, self._count = most_tokens, 0
        self._entries: OrderedDict[tuple[str, Any], _Kept] = OrderedDict()

    def get(self, scope: str, key: Any) -> _Kept | None:
        """Return what is kept under a key, and keep it for longer."""
        entry = self._entries.get((scope, key))
        if entry is not None:
            self._entries.move_to_end((scope, key))
        return entry

    def put(self, scope: str, key: Any, entry: _Kept) -> None:
        """Keep something; what was unused for the longest time makes room."""
        self._drop(self._entries.pop((scope, key), None))
        self._entries[scope, key] = entry
        self._count += len(entry.token_ids)
        while self._count > self._most and len(self._entries) > 1:
            self._drop(self._entries.popitem(last=False)[1])

    def _drop(self, entry: _Kept | None) -> None:
        self._count -= 0 if entry is None else len(entry.token_ids)

    def __len__(self) -> int:
        return len(self._entries)


class Conversations:
    """Turns histories into tokens.

    Args:
        tokenizer: Of the model.
        has_template: Whether messages go through the chat template; otherwise a conversation is
            the texts of its messages, one behind the other.
        system_prompt: Message of the system for conversations without one.
        most_tokens: Tokens that are kept.
    """

    def __init__(
        self,
        tokenizer: Any,
        has_template: bool,
        system_prompt: str | None = None,
        most_tokens: int = _MOST_TOKENS,
    ) -> None:
        self._tokenizer = tokenizer
        self.has_template = has_template
        self._system = system_prompt
        self._chats, self._texts = Kept(most_tokens), Kept(most_tokens)
        self._lengths: OrderedDict[str, OrderedDict[int, None]] = OrderedDict()

    # -- chats ----------------------------------------------------------------------------------

    def chat(self, messages: Sequence[Message], tools: Sequence[Any], scope: str = "") -> Prompt:
        """Return the tokens of a conversation up to where the next answer begins.

        Args:
            messages: All of it, as `read_messages` gives them.
            tools: That the model is told of.
            scope: Histories are known within one scope only.
        """
        if tools and not self.has_template:
            raise ApiError(
                "tools is given, but this model has no chat template that could tell it of them; "
                "describe them in the text, and leave tools out",
                param="tools",
            )
        keys = digests(tools, messages)
        for end in range(len(messages) - 1, 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            entry = self._chats.get(scope, keys[end - 1])
            if entry is None:
                continue
            try:
                return self._go_on(entry, messages[end:], tools)
            except TemplateRewrites:
                return self._begin(messages, tools, rewritten=True)
        return self._begin(messages, tools)

    def _begin(
        self, messages: Sequence[Message], tools: Sequence[Any], rewritten: bool = False
    ) -> Prompt:
        rendered = [for_template(message) for message in messages]
        if self._system is not None and rendered[0]["role"] not in ("system", "developer"):
            rendered = [{"role": "system", "content": self._system}, *rendered]
        if self.has_template:
            text = self._rendered(ChatFormat(self._tokenizer, tools), rendered)
            # The template has written all special tokens already.
            ids = self.encode(text)
        else:
            ids = self.encode("".join(message["content"] for message in rendered), begins=True)
        return Prompt(ids, 0, tuple(rendered), rewritten)

    def _rendered(self, chat: ChatFormat, messages: Sequence[Message]) -> str:
        try:
            return chat.render(messages, True)
        except Exception as error:  # Templates raise what they like.
            raise ApiError(
                f"the chat template does not take these messages: {error}", param="messages"
            ) from error

    def _go_on(self, entry: _Kept, new: Sequence[Message], tools: Sequence[Any]) -> Prompt:
        further = [for_template(message) for message in new]
        answer = {"role": "assistant", "content": entry.answer}
        if self.has_template:
            chat = ChatFormat(self._tokenizer, tools)
            try:
                ids = chat.between(entry.messages, answer, further, entry.ended)
            except TemplateRewrites:
                raise
            except Exception as error:
                raise ApiError(
                    f"the chat template does not take these messages: {error}", param="messages"
                ) from error
        else:
            ids = self.encode("".join(message["content"] for message in further))
        messages = (*entry.messages, answer, *further)
        return Prompt([*entry.token_ids, *ids], len(entry.token_ids), messages)

    def keep_chat(
        self,
        prompt: Prompt,
        messages: Sequence[Message],
        tools: Sequence[Any],
        answer: Message,
        response_ids: Sequence[int],
        scope: str = "",
    ) -> None:
        """Remember what a model answered.

        Args:
            prompt: Of `chat`.
            messages: That the client had sent.
            tools: Likewise.
            answer: The message that the client got, in the form of `read_messages`.
            response_ids: What the engine wrote.
            scope: As for `chat`.
        """
        ended = bool(response_ids) and response_ids[-1] == self._tokenizer.eos_token_id
        text = self.raw_text(response_ids)
        entry = _Kept((*prompt.token_ids, *response_ids), prompt.messages, text, ended)
        self._chats.put(scope, digests(tools, [*messages, answer])[-1], entry)

    def raw_text(self, response_ids: Sequence[int]) -> str:
        """Return what a model wrote, special tokens included but for the one that ends it."""
        ids = list(response_ids)
        if ids and ids[-1] == self._tokenizer.eos_token_id:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    # -- texts ----------------------------------------------------------------------------------

    def text(self, text: str, scope: str = "") -> Prompt:
        """Return the tokens of a text that the model is to carry on."""
        for length in sorted(self._lengths.get(scope, ()), reverse=True):
            entry = self._texts.get(scope, text[:length]) if length <= len(text) else None
            if entry is not None:
                rest = self.encode(text[length:]) if length < len(text) else []
                return Prompt([*entry.token_ids, *rest], len(entry.token_ids))
        return Prompt(self.encode(text, begins=True))

    def keep_text(
        self, prompt: Prompt, text: str, response_ids: Sequence[int], scope: str = ""
    ) -> None:
        """Remember how a model carried a text on.

        Args:
            prompt: Of `text`.
            text: That the client had sent.
            response_ids: What the engine wrote.
            scope: As for `text`.
        """
        ids = list(response_ids)
        if ids and ids[-1] == self._tokenizer.eos_token_id:
            # Whoever carries the text on does not mean the end of it to stand in between.
            ids.pop()
        key = text + self._tokenizer.decode(ids, skip_special_tokens=True)
        self._texts.put(scope, key, _Kept((*prompt.token_ids, *ids)))
        lengths = self._lengths.setdefault(scope, OrderedDict())
        lengths[len(key)] = None
        lengths.move_to_end(len(key))
        _trim(lengths, _LENGTHS)
        self._lengths.move_to_end(scope)
        _trim(self._lengths, _SCOPES)

    def encode(self, text: str, begins: bool = False) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: The text.
            begins: Whether a sequence begins with it.
        """
        try:
            ids = list(self._tokenizer.encode(text, add_special_tokens=begins))
        except Exception as error:  # Tokenizers raise what they like.
            raise ApiError(f"the tokenizer cannot encode {text[:80]!r}: {error}") from error
        # Some tokenizers end every text; a prompt goes on.
        return ids[:-1] if begins and ids[-1:] == [self._tokenizer.eos_token_id] else ids


def _trim(table: OrderedDict[Any, Any], most: int) -> None:
    while len(table) > most:
        table.popitem(last=False)
