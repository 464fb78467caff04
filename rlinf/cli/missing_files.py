"""What a config names that is not on this machine: folders of weights and files of data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlinf.config import Problem
from rlinf.config.env_plugins import is_folder
from rlinf.config.task_types import FROM_DATA


class _Kind(NamedTuple):
    """What a key may name, and what to do if it is not there."""

    allowed: str
    fix: str


_WEIGHTS = _Kind(
    "a folder with weights in Hugging Face layout, as save_pretrained or `rlinf export` write it",
    "download it, `rlinf fetch smollm2` makes a small one, or set null to start from scratch",
)
_DATA = _Kind("files of JSONL or parquet", "correct the path, or put the file there")
_DEMONSTRATIONS = _Kind(
    "a folder with a LeRobot dataset", "make one with `rlinf collect`, or correct the path"
)
_KINDS = {
    "model_path": _WEIGHTS,
    "reward.model.model_path": _Kind(
        "a run that trained a reward model, or a checkpoint of it",
        "train one with `rlinf train metaworld_reward_model_mlp`, or correct the path",
    ),
    "model_dir": _WEIGHTS,
    "lora_path": _Kind("a folder with adapters of peft", "set null for fresh adapters"),
    "tokenizer_model": _Kind(
        "a folder with a tokenizer in Hugging Face layout, `characters`, or `words:` or "
        "`spaced_words:` with words",
        "download it; null is the model's own folder",
    ),
    "load_path": _Kind(
        "a folder with a LeRobot dataset or a saved replay buffer",
        "make one with `rlinf collect`, or correct the path",
    ),
    "agentloop.search.index": _Kind(
        "an index of documents",
        "build it with `python -m toolkits.search build CORPUS.jsonl FILE`, or correct the path",
    ),
    "agentloop.search.embeddings": _Kind("a file that numpy.save wrote", "correct the path"),
    "train_data_paths": _DATA,
    "val_data_paths": _DATA,
    "ckpt_path": _Kind(
        "a checkpoint, a run, an exported folder, or a file of weights", "correct the path"
    ),
    "expert": _Kind(
        "a registered expert, or the folder of a run, of a checkpoint or of an exported policy",
        "correct the path, or train the expert first",
    ),
    "resume_dir": _Kind(
        "a checkpoint `.../global_step_<N>`, or auto", "correct the path, or set auto"
    ),
}


def missing_files(cfg: dict[str, Any]) -> list[Problem]:
    """Return what is named and not there, with what is allowed and what to do.

    They may be on the machines that will run the config, so the config is valid all the same.

    Args:
        cfg: a whole config, plain data.
    """
    from_episodes = (cfg.get("runner") or {}).get("task_type") in FROM_DATA
    kinds = _KINDS | {"train_data_paths": _DEMONSTRATIONS} if from_episodes else _KINDS
    return list(_missing(cfg, "", kinds))


def _missing(node: Any, path: str, kinds: dict[str, _Kind]) -> Iterator[Problem]:
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        place = f"{path}.{key}" if path else key
        kind = kinds.get(place) or kinds.get(key)
        if kind is None:
            yield from _missing(value, place, kinds)
            continue
        for name in value if isinstance(value, list) else [value]:
            if isinstance(name, str) and not _is_there(key, name):
                message = f"there is no {name} on this machine; it must be {kind.allowed}"
                yield Problem(place, name, message, kind.fix)


def _is_there(key: str, name: str) -> bool:
    if key == "resume_dir" and name == "auto":
        return True
    if key == "expert" and not is_folder(name):
        return True
    if key == "tokenizer_model" and name.partition(":")[0] in (
        "characters",
        "words",
        "spaced_words",
    ):
        return True
    return Path(name).expanduser().exists()
