"""Columns of a table: nested tensors as flat names, and files that hold so many rows of them.

A segment file is a safetensors file, so that other programs can read it; columns are mapped into
memory where they lie in it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SEPARATOR = "/"
_ALIGNMENT = 64
_FORMATS: dict[str, tuple[torch.dtype, type]] = {
    "BOOL": (torch.bool, np.bool_),
    "U8": (torch.uint8, np.uint8),
    "I8": (torch.int8, np.int8),
    "I16": (torch.int16, np.int16),
    "I32": (torch.int32, np.int32),
    "I64": (torch.int64, np.int64),
    "F16": (torch.float16, np.float16),
    # numpy has no such type: its bits travel as whole numbers.
    "BF16": (torch.bfloat16, np.int16),
    "F32": (torch.float32, np.float32),
    "F64": (torch.float64, np.float64),
}
_NAMES = {dtype: name for name, (dtype, _) in _FORMATS.items()}

Columns = dict[str, np.ndarray]
"""Rows by the name of the column, `[rows, ...]` each."""


class ReplayDamaged(ValueError):
    """A file of a saved buffer that is missing or is not what was written."""


class ReplayDiskError(OSError):
    """A file of a buffer that could not be written; says which, and what to do."""


@dataclass(frozen=True)
class Field:
    """A column.

    Attributes:
        format: name of its type in safetensors.
        shape: of one row.
    """

    format: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor, name: str, lead: int) -> Field:
        """Describe the rows of a tensor.

        Args:
            tensor: it.
            name: its name, for the error.
            lead: dimensions before those of a row.
        """
        if tensor.dtype not in _NAMES:
            raise ValueError(
                f"{name} is {tensor.dtype}; a replay buffer keeps "
                f"{', '.join(str(dtype) for dtype in _NAMES)}"
            )
        return cls(_NAMES[tensor.dtype], tuple(tensor.shape[lead:]))

    @property
    def dtype(self) -> np.dtype:
        """Type of its arrays."""
        return np.dtype(_FORMATS[self.format][1])

    @property
    def is_float(self) -> bool:
        """Whether it holds real numbers."""
        return self.format == "BF16" or self.dtype.kind == "f"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * prod(self.shape)

    def tensor(self, array: np.ndarray) -> Tensor:
        """Return rows as a tensor that shares their memory."""
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if self.format == "BF16" else tensor


Layout = dict[str, Field]
"""Columns of a table by name."""


def row_bytes(layout: Layout) -> int:
    """Return the bytes of one row of a table."""
    return sum(field.row_bytes for field in layout.values())


def plain_layout(layout: Layout) -> dict[str, list[Any]]:
    """Return a layout as plain data."""
    return {name: [field.format, list(field.shape)] for name, field in layout.items()}


def layout_of_plain(plain: Mapping[str, Any]) -> Layout:
    """Return the layout that plain data describe."""
    return {name: Field(kind, tuple(shape)) for name, (kind, shape) in plain.items()}


# -- nested tensors --------------------------------------------------------------------------------


def flatten(tree: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a nested dict by path, such as `obs/camera/left`.

    Args:
        tree: dicts of dicts of tensors.
        prefix: first part of the paths.

    Raises:
        ValueError: something else is in it, or a name has a slash.
    """
    flat: dict[str, Tensor] = {}
    for key, value in tree.items():
        if not isinstance(key, str) or not key or SEPARATOR in key:
            raise ValueError(f"{prefix} has the name {key!r}; names are texts without a slash")
        name = f"{prefix}{SEPARATOR}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, name)
        elif isinstance(value, Tensor):
            flat[name] = value
        else:
            raise ValueError(
                f"{name} is a {type(value).__name__}; a replay buffer keeps tensors and dicts of "
                "tensors: turn texts into token ids"
            )
    return flat


def nest(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return what `flatten` made flat; other prefixes are left out."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        first, *parts = path.split(SEPARATOR)
        if first != prefix or not parts:
            continue
        node = tree
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = value
    return tree


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array, sharing its memory where it is on the host."""
    tensor = tensor.detach().cpu()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


# -- segment files ---------------------------------------------------------------------------------


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make a failure of the block one that names a file."""
    try:
        yield
    except OSError as error:
        raise ReplayDiskError(
            error.errno,
            f"{error.strerror or error}; the replay buffer needs room there: free some, choose "
            "another folder, or lower its capacity",
            str(path),
        ) from error


def write_segment(path: Path, layout: Layout, columns: Columns) -> int:
    """Write rows to a file, and wait until the disk has them.

    Returns:
        The checksum of the file.

    Raises:
        ReplayDiskError: the disk is full or closed; what was written is removed.
    """
    rows = len(next(iter(columns.values())))
    checksum = 0
    try:
        with naming(path), open(path, "wb") as file:
            for data in (_header(layout, rows), *(_bytes(columns[name]) for name in order(layout))):
                checksum = zlib.crc32(data, checksum)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return checksum


def allocate_segment(path: Path, layout: Layout, rows: int) -> Columns:
    """Make a file of so many rows, all of it on the disk, and map it.

    Writing to a mapped file whose disk is full kills the process, so its room is taken here.

    Raises:
        ReplayDiskError: there is not enough room; the file is removed.
    """
    header = _header(layout, rows)
    try:
        with naming(path), open(path, "wb") as file:
            file.write(header)
            file.flush()
            os.posix_fallocate(file.fileno(), 0, len(header) + rows * row_bytes(layout))
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return map_segment(path, layout, rows, "r+")


def map_segment(path: Path, layout: Layout, rows: int, mode: str = "r") -> Columns:
    """Map the columns of a file.

    Raises:
        ReplayDamaged: it is not there, or is not a file of these columns and rows.
    """
    header = _header(layout, rows)
    size = len(header) + rows * row_bytes(layout)
    try:
        actual = path.stat().st_size
        with open(path, "rb") as file:
            begin = file.read(len(header))
    except FileNotFoundError as error:
        raise ReplayDamaged(f"{path} is missing; use another copy of the buffer") from error
    if actual != size:
        raise ReplayDamaged(
            f"{path} has {actual} bytes instead of {size}; use another copy of the buffer"
        )
    if begin != header:
        raise ReplayDamaged(
            f"{path} does not hold {rows} rows of {', '.join(layout)}; use another copy of the "
            "buffer"
        )
    columns, offset = {}, len(header)
    for name in order(layout):
        field = layout[name]
        shape = (rows, *field.shape)
        columns[name] = np.memmap(path, field.dtype, mode, offset, shape)
        offset += rows * field.row_bytes
    return columns


def checksum_of(path: Path) -> int:
    """Return the checksum of a file."""
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def order(layout: Layout) -> list[str]:
    """Return the names of columns as they lie in a file: wide types first, so all are aligned."""
    return sorted(layout, key=lambda name: (-layout[name].dtype.itemsize, name))


def _header(layout: Layout, rows: int) -> bytes:
    entries, offset = {}, 0
    for name in order(layout):
        field = layout[name]
        end = offset + rows * field.row_bytes
        shape = [rows, *field.shape]
        entries[name] = {"dtype": field.format, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
