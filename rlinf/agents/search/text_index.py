"""A text index in one file: SQLite's FTS5, ranked by BM25."""

from __future__ import annotations

import os
import queue
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from rlinf.agents.search.documents import Document, Hit, SearchUnavailable
from rlinf.agents.search.queries import match_all, match_any, words_of

FORMAT = 1
"""Of the file; one of another number has to be built again."""
_TITLE_WEIGHT = 4.0
"""What a word in the title counts, by one in the text."""
_COMMON = ((0.5, 100), (0.1, 10_000))
"""A word that more of the documents have than a share, and more than a number, is common."""
_TICKS = 10_000
"""Instructions of SQLite between two looks at the clock."""


def build_index(path: str | Path, documents: Iterable[Document], stemming: bool = False) -> int:
    """Write an index; return the number of documents.

    The file is complete, or it is not there: what was there before stays until then.

    Args:
        path: of the file.
        documents: what it is of.
        stemming: whether `fathers` finds `father`; for English.

    Raises:
        ValueError: there is no document, or the folder is not there.
    """
    place = Path(path)
    if not place.parent.is_dir():
        raise ValueError(f"there is no folder {place.parent} for the index {place.name}")
    part = place.with_name(f"{place.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        count = _write(part, documents, stemming)
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)
    return count


def _write(place: Path, documents: Iterable[Document], stemming: bool) -> int:
    tokenizer = "porter unicode61" if stemming else "unicode61"
    base = sqlite3.connect(place)
    try:
        base.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE VIRTUAL TABLE documents USING "
            f"fts5(id UNINDEXED, title, text, tokenize = '{tokenizer}');"
            "CREATE TABLE common (word TEXT PRIMARY KEY) WITHOUT ROWID;"
            "CREATE VIRTUAL TABLE words USING fts5vocab(documents, 'row');"
        )
        with base:
            # Rows are numbered from 1, in the order of the documents: a dense index counts on it.
            base.executemany(
                "INSERT INTO documents (rowid, id, title, text) VALUES (?, ?, ?, ?)",
                (
                    (row, *map(_storable, (each.id, each.title, each.text)))
                    for row, each in enumerate(documents, 1)
                ),
            )
            (count,) = base.execute("SELECT count(*) FROM documents").fetchone()
            if not count:
                raise ValueError("there is no document to build an index of")
            base.execute("INSERT INTO documents (documents) VALUES ('optimize')")
            many = min(max(share * count, number) for share, number in _COMMON)
            base.execute("INSERT INTO common SELECT term FROM words WHERE doc > ?", (many,))
            base.execute("DROP TABLE words")
        base.execute(f"PRAGMA user_version = {FORMAT}")
    finally:
        base.close()
    return count


def _storable(text: str) -> str:
    """Return a text without what UTF-8 cannot say."""
    return text.encode("utf-8", "replace").decode("utf-8")


class TextIndex:
    """Searches a file that `build_index` wrote; from any number of threads.

    Documents with all words of a query come first, by BM25 with more weight on titles; then those
    with any. Where two are equal, the earlier one of the corpus comes first, so that a query has
    one answer.

    Args:
        path: of the file.
        timeout: seconds that a query may take.

    Raises:
        ValueError: there is no such file, or it is no index.
    """

    def __init__(self, path: str | Path, timeout: float = 5.0) -> None:
        self.path, self._timeout = Path(path), timeout
        if not self.path.is_file():
            raise ValueError(
                f"there is no index {self.path}; build one: python -m toolkits.search build "
                f"CORPUS.jsonl {self.path}"
            )
        self._free: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            with self._connection() as base:
                version = base.execute("PRAGMA user_version").fetchone()[0]
                self._common = (
                    {word for (word,) in base.execute("SELECT word FROM common")}
                    if version == FORMAT
                    else set()
                )
                count = "SELECT count(*) FROM documents" if version == FORMAT else "SELECT 0"
                self._count = int(base.execute(count).fetchone()[0])
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path} is no search index: {error}") from error
        if version != FORMAT:
            raise ValueError(
                f"{self.path} is no search index of format {FORMAT} but {version}; build it again: "
                f"python -m toolkits.search build CORPUS.jsonl {self.path}"
            )

    @classmethod
    def of(cls, documents: Iterable[Document], timeout: float = 5.0) -> TextIndex:
        """Index documents in a file of this process, which goes with the index."""
        folder = tempfile.TemporaryDirectory(prefix="rlinf-search-")
        place = Path(folder.name) / "index.sqlite"
        build_index(place, documents)
        made = cls(place, timeout)
        made._folder = folder
        return made

    def __len__(self) -> int:
        """Return the number of documents."""
        return self._count

    def search(self, query: str, limit: int) -> list[Hit]:
        """See `Searcher.search`; words are searched for, and no syntax is known.

        Raises:
            SearchUnavailable: the query took too long, or the file cannot be read any more.
        """
        words = words_of(query, self._common)
        if not words or limit < 1:
            return []
        try:
            with self._connection() as base, _deadline(base, self._timeout):
                found = _ranked(base, match_all(words), limit)
                if len(found) < limit and len(words) > 1:
                    known = {row for row, _ in found}
                    more = _ranked(base, match_any(words), limit + len(known))
                    found += [each for each in more if each[0] not in known]
                found = found[:limit]
                documents = _documents(base, [row for row, _ in found])
        except sqlite3.DatabaseError as error:
            if "interrupted" in str(error):
                raise SearchUnavailable(
                    f"a search in {self.path.name} took more than {self._timeout:g} s"
                ) from error
            raise SearchUnavailable(f"cannot search {self.path}: {error}") from error
        return [Hit(document, score) for document, (_, score) in zip(documents, found, strict=True)]

    def documents(self, rows: Sequence[int]) -> list[Document]:
        """Return the documents of row numbers, from 1, in the order that was asked for."""
        with self._connection() as base:
            return _documents(base, rows)

    def close(self) -> None:
        """Close the file, once no search is under way."""
        while True:
            try:
                self._free.get_nowait().close()
            except queue.Empty:
                break
        if self._folder is not None:
            self._folder.cleanup()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection: threads share them one after the other, and never at once."""
        try:
            base = self._free.get_nowait()
        except queue.Empty:
            name = f"file:{quote(str(self.path.absolute()))}?mode=ro&immutable=1"
            base = sqlite3.connect(name, uri=True, check_same_thread=False)
        try:
            yield base
        finally:
            self._free.put(base)


def _ranked(base: sqlite3.Connection, match: str, limit: int) -> list[tuple[int, float]]:
    """Return numbers and scores of the best rows."""
    # SQLite's BM25 is negative: the best is the smallest.
    rows = base.execute(
        f"SELECT rowid, -bm25(documents, 0.0, {_TITLE_WEIGHT}, 1.0) AS score FROM documents "
        "WHERE documents MATCH ? ORDER BY score DESC, rowid LIMIT ?",
        (match, limit),
    )
    return [(int(row), float(score)) for row, score in rows]


def _documents(base: sqlite3.Connection, rows: Sequence[int]) -> list[Document]:
    query = "SELECT id, title, text FROM documents WHERE rowid = ?"
    return [Document(*base.execute(query, (row,)).fetchone()) for row in rows]


@contextmanager
def _deadline(base: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Interrupt what a connection does when the time is over."""
    end = time.monotonic() + seconds
    base.set_progress_handler(lambda: time.monotonic() > end, _TICKS)
    try:
        yield
    finally:
        base.set_progress_handler(None, _TICKS)
