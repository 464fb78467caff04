"""What is searched: documents, what a search finds of them, and JSONL files of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Document:
    """A piece of text that can be found.

    Attributes:
        id: what names it.
        title: what it is about; may be empty.
        text: what it says.
    """

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text in one, as the corpora of Search-R1 have it."""
        return f'"{self.title}"\n{self.text}' if self.title else self.text


@dataclass(frozen=True)
class Hit:
    """A document that was found.

    Attributes:
        document: the document.
        score: how well it fits; larger is better. Scores of different queries do not compare.
    """

    document: Document
    score: float


class Searcher(Protocol):
    """Finds documents; from several threads at once."""

    def search(self, query: str, limit: int) -> list[Hit]:
        """Return the documents that fit a query best, the best first.

        Args:
            query: any text.
            limit: most documents.
        """
        ...


class SearchUnavailable(RuntimeError):
    """A search did not answer: no fault of the query."""


def read_documents(path: str | Path) -> Iterator[Document]:
    """Read a JSONL file: `id`, and `title` and `text`, or `contents` as Search-R1 has it.

    Without an `id` the number of the line, from 0, is the id. In `contents` the first line is the
    title, in quotes or not, if there are several.

    Raises:
        ValueError: the file is not there, or a line is no document; says which line.
    """
    place = Path(path)
    if not place.is_file():
        raise ValueError(f"there is no file {place}; give one with a JSON object in each line")
    with place.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file):
            if line.strip():
                try:
                    yield document_of(json.loads(line), str(number))
                except ValueError as error:
                    raise ValueError(f"{place}, line {number + 1}: {error}") from error


def document_of(value: Any, own_id: str) -> Document:
    """Read a document from plain data; see `read_documents`.

    Args:
        value: an object of JSON.
        own_id: id of one that has none.

    Raises:
        ValueError: it is no document.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a document is a JSON object, not {type(value).__name__}")
    title, text = value.get("title", ""), value.get("text")
    if text is None and isinstance(value.get("contents"), str):
        first, _, rest = value["contents"].partition("\n")
        title, text = (title or first.strip().strip('"'), rest) if rest else (title, first)
    if not isinstance(text, str) or not isinstance(title, str):
        raise ValueError(
            'a document has a "text" and may have a "title", or it has "contents", all of them '
            f"texts; this has {', '.join(map(repr, value)) or 'nothing'}"
        )
    return Document(str(value.get("id", own_id)), title, text)
