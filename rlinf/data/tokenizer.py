"""Text to tokens and back: tokenizers of Hugging Face folders, and one of single characters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlinf.utils.extras import install_hint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHARACTERS = "characters"
"""What `tokenizer_model` is for the built-in tokenizer, alone or with an alphabet after a colon."""

PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))
EOS, PAD = "<eos>", "<pad>"


def load_tokenizer(cfg: Any, model_path: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Args:
        cfg: A `tokenizer` section, or just what its `tokenizer_model` would be: a folder in Hugging
            Face layout, `characters`, or `characters:` with all characters of the alphabet.
        model_path: The folder to use when `tokenizer_model` is null.

    Returns:
        A tokenizer with `eos_token_id` and `pad_token_id`; a missing pad token becomes the end
        token.

    Raises:
        ValueError: There is no such folder, or it has no end token.
    """
    name = cfg if isinstance(cfg, str) else cfg.tokenizer_model
    name = name or model_path
    if name is None:
        raise ValueError(
            "there is no tokenizer: set tokenizer.tokenizer_model to a folder, or to "
            f"'{CHARACTERS}' for single characters, or set model.model_path"
        )
    if name == CHARACTERS or name.startswith(f"{CHARACTERS}:"):
        return character_tokenizer(name.partition(":")[2] or PRINTABLE)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"the tokenizer {name!r} is not a folder; give one in Hugging Face layout, such as "
            f"`rlinf fetch smollm2` makes, or '{CHARACTERS}'"
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
    section = SimpleNamespace(tokenizer_model=name, trust_remote_code=trust)
    return load_tokenizer(section, model.network.get("model_path"))


def character_tokenizer(alphabet: str = PRINTABLE) -> PreTrainedTokenizerBase:
    """Make a tokenizer with a token per character, an end token and a pad token.

    It is an ordinary fast tokenizer: `save_pretrained` writes a folder that `AutoTokenizer` loads.
    A character outside of the alphabet raises when it is encoded.

    Args:
        alphabet: Its characters; their order is that of their ids, from 2 on.

    Raises:
        ValueError: The alphabet is empty, or has a character twice.
    """
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise ValueError(
            f"tokenizers need the package transformers: {install_hint('reasoning')}"
        ) from error
    if not alphabet or len(set(alphabet)) != len(alphabet):
        raise ValueError(f"the alphabet {alphabet!r} must have each of its characters once")
    vocabulary = {token: i for i, token in enumerate([EOS, PAD, *alphabet])}
    inner = Tokenizer(models.WordLevel(vocabulary))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
