"""From what a model writes to a query of SQLite: words, and no syntax."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_WORD = re.compile(r"[^\W_]+")

MOST_CHARACTERS = 2000
"""Characters of a query that are read; the rest is not."""
MOST_WORDS = 32
"""Words of a query that are searched for; the rest is not."""
_LONGEST_WORD = 64


def words_of(query: str, common: Collection[str] = ()) -> list[str]:
    """Return the words to search for: in lower case, each once, so many at most.

    Args:
        query: any text.
        common: words that nearly every document has; they are left out if there are others.
    """
    found = _WORD.findall(query[:MOST_CHARACTERS].lower())
    words = list(dict.fromkeys(word[:_LONGEST_WORD] for word in found))
    rare = [word for word in words if word not in common]
    return (rare or words)[:MOST_WORDS]


def match_all(words: Sequence[str]) -> str:
    """Return the query for documents with all words."""
    return " AND ".join(map(_quoted, words))


def match_any(words: Sequence[str]) -> str:
    """Return the query for documents with any of the words."""
    return " OR ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    # Words have no quotes in them; within quotes nothing is syntax.
    return f'"{word}"'
