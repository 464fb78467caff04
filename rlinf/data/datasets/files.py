"""Prompts from JSONL and parquet files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinf.config.suggest import did_you_mean, listed
from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import PromptDataset, Record, Split
from rlinf.utils.extras import install_hint


@register_dataset("files")
class FileDataset(PromptDataset):
    """Records of some files, one after the other.

    A record has the prompt under `data.prompt_key` and the answer under `data.answer_key`. Its
    task is the field `task`, if it has one, otherwise the name of the file. All other fields are
    its metadata.
    """

    def __init__(self, cfg: Any, split: Split, seed: int) -> None:
        super().__init__(cfg, split, seed)
        key = "train_data_paths" if split == "train" else "val_data_paths"
        paths = [Path(path).expanduser() for path in getattr(cfg, key) or []]
        if not paths:
            raise ValueError(f"data.{key} is empty: name the files with the prompts")
        self._records = [record for path in paths for record in self._read(path, key)]
        if not self._records:
            raise ValueError(f"data.{key}: {listed(map(str, paths))} has no records")

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        """Record `index`."""
        return self._records[index]

    def fingerprint(self) -> str:
        """Return the number of records, and a hash of all prompts."""
        digest = hashlib.sha256()
        for record in self._records:
            digest.update(repr(record.prompt).encode())
        return f"files {len(self)} {digest.hexdigest()[:16]}"

    def _read(self, path: Path, key: str) -> Iterator[Record]:
        if not path.is_file():
            raise ValueError(f"data.{key}: there is no file {path}")
        if path.suffix in (".jsonl", ".json"):
            rows = _read_jsonl(path)
        elif path.suffix == ".parquet":
            rows = _read_parquet(path)
        else:
            raise ValueError(f"data.{key}: {path} is neither .jsonl nor .parquet")
        for number, row in enumerate(rows, start=1):
            yield self._record(row, path, number)

    def _record(self, row: Any, path: Path, number: int) -> Record:
        where = f"{path}, record {number}"
        if not isinstance(row, dict):
            raise ValueError(f"{where} is {type(row).__name__}; it must be a mapping")
        taken = {
            name: self._take(row, name, where)
            for name in ("prompt_key", "answer_key", "solution_key")
            if getattr(self.cfg, name) is not None
        }
        prompt, solution = taken["prompt_key"], taken.get("solution_key")
        if not isinstance(prompt, str) and not _are_messages(prompt):
            raise ValueError(
                f"{where}: the prompt is {str(prompt)[:80]!r}; it must be a text, or a list of "
                "messages with role and content"
            )
        if solution is not None and not isinstance(solution, str):
            raise ValueError(f"{where}: the solution is {type(solution).__name__}, not a text")
        used = {getattr(self.cfg, name) for name in taken}
        metadata = {name: value for name, value in row.items() if name not in used}
        task = str(metadata.pop("task", path.stem))
        return Record(prompt, taken["answer_key"], task, metadata, solution)

    def _take(self, row: dict[str, Any], name: str, where: str) -> Any:
        key = getattr(self.cfg, name)
        if key not in row:
            hint = did_you_mean(key, row)
            raise ValueError(
                f"{where} has no field '{key}' (data.{name}); it has: {listed(row)}. {hint}".strip()
            )
        return row[key]


def _are_messages(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in prompt)
    )


def _read_jsonl(path: Path) -> Iterator[Any]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number} is not JSON: {error}") from error


def _read_parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            f"{path} needs the package pyarrow: {install_hint('reasoning')}"
        ) from error
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()
