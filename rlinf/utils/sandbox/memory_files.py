"""Files of a program that may write none: relative paths are kept in its memory."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from typing import Any


class MemoryFiles:
    """Takes the place of `open`, and of a few functions of `os`, for relative paths.

    A convenience for programs and no border: the sandbox refuses to write files in any case.

    Attributes:
        contents: of the files, by path.
    """

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self._open, self._listdir = io.open, os.listdir
        self._exists, self._isfile = os.path.exists, os.path.isfile
        self._remove = os.remove

    def install(self) -> None:
        """Let the program use them."""
        builtins.open = io.open = self.open
        os.listdir, os.remove, os.unlink = self.listdir, self.remove, self.remove
        os.path.exists, os.path.isfile = self.exists, self.isfile

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file of the program, or one that may be read."""
        path = self._own(file)
        if path is None or ("r" in mode and "+" not in mode and path not in self.contents):
            return self._open(file, mode, *args, **kwargs)
        if "x" in mode and path in self.contents:
            raise FileExistsError(17, "File exists", path)
        if "r" in mode and path not in self.contents:
            raise FileNotFoundError(2, "No such file or directory", path)
        before = b"" if "w" in mode or "x" in mode else self.contents.get(path, b"")
        writes = any(letter in mode for letter in "wxa+")

        def keep(content: bytes) -> None:
            if writes:
                self.contents[path] = content

        raw = _File(before, keep)
        if writes:
            keep(before)
        if "a" in mode:
            raw.seek(0, os.SEEK_END)
        if "b" in mode:
            return raw
        names = ("buffering", "encoding", "errors", "newline")
        given = dict(zip(names, args, strict=False)) | kwargs
        wanted = {name: given[name] for name in names[1:] if name in given}
        return io.TextIOWrapper(raw, write_through=True, **{"encoding": "utf-8"} | wanted)

    def exists(self, path: Any) -> bool:
        """Return whether there is a file."""
        return self._own(path) in self.contents or self._exists(path)

    def isfile(self, path: Any) -> bool:
        """Return whether there is a file, and no folder."""
        return self._own(path) in self.contents or self._isfile(path)

    def listdir(self, path: Any = ".") -> list[str]:
        """Return the files of the program; others elsewhere."""
        if os.fspath(path) in (".", "", "./"):
            return sorted(self.contents)
        return self._listdir(path)

    def remove(self, path: Any, **kwargs: Any) -> None:
        """Remove a file of the program."""
        own = self._own(path)
        if own not in self.contents:
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        del self.contents[own]

    def _own(self, file: Any) -> str | None:
        """Return the path of a file of the program; None for others."""
        if isinstance(file, int):
            return None
        try:
            path = os.fsdecode(file)
        except TypeError:
            return None
        return None if os.path.isabs(path) else os.path.normpath(path)


class _File(io.BytesIO):
    """A file whose content is kept when it is flushed or closed."""

    def __init__(self, content: bytes, keep: Callable[[bytes], None]) -> None:
        super().__init__(content)
        self._keep = keep

    def flush(self) -> None:
        """Keep what was written until now."""
        super().flush()
        if not self.closed:
            self._keep(self.getvalue())

    def close(self) -> None:
        """Keep what was written."""
        if not self.closed:
            self._keep(self.getvalue())
        super().close()
