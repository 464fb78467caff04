"""A chat of any protocol: messages and tools in, messages of the model out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.agents.serving.backend import Drawing
from rlinf.agents.serving.endpoint import Ask, Choice, Delta, Endpoint
from rlinf.agents.serving.messages import Message
from rlinf.agents.serving.sessions import Session
from rlinf.agents.trajectory import Turn


class Dialogue:
    """One request of a chat.

    Args:
        endpoint: That answers.
        messages: In the form of `read_messages`.
        tools: That the model is told of.
        drawing: How it answers.
        limited: Whether the request itself names the most tokens.
        n: Choices.
        stops: Texts that end a choice.
        session: That it is part of; None is none.

    Attributes:
        ask: What is asked of the endpoint.
        answers: Messages of the model, by choice, as soon as they are complete.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        messages: list[Message],
        tools: Sequence[dict[str, Any]],
        drawing: Drawing,
        *,
        limited: bool,
        n: int = 1,
        stops: tuple[str, ...] = (),
        session: Session | None = None,
    ) -> None:
        self._reader = endpoint.tools if tools else None
        self.messages = messages
        self.answers: dict[int, Message] = {}
        self._texts: dict[int, str] = {}
        chats, scope = endpoint.conversations, "" if session is None else session.name
        prompt = chats.chat(messages, tools, scope)

        def keep(choice: Choice) -> None:
            answer = self.answers[choice.index] = self._message(choice)
            chats.keep_chat(prompt, messages, tools, answer, choice.token_ids, scope)

        self.ask = Ask(
            prompt=prompt,
            drawing=endpoint.fitted(prompt, drawing, limited),
            n=n,
            stops=stops,
            session=session,
            read=unread(messages),
            keep=keep,
        )

    def _message(self, choice: Choice) -> Message:
        text, calls = choice.text, []
        if self._reader is not None:
            text, calls = self._reader.split(choice.text)
        return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}

    def calls(self, choice: Choice) -> list[dict[str, Any]]:
        """Return the tool calls of a complete choice."""
        return self.answers[choice.index].get("tool_calls", [])

    def shown(self, delta: Delta) -> str:
        """Return the new text of a choice that is certainly not part of a tool call."""
        if self._reader is None:
            return delta.text
        before = self._texts.get(delta.index, "")
        whole = self._texts[delta.index] = before + delta.text
        end = self._reader.shown(whole)
        if delta.done is not None:
            # What turned out to be no call is text.
            answer = self.answers[delta.index]
            end = len(answer["content"] if "tool_calls" in answer else whole)
        return whole[self._reader.shown(before) : end]


def unread(messages: list[Message]) -> list[Turn]:
    """Return the messages behind the latest answer of the model, as turns of a trajectory."""
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    new = messages[answers[-1] + 1 :] if answers else messages
    return [Turn(message["role"], message["content"]) for message in new]
