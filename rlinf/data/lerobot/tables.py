"""Frames as parquet: columns of an episode to a table, and a range of rows back to arrays."""

from __future__ import annotations

import bisect
import io
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.lerobot.errors import DatasetError, arrow, parquet, pillow
from rlinf.data.lerobot.features import OWN, Feature

_KEPT_ROW_GROUPS = 4


def frame_schema(features: Mapping[str, Feature]) -> Any:
    """Return the Arrow schema of the tables of frames; videos have no column."""
    pa = arrow()
    stored = [feature for feature in features.values() if feature.dtype != "video"]
    hub = {"info": {"features": {feature.name: feature.hub_type() for feature in stored}}}
    fields = [pa.field(feature.name, feature.arrow_type()) for feature in stored]
    return pa.schema(fields, metadata={"huggingface": json.dumps(hub)})


def make_table(features: Mapping[str, Feature], columns: Mapping[str, Any]) -> Any:
    """Return the table of an episode.

    Args:
        features: All features of the dataset.
        columns: An array `[T, *shape]` of numbers, or a list of texts or of pictures as PNG, for
            each feature that is not a video.
    """
    pa = arrow()
    schema = frame_schema(features)
    arrays = [_to_arrow(features[name], columns[name]) for name in schema.names]
    return pa.Table.from_arrays(arrays, schema=schema)


def _to_arrow(feature: Feature, values: Any) -> Any:
    pa = arrow()
    kind = feature.arrow_type()
    if feature.dtype == "image":
        return pa.array([{"bytes": png, "path": None} for png in values], type=kind)
    if feature.dtype == "string":
        return pa.array(list(values), type=kind)
    if feature.shape == (1,):
        return pa.array(np.asarray(values).reshape(-1), type=kind)
    flat = pa.array(np.asarray(values).reshape(-1))
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    for size in reversed(feature.shape):
        offsets = pa.array(np.arange(0, len(flat) + 1, size, dtype=np.int32))
        flat = pa.ListArray.from_arrays(offsets, flat)
    return flat


def from_arrow(feature: Feature, column: Any, where: str) -> Any:
    """Return a column as an array `[T, *shape]`, `[T]` of own features, or a list of texts.

    Args:
        feature: What the column holds; pictures come as uint8 `[T, H, W, C]`.
        column: The Arrow column.
        where: File and episode, for the error.

    Raises:
        DatasetError: The column does not hold what the feature says.
    """
    where = f"{where}, feature '{feature.name}'"
    if column.null_count:
        raise DatasetError(f"{where}: {column.null_count} of {len(column)} values are missing")
    if feature.dtype == "string":
        return column.to_pylist()
    if feature.dtype == "image":
        cells = (cell["bytes"] if isinstance(cell, dict) else cell for cell in column.to_pylist())
        return np.stack([decode_picture(cell, feature, where) for cell in cells])
    pa = arrow()
    rows, flat = len(column), column.combine_chunks()
    if isinstance(flat, pa.ChunkedArray):
        flat = pa.concat_arrays(flat.chunks) if flat.num_chunks else pa.array([], flat.type)
    while hasattr(flat.type, "value_type"):
        flat = flat.flatten()
    values = flat.to_numpy(zero_copy_only=False)
    if values.size != rows * int(np.prod(feature.shape)) or flat.null_count:
        raise DatasetError(
            f"{where}: {rows} frames have {values.size} numbers; each has shape {feature.shape}"
        )
    if values.dtype.kind not in "biuf":
        raise DatasetError(f"{where}: {flat.type} was found; it holds {feature.dtype}")
    shape = (rows,) if feature.name in OWN else (rows, *feature.shape)
    return values.astype(feature.dtype).reshape(shape)


def encode_picture(picture: np.ndarray) -> bytes:
    """Return a picture, uint8 `[H, W, C]`, as PNG."""
    buffer = io.BytesIO()
    pixels = picture[..., 0] if picture.shape[-1] == 1 else picture
    pillow().fromarray(pixels).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def decode_picture(data: bytes | None, feature: Feature, where: str) -> np.ndarray:
    """Return a picture as uint8 `[H, W, C]`.

    Raises:
        DatasetError: It cannot be read, or has another size than the feature says.
    """
    if not data:
        raise DatasetError(f"{where}: a picture is not in the table; the format embeds its bytes")
    channels = feature.picture_shape[2]
    try:
        with pillow().open(io.BytesIO(data)) as image:
            mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels, image.mode)
            picture = np.asarray(image.convert(mode))
    except (OSError, SyntaxError) as error:
        raise DatasetError(
            f"{where}: a picture of {len(data)} bytes is damaged: {error}"
        ) from error
    picture = picture.reshape(*picture.shape[:2], -1)
    if picture.shape != feature.picture_shape:
        raise DatasetError(
            f"{where}: a picture is {picture.shape}; {feature.picture_shape} is declared"
        )
    return picture


def open_parquet(path: Path) -> Any:
    """Open a parquet file.

    Raises:
        DatasetError: It is missing or damaged.
    """
    try:
        return parquet().ParquetFile(path)
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing") from error
    except (OSError, arrow().ArrowException) as error:
        size = path.stat().st_size if path.is_file() else 0
        raise DatasetError(f"{path} ({size} bytes) is not a whole parquet file: {error}") from error


def write_tables(path: Path, tables: Iterable[Any], schema: Any) -> int:
    """Write tables as the row groups of a file.

    Args:
        path: The file.
        tables: In order, each of one or some whole episodes.
        schema: Of all of them.

    Returns:
        The number of rows.
    """
    rows = 0
    with parquet().ParquetWriter(path, schema, compression="snappy") as writer:
        for table in tables:
            writer.write_table(table.cast(schema))
            rows += table.num_rows
    return rows


def row_groups(path: Path, rows: int) -> Iterator[Any]:
    """Yield the row groups of a file as tables, up to a number of rows in all."""
    with open_parquet(path) as file:
        for group in range(file.num_row_groups):
            if rows <= 0:
                return
            table = file.read_row_group(group)
            yield table.slice(0, rows)
            rows -= table.num_rows


class FrameTable:
    """One parquet file of frames, of which ranges of rows are read."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            DatasetError: It is missing or damaged.
        """
        self.path = path
        self._file = open_parquet(path)
        sizes = [
            self._file.metadata.row_group(group).num_rows
            for group in range(self._file.num_row_groups)
        ]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()
        self._kept: OrderedDict[tuple, Any] = OrderedDict()

    @property
    def rows(self) -> int:
        """Number of rows in the file."""
        return self._starts[-1]

    def read(self, start: int, stop: int, columns: Sequence[str], where: str) -> Any:
        """Return some columns of the rows `start` to `stop`.

        Raises:
            DatasetError: The file does not have them.
        """
        absent = [name for name in columns if name not in self._file.schema_arrow.names]
        if absent:
            raise DatasetError(
                f"{where}: {self.path} has no column {', '.join(absent)}; it has "
                f"{', '.join(self._file.schema_arrow.names)}"
            )
        if not 0 <= start < stop <= self.rows:
            raise DatasetError(
                f"{where}: rows {start} to {stop} of {self.path} are wanted; it has {self.rows}"
            )
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_left(self._starts, stop)
        groups = [self._group(group, tuple(columns), where) for group in range(first, last)]
        offset = start - self._starts[first]
        return arrow().concat_tables(groups).slice(offset, stop - start)

    def _group(self, group: int, columns: tuple[str, ...], where: str) -> Any:
        key = (group, columns)
        if key not in self._kept:
            try:
                self._kept[key] = self._file.read_row_group(group, columns=list(columns))
            except (OSError, arrow().ArrowException) as error:
                raise DatasetError(f"{where}: {self.path} is damaged: {error}") from error
            while len(self._kept) > _KEPT_ROW_GROUPS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def close(self) -> None:
        """Close the file."""
        self._kept.clear()
        self._file.close()
