"""The tool `search`: finds documents of a corpus, and shows them as the config says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from rlinf.agents.search.client import RemoteIndex
from rlinf.agents.search.dense_index import DenseIndex, encoder_registry
from rlinf.agents.search.documents import Document, Hit, Searcher, SearchUnavailable
from rlinf.agents.search.text_index import TextIndex
from rlinf.agents.tools.tool import Tool, tool_registry
from rlinf.agents.tools.toolbox import ToolFailed

Documents = Callable[[], Iterable[Document]]
"""Returns the documents that a run brings along."""


class SearchTool(Tool):
    """The tool as it is registered; `for_run` makes that of a run."""

    def __init__(self) -> None:
        super().__init__(_search, "search")

    def for_run(self, cfg: Any, documents: Documents | None = None) -> Tool:
        """Return the tool over what a config names.

        Args:
            cfg: the `agentloop` section.
            documents: those that the dataset brings; None if it brings none.

        Raises:
            ValueError: there is nothing to search, or it cannot be opened; says what to do.
        """
        settings = cfg.search
        if settings is None:
            raise ValueError(
                "agentloop.tools names search, and there is no section agentloop.search; name an "
                "index there, or a url"
            )
        searcher = open_searcher(settings, documents, deadline_of(cfg))
        return Tool(searching(searcher, settings), "search", inline=settings.inline)


def deadline_of(cfg: Any) -> float:
    """Return the seconds that a call of the tool may take."""
    own = cfg.tool_settings.get("search")
    own = own.get("timeout") if isinstance(own, Mapping) else getattr(own, "timeout", None)
    return cfg.tool_timeout if own is None else own


def open_searcher(
    settings: Any, documents: Documents | None = None, deadline: float = math.inf
) -> Searcher:
    """Open what the `agentloop.search` section names.

    Args:
        settings: the section.
        documents: see `SearchTool.for_run`.
        deadline: seconds that a search may take, whatever the section says.

    Raises:
        ValueError: there is nothing to search, or it cannot be opened.
    """
    if settings.url is not None:
        return RemoteIndex(settings.url, timeout=min(settings.timeout, deadline))
    if settings.index is not None:
        index = TextIndex(settings.index, settings.timeout)
    elif documents is not None:
        index = TextIndex.of(documents(), settings.timeout)
    else:
        raise ValueError(
            "there is nothing to search: agentloop.search has neither index nor url, and the "
            "dataset of data.type brings no documents; build an index with python -m "
            "toolkits.search build CORPUS.jsonl INDEX.sqlite"
        )
    if settings.embeddings is None:
        return index
    return DenseIndex(index, settings.embeddings, encoder_registry.lookup(settings.encoder))


def searching(searcher: Searcher, settings: Any) -> Callable[[str], str]:
    """Return the function that a model calls.

    Args:
        searcher: what is searched.
        settings: the `agentloop.search` section.
    """

    def answer(query: str) -> str:
        try:
            hits = searcher.search(query, settings.top_k)
        except SearchUnavailable as error:
            raise ToolFailed(f"the tool 'search' did not answer: {error}") from error
        return shown(hits, settings.result) or settings.nothing

    # The corpus does not change, and the episodes of a question often ask the same.
    known = lru_cache(maxsize=settings.cache)(answer)

    def search(query: str) -> str:
        return known(query)

    search.__doc__ = _search.__doc__
    return search


def shown(hits: Iterable[Hit], template: str) -> str:
    """Return documents as a model reads them, a line for each.

    Args:
        hits: what was found.
        template: text with fields in braces: rank, id, title, text.
    """
    lines = []
    for rank, hit in enumerate(hits, 1):
        found = hit.document
        lines.append(template.format(rank=rank, id=found.id, title=found.title, text=found.text))
    return "\n".join(lines)


def _search(query: str) -> str:
    """Search a collection of documents.

    Args:
        query: Words to look for.
    """
    raise RuntimeError("this tool is made for a run; see SearchTool.for_run")


tool_registry.register("search", SearchTool())
