"""The `agentloop.search` section: what the tool `search` searches."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section


class SearchConfig(Section):
    """Where documents are, and how the model reads them."""

    index: str | None = Field(
        None,
        description="Index that `python -m toolkits.search build` wrote. Without this and url, an "
        "index is built of the documents that the dataset brings.",
    )
    url: str | None = Field(
        None,
        description="Search service to ask, such as http://127.0.0.1:8000/retrieve; its key is in "
        "the environment variable RLINF_SEARCH_KEY.",
    )
    embeddings: str | None = Field(
        None,
        description="NumPy file with an embedding of each document of the index, `[N, D]`: search "
        "by their product with that of the query.",
    )
    encoder: str | None = Field(
        None, description="Registered function that makes the embeddings of queries."
    )
    top_k: Int = Field(3, ge=1, le=100, description="Documents that a search finds.")
    result: str = Field(
        'Doc {rank}(Title: "{title}") {text}',
        description="How the model reads a document; {rank}, {id}, {title} and {text} are filled "
        "in. Documents stand in lines of their own.",
    )
    nothing: str = Field("nothing was found", description="What the model reads without any.")
    inline: bool = Field(
        False,
        description="Search at once, in the thread that serves all episodes: for indexes that "
        "answer within a millisecond. A run can then be repeated exactly.",
    )
    cache: Int = Field(4096, ge=0, description="Queries whose results are kept.")
    timeout: Float = Field(5.0, gt=0, description="Time for a search (s).")
