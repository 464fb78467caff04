"""The error of this package, and imports of the libraries that it reads and writes with."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rlinf.utils.extras import install_hint


class DatasetError(ValueError):
    """A dataset, or what is to be written into it, is not as the format wants it."""


def library(name: str, purpose: str) -> Any:
    """Import a library of the extra `datasets`.

    Args:
        name: The module, such as `pyarrow.parquet`.
        purpose: What it is needed for, for the error.

    Raises:
        DatasetError: The library is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise DatasetError(f"{purpose} ({error}): {install_hint('datasets')}") from error


def arrow() -> Any:
    """Return pyarrow."""
    return library("pyarrow", "tables of LeRobot datasets need pyarrow")


def parquet() -> Any:
    """Return pyarrow.parquet."""
    return library("pyarrow.parquet", "tables of LeRobot datasets need pyarrow")


def pyav() -> Any:
    """Return PyAV."""
    return library("av", "videos of LeRobot datasets need the package av")


def pillow() -> Any:
    """Return PIL.Image."""
    return library("PIL.Image", "pictures in tables of LeRobot datasets need pillow")
