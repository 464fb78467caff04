"""Finds datasets by the names that the config uses; `base` says what a dataset is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf.config.plugin_table import PluginTable
from rlinf.config.signatures import Call, check_call

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rlinf.data.datasets.base import PromptDataset, Split

Dataset = TypeVar("Dataset", bound=type)

dataset_registry: PluginTable[type] = PluginTable(
    "dataset",
    {
        "files": "rlinf.data.datasets.files",
        "reasoning_gym": "rlinf.data.datasets.reasoning_gym",
        "arithmetic": "rlinf.data.datasets.arithmetic",
        "calculations": "rlinf.data.datasets.calculations",
        "facts": "rlinf.data.datasets.facts",
        "programs": "rlinf.data.datasets.programs",
        "verifiers": "rlinf.data.datasets.verifiers",
        "wide_questions": "rlinf.data.datasets.wide_questions",
        "one_liners": "rlinf.data.datasets.one_liners",
    },
)


def register_dataset(
    name: str, *, schema: type[BaseModel] | None = None, replaces: bool = False
) -> Callable[[Dataset], Dataset]:
    """Register a dataset for `data.type`.

    Args:
        name: What the user writes; case does not matter.
        schema: A pydantic model of further keys of the `data` section.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator for subclasses of `rlinf.data.datasets.base.PromptDataset`. It raises a
        ValueError if the name is taken, or the class cannot be called with (cfg, split, seed).
    """

    def register(cls: Dataset) -> Dataset:
        check_call(f"dataset '{name}'", cls, Call(("cfg", "split", "seed")))
        dataset_registry.register(name, cls, schema=schema, replaces=replaces)
        return cls

    return register


def make_dataset(cfg: Any, split: Split, seed: int) -> PromptDataset:
    """Make the dataset that `data.type` names.

    Args:
        cfg: The `data` section.
        split: "train" or "val".
        seed: Seed of prompts that are generated.

    Raises:
        ValueError: Nobody registered the name, or the dataset cannot be made.
    """
    return dataset_registry.lookup(cfg.type)(cfg, split, seed)
