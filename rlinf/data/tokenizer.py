"""Text to tokens and back: tokenizers of Hugging Face folders, of characters, and of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlinf.utils.extras import install_hint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHARACTERS = "characters"
"""What `tokenizer_model` is for the built-in tokenizer, alone or with an alphabet after a colon."""

WORDS = "words"
"""The same for a tokenizer of words, which stand after the colon with spaces between them."""

SPACED_WORDS = "spaced_words"
"""The same for one that puts spaces between words again when it decodes."""

PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))
EOS, PAD, UNKNOWN = "<eos>", "<pad>", "<unk>"


def load_tokenizer(cfg: Any, model_path: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Args:
        cfg: A `tokenizer` section, or just what its `tokenizer_model` would be: a folder in Hugging
            Face layout, `characters`, `characters:` with all characters of the alphabet, or
            `words:` or `spaced_words:` with all words.
        model_path: The folder to use when `tokenizer_model` is null.

    Returns:
        A tokenizer with `eos_token_id` and `pad_token_id`; a missing pad token becomes the end
        token.

    Raises:
        ValueError: There is no such folder, it has no end token, or the chat template of the
            section is no template.
    """
    tokenizer = _load(cfg, model_path)
    template = None if isinstance(cfg, str) else getattr(cfg, "chat_template", None)
    if template is not None:
        _check_template(template)
        tokenizer.chat_template = template
    return tokenizer


def _check_template(template: str) -> None:
    """Check that transformers can compile a template: with its own tags, such as `generation`."""
    try:
        from jinja2 import TemplateSyntaxError
        from transformers.utils import chat_template_utils
    except ImportError as error:
        raise ValueError(
            f"chat templates need the packages transformers and jinja2: {install_hint('reasoning')}"
        ) from error
    try:
        chat_template_utils._compile_jinja_template(template)
    except TemplateSyntaxError as error:
        raise ValueError(
            f"tokenizer.chat_template cannot be read as a Jinja template: line {error.lineno}: "
            f"{error.message}"
        ) from error


def _load(cfg: Any, model_path: str | None) -> PreTrainedTokenizerBase:
    name = cfg if isinstance(cfg, str) else cfg.tokenizer_model
    name = name or model_path
    if name is None:
        raise ValueError(
            "there is no tokenizer: set tokenizer.tokenizer_model to a folder, or to "
            f"'{CHARACTERS}' for single characters, '{WORDS}:' with words, or set model.model_path"
        )
    if name == CHARACTERS or name.startswith(f"{CHARACTERS}:"):
        return character_tokenizer(name.partition(":")[2] or PRINTABLE)
    kind, _, words = name.partition(":")
    if kind in (WORDS, SPACED_WORDS) and ":" in name:
        return word_tokenizer(words.split(), spaced=kind == SPACED_WORDS)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"the tokenizer {name!r} is not a folder; give one in Hugging Face layout, such as "
            f"`rlinf fetch smollm2` makes, '{CHARACTERS}', or '{WORDS}:' with words"
        )
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"tokenizers need the package transformers: {install_hint('reasoning')}"
        ) from error
    trust = False if isinstance(cfg, str) else cfg.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=trust, local_files_only=True
    )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {folder} has no end token (eos_token)")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokenizer_of_run(cfg: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a whole config: the actor's, or that of what the rollout evaluates."""
    if cfg.actor is not None:
        return load_tokenizer(cfg.actor.tokenizer, cfg.actor.model.model_path)
    from rlinf.models.evaluated import evaluated_model

    own, model = cfg.reward.tokenizer, evaluated_model(cfg)
    name = own.tokenizer_model or model.tokenizer.get("tokenizer_model")
    trust = own.trust_remote_code or model.tokenizer.get("trust_remote_code", False)
    template = own.chat_template or model.tokenizer.get("chat_template")
    section = SimpleNamespace(tokenizer_model=name, trust_remote_code=trust, chat_template=template)
    return load_tokenizer(section, model.network.get("model_path"))


def tokens_of(tokenizer: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return the tokens of a text.

    Args:
        tokenizer: What `load_tokenizer` returns.
        text: Of a prompt, or of a part of a conversation.
        add_special_tokens: Whether those are added that the tokenizer puts around a whole text.

    Raises:
        ValueError: It cannot be encoded.
    """
    try:
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    except Exception as error:
        known = "" if len(tokenizer) > 512 else f"; it knows {_characters(tokenizer)!r}"
        raise ValueError(f"the tokenizer cannot encode {text[:80]!r} ({error}){known}") from error


def _characters(tokenizer: Any) -> str:
    """Return all tokens that are single characters, in the order of their ids."""
    vocabulary = tokenizer.get_vocab()
    return "".join(token for token in sorted(vocabulary, key=vocabulary.get) if len(token) == 1)


def stops_of(tokenizer: Any, wanted: Iterable[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the tokens and the texts of several tokens that end a response.

    Args:
        tokenizer: of the model; its end token is one of them.
        wanted: the texts, of one token or of several.

    Raises:
        ValueError: the tokenizer does not know a text.
    """
    ends, texts = [tokenizer.eos_token_id], []
    for text in wanted:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        if len(tokens) == 1:
            if tokenizer.decode(tokens, skip_special_tokens=False).strip() != text.strip():
                raise ValueError(
                    f"a response is to end at {text!r}, which the tokenizer does not know; add it "
                    "to tokenizer.tokenizer_model"
                )
            ends += tokens
        else:
            texts.append(text)
    return tuple(ends), tuple(texts)


def character_tokenizer(alphabet: str = PRINTABLE) -> PreTrainedTokenizerBase:
    """Make a tokenizer with a token per character, an end token and a pad token.

    It is an ordinary fast tokenizer: `save_pretrained` writes a folder that `AutoTokenizer` loads.
    A character outside of the alphabet raises when it is encoded.

    Args:
        alphabet: Its characters; their order is that of their ids, from 2 on.

    Raises:
        ValueError: The alphabet is empty, or has a character twice.
    """
    if not alphabet or len(set(alphabet)) != len(alphabet):
        raise ValueError(f"the alphabet {alphabet!r} must have each of its characters once")
    return _word_level(list(alphabet), r"[\s\S]", skips_spaces=False)


def word_tokenizer(words: Sequence[str], spaced: bool = False) -> PreTrainedTokenizerBase:
    """Make a tokenizer with a token per word, an end token and a pad token.

    Of words that begin alike the longest is taken. Spaces separate words and are no tokens. Text
    that is none of the words raises when it is encoded, or becomes `<unk>` if that is one of them.

    Args:
        words: Their order is that of their ids, from 2 on.
        spaced: Whether words that are decoded have spaces between them, as names in a sentence
            need; otherwise they have none, as the digits of a number must not.

    Raises:
        ValueError: There are no words, or one is given twice.
    """
    if not words or len(set(words)) != len(words):
        raise ValueError(f"the words {' '.join(words)!r} must be some, each of them once")
    longest_first = sorted(words, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    return _word_level(words, pattern, skips_spaces=True, spaced=spaced)


def _word_level(
    words: Sequence[str], pattern: str, skips_spaces: bool, spaced: bool = False
) -> PreTrainedTokenizerBase:
    """Make an ordinary fast tokenizer of what matches a pattern."""
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise ValueError(
            f"tokenizers need the package transformers: {install_hint('reasoning')}"
        ) from error
    vocabulary = {token: i for i, token in enumerate([EOS, PAD, *words])}
    unknown = {"unk_token": UNKNOWN} if UNKNOWN in vocabulary else {}
    inner = Tokenizer(models.WordLevel(vocabulary, **unknown))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    parts = [pre_tokenizers.WhitespaceSplit(), split] if skips_spaces else [split]
    inner.pre_tokenizer = pre_tokenizers.Sequence(parts) if len(parts) > 1 else split
    if not spaced:
        inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
