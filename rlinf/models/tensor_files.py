"""Tensors in files, read by rows: no more of a file is read than is asked for."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rlinf.utils.shards import Rows, cut

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SHARDING = "DCP_SHARDING_INFO"
"""Where torch.distributed.checkpoint says which part of a tensor a file holds."""


class TensorSource(Protocol):
    """Tensors by name that can be read in part."""

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a tensor."""
        ...

    def read(self, name: str, rows: Rows | None = None) -> Tensor:
        """Read a tensor, or some of its rows; copy it before it is changed."""
        ...


class _Piece(NamedTuple):
    """Some rows of a tensor in a file."""

    file: Path
    key: str
    first: int
    shape: tuple[int, ...]


class SafetensorsFiles:
    """Tensors of safetensors files, each whole or cut along its first dimension.

    Args:
        files: the files.
        prefix: take only names that begin with it, without it.

    Attributes:
        bytes_read: size of what has been read so far.
    """

    def __init__(self, files: Iterable[Path], prefix: str = "") -> None:
        self.bytes_read = 0
        self._pieces: dict[str, list[_Piece]] = {}
        for file in files:
            self._add(file, prefix)
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: piece.first)

    def _add(self, file: Path, prefix: str) -> None:
        from safetensors import safe_open

        with safe_open(file, framework="pt") as opened:
            known = json.loads((opened.metadata() or {}).get(_SHARDING, "{}"))
            for key in opened.keys():  # noqa: SIM118 - not a mapping
                if not key.startswith(prefix):
                    continue
                offsets = known.get(key, {}).get("saved_offsets") or [0]
                if any(offsets[1:]):
                    raise ValueError(
                        f"{file} holds a part of {key} that is not whole rows (offsets {offsets}); "
                        "write the checkpoint again with a sharding along the first dimension"
                    )
                shape = tuple(opened.get_slice(key).get_shape())
                piece = _Piece(file, key, offsets[0], shape)
                self._pieces.setdefault(key.removeprefix(prefix), []).append(piece)

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a tensor."""
        last = self._pieces[name][-1]
        return (last.first + last.shape[0], *last.shape[1:]) if last.shape else ()

    def read(self, name: str, rows: Rows | None = None) -> Tensor:
        """Read a tensor, or some of its rows."""
        pieces = self._pieces[name]
        if rows is None and len(pieces) == 1:
            return self._read(pieces[0], None)
        first, last = (0, self.shape(name)[0]) if rows is None else rows
        wanted = []
        for piece in pieces:
            begin = max(first, piece.first) - piece.first
            end = min(last - piece.first, piece.shape[0])
            if begin < end:
                wanted.append((piece, (begin, end)))
        # A part without rows still has a number format.
        parts = [self._read(*each) for each in wanted or [(pieces[0], (0, 0))]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _read(self, piece: _Piece, rows: Rows | None) -> Tensor:
        from safetensors import safe_open

        # Opened for each tensor: what is mapped counts as memory of the process until it is closed.
        with safe_open(piece.file, framework="pt") as opened:
            if rows is None:
                part = opened.get_tensor(piece.key)
            else:
                part = opened.get_slice(piece.key)[rows[0] : rows[1]]
        self.bytes_read += part.nbytes
        return part


class LoadedTensors:
    """Tensors that a process has, or has mapped.

    Args:
        tensors: by name.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a tensor."""
        return tuple(self._tensors[name].shape)

    def read(self, name: str, rows: Rows | None = None) -> Tensor:
        """Return a tensor, or some of its rows."""
        return cut(self._tensors[name], rows)


def tensors_of_folder(folder: Path) -> SafetensorsFiles | None:
    """Return the weights of a model folder of Hugging Face layout.

    Args:
        folder: as `save_pretrained` of transformers writes it.

    Returns:
        The tensors; None if they are in another format than safetensors.

    Raises:
        ValueError: its index is not one, or names files that are not in the folder.
    """
    index = folder / _INDEX
    if index.is_file():
        files = _files_of(index)
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            raise ValueError(
                f"{index} names {', '.join(missing[:4])}, which {folder} does not have; fetch the "
                "model again"
            )
        return SafetensorsFiles(folder / name for name in files)
    single = folder / _SINGLE
    return SafetensorsFiles([single]) if single.is_file() else None


def _files_of(index: Path) -> list[str]:
    """Return the files that an index names, which a stranger may have written."""
    try:
        told = json.loads(index.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{index} is not JSON: {error}; fetch the model again") from error
    names = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(names, dict) or not names:
        raise ValueError(
            f"{index} has no weight_map, which says in which file each tensor is; fetch the model "
            "again"
        )
    for name in names.values():
        if (
            not isinstance(name, str)
            or not name.endswith(".safetensors")
            or Path(name).name != name
        ):
            raise ValueError(
                f"{index} names the file {str(name)[:200]!r}; it must be a safetensors file of the "
                "same folder. Do not use a model of such a source"
            )
    return sorted(set(names.values()))


def tensors_of_file(file: Path) -> TensorSource:
    """Return the tensors of one file, of safetensors or of `torch.save`.

    Raises:
        ValueError: the file holds something else.
    """
    if file.suffix == ".safetensors":
        return SafetensorsFiles([file])
    mapped = zipfile.is_zipfile(file)
    tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise ValueError(
            f"{file} is not a state dict: a file of torch.save must have tensors by name"
        )
    return LoadedTensors(tensors)
