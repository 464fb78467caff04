"""Instructions as token ids: the prompt, its tokenizer, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlinf.utils.extras import install_hint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
_EMPTY_TOKEN = 29871
"""The space of Llama's tokenizer, with which prompts of OpenVLA end."""


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerBase:
    """Make a tokenizer with a token per word, for small models.

    It is an ordinary fast tokenizer: `save_pretrained` writes a folder that `AutoTokenizer` loads.
    Text is cut at spaces and punctuation, and case does not matter.

    Args:
        words: Its words; their order is that of their ids, from 3 on.

    Raises:
        ValueError: There are no words, or one occurs twice.
    """
    try:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise ValueError(
            f"tokenizers need the package transformers: {install_hint('reasoning')}"
        ) from error
    words = [word.lower() for word in words]
    twice = sorted({word for word in words if words.count(word) > 1})
    if not words or twice:
        found = f"has {', '.join(twice)} more than once" if twice else "is empty"
        raise ValueError(
            f"model.words {found}: list each word of the instructions once, or name a folder with "
            "a tokenizer in model.tokenizer_path"
        )
    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, *words])}
    inner = Tokenizer(models.WordLevel(vocabulary))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, bos_token=BOS, eos_token=EOS
    )


def folder_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder in Hugging Face layout; nothing is downloaded or run."""
    try:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
    except ImportError as error:
        raise ValueError(
            f"tokenizers need the package transformers: {install_hint('reasoning')}"
        ) from error
    folder = Path(folder).expanduser()
    # With all that it needs in one file, nobody has to look at the model's config.
    whole = (folder / "tokenizer.json").is_file()
    kind = PreTrainedTokenizerFast if whole else AutoTokenizer
    return kind.from_pretrained(str(folder), local_files_only=True)


class PromptEncoder:
    """Makes token ids of instructions; each text is encoded once.

    Args:
        tokenizer: Of words, or of a folder.
        template: The prompt, with `{task}` for the instruction in lower case.
        length: Token ids of a prompt, L; shorter ones are padded on the left.

    Attributes:
        tokenizer: The tokenizer.
        bos: Id of the token that sequences begin with.
        eos: Id of the token that they end with.
        pad: Id of padding.
    """

    def __init__(self, tokenizer: Any, template: str, length: int) -> None:
        if "{task}" not in template:
            raise ValueError(
                f"model.prompt is {template!r}, which has no place for the instruction: write "
                "{task} where it belongs"
            )
        self.tokenizer, self._template, self._length = tokenizer, template, length
        self.bos, self.eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.eos
        self._known: dict[str, list[int]] = {}

    def __call__(self, texts: Sequence[str] | None) -> Tensor:
        """Return the prompts of instructions, `[B, L]` int64, without the first token of all.

        Args:
            texts: `task_descriptions` of observations.

        Raises:
            ValueError: There are none, one is too long, or has a word that is not known.
        """
        if texts is None:
            raise ValueError(
                "the policy reads 'task_descriptions', which the observations do not have: use an "
                "env whose tasks have words"
            )
        return torch.tensor([self._known.get(text) or self._encode(text) for text in texts])

    def _encode(self, text: str) -> list[int]:
        prompt = self._template.format(task=text.lower())
        try:
            ids = self.tokenizer(prompt, add_special_tokens=False).input_ids
        except Exception as error:
            raise ValueError(
                f"the prompt {prompt!r} has a word that model.words does not list ({error})"
            ) from error
        if len(self.tokenizer) > _EMPTY_TOKEN and ids[-1:] != [_EMPTY_TOKEN]:
            ids = [*ids, _EMPTY_TOKEN]
        if not 0 < len(ids) <= self._length:
            raise ValueError(
                f"the prompt {prompt!r} has {len(ids)} tokens; it must have 1 to "
                f"{self._length}: raise model.max_prompt_length"
            )
        self._known[text] = padded = [self.pad] * (self._length - len(ids)) + ids
        return padded
