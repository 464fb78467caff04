"""A dense index: the product of a query's embedding with those of all documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.agents.search.documents import Hit, SearchUnavailable
from rlinf.agents.search.queries import MOST_CHARACTERS
from rlinf.agents.search.text_index import TextIndex
from rlinf.config.plugin_table import PluginTable
from rlinf.config.signatures import Call, check_call

QueryEncoder = Callable[[Sequence[str]], Any]
"""Returns the embeddings `[B, D]` of texts, in the space of those of the documents."""

_BLOCK = 65_536
"""Rows that are multiplied at a time, so that a large file is never in memory as a whole."""

encoder_registry: PluginTable[QueryEncoder] = PluginTable("query_encoder", {})


def register_query_encoder(
    name: str, *, replaces: bool = False
) -> Callable[[QueryEncoder], QueryEncoder]:
    """Register a function from texts to embeddings for `agentloop.search.encoder`.

    Args:
        name: What the user writes; case does not matter.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator for functions of a list of texts. It raises a ValueError if the name is taken.
    """

    def register(function: QueryEncoder) -> QueryEncoder:
        check_call(f"query encoder '{name}'", function, Call(("texts",)))
        encoder_registry.register(name, function, replaces=replaces)
        return function

    return register


class DenseIndex:
    """Searches by embeddings, which are read from a file as they are needed.

    The score of a document is the inner product with the query; give embeddings of length 1 for
    cosines. The documents themselves are those of a text index.

    Args:
        documents: index of the same corpus; row i of the file is its document i.
        embeddings: `.npy` file of `[N, D]` numbers.
        encoder: makes the embeddings of queries.

    Raises:
        ValueError: the file is not there, or does not fit the documents.
    """

    def __init__(self, documents: TextIndex, embeddings: str | Path, encoder: QueryEncoder) -> None:
        self._documents, self._encoder = documents, encoder
        try:
            self._rows = np.load(embeddings, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"cannot read the embeddings {embeddings}: {error}; give a file that numpy.save "
                "wrote"
            ) from error
        shape, kind = self._rows.shape, self._rows.dtype
        if len(shape) != 2 or kind.kind != "f":
            raise ValueError(
                f"the embeddings {embeddings} are {kind} of shape {list(shape)}; they must be "
                "floating-point numbers of shape [documents, size]"
            )
        if shape[0] != len(documents):
            raise ValueError(
                f"the embeddings {embeddings} are of {shape[0]} documents, but {documents.path} "
                f"has {len(documents)}; make both of the same corpus"
            )

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._documents)

    def search(self, query: str, limit: int) -> list[Hit]:
        """See `Searcher.search`.

        Raises:
            SearchUnavailable: the encoder failed, or made something else than an embedding.
        """
        limit = min(limit, len(self))
        if limit < 1:
            return []
        wanted = self._embedding(query[:MOST_CHARACTERS])
        best = np.empty(0, np.float32)
        rows = np.empty(0, np.int64)
        for first in range(0, len(self), _BLOCK):
            block = np.asarray(self._rows[first : first + _BLOCK], np.float32)
            best = np.concatenate([best, block @ wanted])
            rows = np.concatenate([rows, np.arange(first, first + len(block))])
            # Those of a block whose scores are equal stay in the order of the corpus.
            kept = np.argsort(-best, kind="stable")[:limit]
            best, rows = best[kept], rows[kept]
        documents = self._documents.documents([int(row) + 1 for row in rows])
        return [
            Hit(document, float(score)) for document, score in zip(documents, best, strict=True)
        ]

    def _embedding(self, query: str) -> np.ndarray:
        try:
            found = np.asarray(self._encoder([query]), np.float32)
        except Exception as error:
            # A function of the user may raise anything, and the query is not to blame.
            raise SearchUnavailable(
                f"the query encoder failed: {type(error).__name__}: {error}"
            ) from error
        size = self._rows.shape[1]
        if found.shape != (1, size) or not np.isfinite(found).all():
            raise SearchUnavailable(
                f"the query encoder returned numbers of shape {list(found.shape)}, or some that "
                f"are not finite; one query has [1, {size}], as the documents have"
            )
        return found[0]
