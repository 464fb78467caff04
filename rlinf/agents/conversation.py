"""A conversation of one model with one other, token by token: as text, or as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlinf.agents.templates import ChatFormat

if TYPE_CHECKING:
    from rlinf.agents.calls import EngineCall
    from rlinf.agents.episode import Episode


class Conversation:
    """Lets the model answer what another says, and adds only what is new to what it has read.

    With messages, the question has some, and what is said is rendered by the chat template;
    otherwise it follows as text.

    Args:
        episode: a fresh one.
        tokenizer: of the model.
        tools: schemas that the template is told of.
    """

    def __init__(self, episode: Episode, tokenizer: Any, tools: Sequence[Any] = ()) -> None:
        self._episode, self._tokenizer = episode, tokenizer
        self._messages = list(episode.question.messages or ())
        self._chat = ChatFormat(tokenizer, tools) if self._messages else None
        self._last: EngineCall | None = None

    async def answer(self, said: str = "", role: str = "user") -> EngineCall:
        """Let the model go on after something that was said; nothing is the question alone.

        Args:
            said: what it reads.
            role: who says it.

        Raises:
            EpisodeOver: a limit was reached.
        """
        return await self.answer_all([{"role": role, "content": said}] if said else [])

    async def answer_all(self, new: Sequence[dict[str, Any]]) -> EngineCall:
        """Let the model go on after some messages; see `answer`."""
        for message in new:
            self._episode.note(message["role"], message["content"])
        ids = self._ids(list(new))
        self._last = await self._episode.generate(ids)
        return self._last

    def _ids(self, new: list[dict[str, Any]]) -> list[int]:
        first = self._last is None
        if self._chat is None:
            before = self._episode.question.prompt_ids if first else self._last.token_ids
            return [*before, *self._encode("".join(message["content"] for message in new))]
        if first:
            self._messages += new
            if not new:
                return list(self._episode.question.prompt_ids)
            return self._chat.begin(self._messages)
        said = {"role": "assistant", "content": self._episode.text(self._last)}
        ended = self._last.response_ids[-1] == self._tokenizer.eos_token_id
        further = self._chat.between(self._messages, said, new, ended)
        self._messages += [said, *new]
        return [*self._last.token_ids, *further]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []
