"""What a feature of a dataset is: its kind, its shape, its Arrow type, and what fits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinf.data.lerobot.errors import DatasetError, arrow

NUMBERS = (
    "bool",
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
PICTURES = ("image", "video")
KINDS = (*NUMBERS, "string", *PICTURES)

_CHANNELS = ("channel", "channels", "c", "rgb")


@dataclass(frozen=True)
class Feature:
    """One column of the frames, or one camera.

    Attributes:
        name: Its key, such as `observation.images.top`.
        dtype: One of `KINDS`. `image` is kept in the tables as PNG, `video` in mp4 files.
        shape: Of one value; `(1,)` is a scalar in the tables. Of a picture as `names` says.
        names: What the dimensions, or the entries of a vector, are called.
        info: What else `meta/info.json` says about it: codec, size and rate of a video.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def is_picture(self) -> bool:
        """Whether values are pictures."""
        return self.dtype in PICTURES

    @property
    def picture_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        first, second, third = self.shape
        return (second, third, first) if self._channels_first else (first, second, third)

    @property
    def _channels_first(self) -> bool:
        names = self.names
        if isinstance(names, (list, tuple)) and len(names) == 3:
            if str(names[0]).lower() in _CHANNELS:
                return True
            if str(names[2]).lower() in _CHANNELS:
                return False
        return self.shape[0] in (1, 3, 4) and self.shape[2] not in (1, 3, 4)

    def to_json(self) -> dict[str, Any]:
        """Return the entry in `meta/info.json`."""
        entry = {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}
        return {**entry, "info": self.info} if self.info else entry

    def check(self, value: Any, where: str) -> Any:
        """Return a value as it is stored: an array of the right type and shape, or a text.

        Args:
            value: An array, tensor, number or text. Numbers may be of another type if none of
                them changes by more than rounding: float64 fits float32, 1.5 does not fit int64.
            where: File, episode and frame, for the error.

        Raises:
            DatasetError: It does not fit.
        """
        where = f"{where}, feature '{self.name}'"
        if self.dtype == "string":
            if not isinstance(value, str):
                raise DatasetError(f"{where}: {type(value).__name__} was given; it holds texts")
            return value
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if self.is_picture:
            return self._check_picture(array, where)
        if array.shape == () and self.shape == (1,):
            array = array.reshape(1)
        if array.shape != self.shape:
            raise DatasetError(f"{where}: shape {array.shape} was given; it is {self.shape}")
        if array.dtype.kind not in "biuf":
            raise DatasetError(f"{where}: {array.dtype} was given; it holds {self.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DatasetError(f"{where}: NaN or infinity was given; values must be finite")
        stored = array.astype(self.dtype)
        if np.dtype(self.dtype).kind == "f":
            if not np.isfinite(stored).all():
                raise DatasetError(f"{where}: {array.max()} does not fit {self.dtype}")
        elif not np.array_equal(stored, array):
            raise DatasetError(
                f"{where}: {array.ravel()[:4].tolist()} was given ({array.dtype}); "
                f"it does not fit {self.dtype}"
            )
        return stored

    def _check_picture(self, array: np.ndarray, where: str) -> np.ndarray:
        height, width, channels = self.picture_shape
        if array.shape == (channels, height, width) != (height, width, channels):
            array = array.transpose(1, 2, 0)
        if array.shape != (height, width, channels):
            raise DatasetError(
                f"{where}: shape {array.shape} was given; it is {(height, width, channels)}"
            )
        if array.dtype != np.uint8:
            raise DatasetError(f"{where}: {array.dtype} was given; pictures are uint8, 0 to 255")
        return np.ascontiguousarray(array)

    def arrow_type(self) -> Any:
        """Return the Arrow type of its column; a video has none."""
        pa = arrow()
        if self.dtype == "image":
            return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        if self.dtype == "string":
            return pa.string()
        value = pa.bool_() if self.dtype == "bool" else pa.from_numpy_dtype(np.dtype(self.dtype))
        if self.shape == (1,):
            return value
        if len(self.shape) == 1:
            return pa.list_(value, self.shape[0])
        for _ in self.shape:
            value = pa.list_(value)
        return value

    def hub_type(self) -> dict[str, Any]:
        """Return how the library datasets describes its column, for the schema of the tables."""
        if self.dtype == "image":
            return {"_type": "Image"}
        scalar = {"dtype": self.dtype, "_type": "Value"}
        if self.dtype == "string" or self.shape == (1,):
            return scalar
        if len(self.shape) == 1:
            return {"feature": scalar, "length": self.shape[0], "_type": "Sequence"}
        kind = f"Array{len(self.shape)}D"
        return {"shape": list(self.shape), "dtype": self.dtype, "_type": kind}


OWN = {
    "timestamp": Feature("timestamp", "float32", (1,)),
    "frame_index": Feature("frame_index", "int64", (1,)),
    "episode_index": Feature("episode_index", "int64", (1,)),
    "index": Feature("index", "int64", (1,)),
    "task_index": Feature("task_index", "int64", (1,)),
}
"""Features that every dataset has, and that the writer fills in."""


def make_features(given: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Feature]:
    """Return features from their entries as `meta/info.json` has them.

    Args:
        given: `dtype`, `shape` and maybe `names` and `info` of each.
        where: The file, for the error.

    Raises:
        DatasetError: An entry is not valid.
    """
    features = {}
    for name, entry in given.items():
        place = f"{where}, feature '{name}'"
        if not isinstance(entry, Mapping) or not {"dtype", "shape"} <= set(entry):
            raise DatasetError(f"{place}: {entry!r} was found; it needs dtype and shape")
        dtype, shape = str(entry["dtype"]), entry["shape"]
        if dtype not in KINDS:
            raise DatasetError(f"{place}: dtype {dtype!r} is none of {', '.join(KINDS)}")
        if "/" in name:
            raise DatasetError(f"{place}: a name must not have '/'; use '.'")
        if not isinstance(shape, (list, tuple)) or not all(
            isinstance(size, (int, np.integer)) and size > 0 for size in shape
        ):
            raise DatasetError(f"{place}: shape {shape!r} is not a list of positive numbers")
        if dtype in PICTURES and len(shape) != 3:
            raise DatasetError(f"{place}: shape {shape!r}; a picture has height, width, channels")
        if not 1 <= len(shape) <= 5:
            raise DatasetError(f"{place}: shape {shape!r}; one to five dimensions are possible")
        sizes = tuple(int(size) for size in shape)
        info = dict(entry.get("info") or entry.get("video_info") or {})
        features[name] = Feature(name, dtype, sizes, entry.get("names"), info)
    return features


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under dotted names as nested dicts: `a.b` becomes `["a"]["b"]`.

    Raises:
        DatasetError: A name is both a value and a group.
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, leaf = name.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
            if not isinstance(node, dict):
                raise DatasetError(f"feature '{name}' lies inside '{group}', which is a value")
        if leaf in node:
            raise DatasetError(f"feature '{name}' is both a value and a group of features")
        node[leaf] = value
    return tree
