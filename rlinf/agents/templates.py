"""Chat templates, turn by turn: what is new becomes tokens, what was there stays as it is.

A conversation grows by what the model wrote, as tokens, and by messages, as text. A template
renders whole conversations. It can be used turn by turn if the rendering of a longer conversation
begins with that of the shorter one: then the new text alone is tokenised, and the tokens that the
model read and wrote are never made from text again. Some templates change what came before, such as
those that drop what a model thought in earlier turns; these are found, and named with the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], bool], str]
"""Renders messages; with a true second argument, up to where the next answer begins."""

ANSWER = "the-answer-of-this-turn"
"""Stands for what the model wrote while the text around it is rendered."""
_SHOWN = 60


class TemplateRewrites(ValueError):
    """A template that changes what came before when a conversation goes on.

    Attributes:
        before: text that the shorter conversation has where both begin to differ.
        after: text that the longer one has there.
    """

    def __init__(self, before: str, after: str, message: str) -> None:
        super().__init__(message)
        self.before, self.after = before, after


class ChatFormat:
    """Renders a conversation turn by turn.

    Args:
        tokenizer: with a chat template.
        tools: schemas of the tools that the template tells the model of.
        arguments: further variables of the template, such as `enable_thinking`.

    Raises:
        ValueError: the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: Any,
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ValueError(
                "the tokenizer has no chat template; use the tokenizer of an instruction-tuned "
                "model, or set data.apply_chat_template to false and let tools answer in the text"
            )
        self._tokenizer = tokenizer
        self._tools = [dict(schema) for schema in tools] or None
        self._arguments = dict(arguments or {})

    def render(self, messages: Sequence[Message], to_answer: bool) -> str:
        """Return the text of a conversation.

        Args:
            messages: of it.
            to_answer: whether it ends where the next answer of the model begins.
        """
        return self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=self._tools,
            tokenize=False,
            add_generation_prompt=to_answer,
            **self._arguments,
        )

    def begin(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation up to where the first answer begins."""
        return self._ids(self.render(messages, True))

    def between(
        self, messages: Sequence[Message], answer: Message, new: Sequence[Message], ended: bool
    ) -> list[int]:
        """Return the tokens between an answer and the next one.

        Args:
            messages: of the conversation before the answer.
            answer: the message that the model wrote, as text; it is rendered to see what becomes
                of it, and never tokenised.
            new: messages that follow it, at least one.
            ended: whether the last token of the answer is the end token.

        Raises:
            TemplateRewrites: the template changes what came before.
        """
        rest = self.rest(messages, answer, new)
        end = self._tokenizer.eos_token
        if ended:
            if not rest.startswith(end):
                raise TemplateRewrites(
                    end,
                    rest[:_SHOWN],
                    f"the model ends an answer with {end!r}, but the chat template goes on after "
                    f"it with {rest[:_SHOWN]!r}: template and end token do not belong together; "
                    "set the end token of the tokenizer to the one that the template writes",
                )
            rest = rest[len(end) :]
        return self._ids(rest)

    def rest(self, messages: Sequence[Message], answer: Message, new: Sequence[Message]) -> str:
        """Return the text between an answer and the next one; see `between`."""
        before = self.render(messages, True)
        placed = self.render([*messages, {**answer, "content": ANSWER}], False)
        require_extends(before, placed, "the answer of the model")
        closed = self.render([*messages, answer], False)
        longer = self.render([*messages, answer, *new], True)
        require_extends(closed, longer, _roles(new))
        _, _, tail = placed[len(before) :].partition(ANSWER)
        return tail + longer[len(closed) :]

    def _ids(self, text: str) -> list[int]:
        # The template has written all special tokens already.
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def require_extends(shorter: str, longer: str, added: str) -> None:
    """Check that the rendering of a longer conversation begins with that of the shorter one.

    Args:
        shorter: rendering of a conversation.
        longer: rendering of the same with something added.
        added: what was added, in words.

    Raises:
        TemplateRewrites: it does not; names the text.
    """
    if longer.startswith(shorter):
        return
    place = next(
        (i for i, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b),
        min(len(shorter), len(longer)),
    )
    before, after = shorter[place : place + _SHOWN], longer[place : place + _SHOWN]
    raise TemplateRewrites(
        before,
        after,
        f"the chat template changes what came before when {added} follows: after "
        f"{shorter[max(0, place - _SHOWN) : place]!r} it had written {before!r}, and now writes "
        f"{after!r}. Tokens of earlier turns would not be those that the model saw; use a template "
        "that only appends (one that keeps what a model thought), or begin each turn anew",
    )


def check_template(
    render: Render, *, thinks: bool = False, roles: Sequence[str] = ("tool", "user")
) -> None:
    """Check a template with a conversation of several turns.

    Args:
        render: of the template.
        thinks: whether answers hold a `<think>` part, which some templates drop later.
        roles: who may write after an answer.

    Raises:
        TemplateRewrites: the rendering of a longer conversation does not begin with that of a
            shorter one; names the text.
    """
    said = "<think>\nit seems so\n</think>\n\nyes" if thinks else "yes"
    for role in roles:
        messages: list[Message] = [{"role": "user", "content": "is it so?"}]
        shorter = render(messages, True)
        for turn in range(3):
            messages = [*messages, {"role": "assistant", "content": f"{said} {turn}"}]
            closed = render(messages, False)
            require_extends(shorter, closed, "the answer of the model")
            messages = [*messages, {"role": role, "content": f"and {turn}?"}]
            shorter = render(messages, True)
            require_extends(closed, shorter, _roles(messages[-1:]))


def _roles(messages: Sequence[Message]) -> str:
    names = dict.fromkeys(str(message["role"]) for message in messages)
    return f"a message of the {' and of the '.join(names)}"
