"""The chat that an instruction is to Eagle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

START, END = "<|im_start|>", "<|im_end|>"
IMAGE_START, IMAGE, IMAGE_END = "<img>", "<IMG_CONTEXT>", "</img>"
CHAT_TOKENS = (START, END, IMAGE_START, IMAGE, IMAGE_END)
"""Tokens of Eagle that are no words."""
MOST_IMAGES = 9
CHAT_WORDS = (
    *("system", "you", "are", "a", "helpful", "assistant", ".", "user", "<", "image", ">"),
    *map(str, range(1, MOST_IMAGES + 1)),
)
"""Words of the chat besides those of the instruction."""


def groot_prompt(
    task: str,
    state: Sequence[int] | None = None,
    *,
    images: int,
    places: int,
    listed: bool = False,
) -> str:
    """Return the prompt of GR00T.

    Args:
        task: The instruction.
        state: Not part of it.
        images: How many pictures there are.
        places: Places that each of them takes.
        listed: Write the instruction as a list of one text, as lerobot does.
    """
    seen = "".join(
        f"<image {number + 1}>{IMAGE_START}{IMAGE * places}{IMAGE_END}" for number in range(images)
    )
    said = repr([task]) if listed else task
    return (
        f"{START}system\nYou are a helpful assistant.{END}\n"
        f"{START}user\n{seen}{said}{END}\n{START}assistant\n"
    )


def image_token(tokenizer: Any) -> int:
    """Return the id of the places of pictures.

    Raises:
        ValueError: The tokenizer has no token for them.
    """
    found = tokenizer.get_vocab().get(IMAGE)
    if found is None:
        raise ValueError(
            f"the tokenizer has no token {IMAGE}: name a folder with that of Eagle in "
            "model.tokenizer_path"
        )
    return found
