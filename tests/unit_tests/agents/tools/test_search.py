"""The tool `search` of a run: what it searches, how the model reads it, and what fails."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.agents.loops import make_loop, schemas_for_template
from rlinf.agents.search.dense_index import register_query_encoder
from rlinf.agents.search.documents import Document, Hit, SearchUnavailable
from rlinf.agents.search.service import SearchService
from rlinf.agents.search.text_index import TextIndex, build_index
from rlinf.agents.tools.search import deadline_of, open_searcher, searching
from rlinf.agents.tools.toolbox import ToolCall, ToolFailed
from rlinf.config.schema.agentloop import AgentLoopConfig, ToolSettings
from rlinf.config.schema.search import SearchConfig

DOCUMENTS = [
    Document("0", "Oslo", "Oslo is the capital of Norway"),
    Document("1", "Rome", "Rome is the capital of Italy"),
    Document("2", "Lyon", "a city of France"),
]


def loop_section(**search):
    settings = {"tools": ["search"], "parser": "searchr1", "max_tool_characters": 400}
    return AgentLoopConfig(**settings, search=SearchConfig(**search))


async def asked(section, query, documents=None):
    _, tools = make_loop(section, None, documents=documents)
    return await tools.call(ToolCall("search", {"query": query}))


async def test_documents_of_the_data_are_indexed():
    found = await asked(loop_section(top_k=2), "capital Italy", lambda: DOCUMENTS)
    assert not found.error and found.text.splitlines() == [
        'Doc 1(Title: "Rome") Rome is the capital of Italy',
        'Doc 2(Title: "Oslo") Oslo is the capital of Norway',
    ]


async def test_an_index_a_service_and_embeddings_answer_alike(tmp_path):
    place = tmp_path / "index.sqlite"
    build_index(place, DOCUMENTS)
    expected = await asked(loop_section(index=str(place), top_k=1), "Rome")
    assert "capital of Italy" in expected.text
    service = SearchService(TextIndex(place)).start()
    try:
        assert await asked(loop_section(url=service.url, top_k=1), "Rome") == expected
    finally:
        service.close()
    np.save(tmp_path / "rows.npy", np.eye(3))
    register_query_encoder("capitals")(
        lambda texts: [[float(each.title in text) for each in DOCUMENTS] for text in texts]
    )
    dense = {"embeddings": str(tmp_path / "rows.npy"), "encoder": "capitals"}
    assert await asked(loop_section(index=str(place), top_k=1, **dense), "Rome") == expected


async def test_the_model_reads_what_the_config_says():
    section = loop_section(result="{rank}|{id}|{title}|{text}", top_k=1, nothing="no luck")
    found = await asked(section, 'France" OR', lambda: DOCUMENTS)
    assert found.text == "1|2|Lyon|a city of France"
    found = await asked(section, "{title} !", lambda: [Document("0", "", "{braces}")])
    assert (found.text, found.error) == ("no luck", False)
    found = await asked(section, "braces", lambda: [Document("0", "", "{braces}")])
    assert found.text == "1|0||{braces}"


def test_the_model_is_told_of_it_before_there_is_an_index():
    (schema,) = schemas_for_template(AgentLoopConfig(tools=["search"], parser="qwen"))
    parameters = schema["function"]["parameters"]
    assert schema["function"]["name"] == "search" and parameters["required"] == ["query"]


def test_nothing_to_search_is_an_error():
    with pytest.raises(ValueError, match="there is nothing to search"):
        open_searcher(SearchConfig())
    with pytest.raises(ValueError, match="agentloop.search"):
        make_loop(AgentLoopConfig(tools=["search"]), None)


class Flaky:
    """Answers at times."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    def search(self, query, limit):
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_results_are_kept_and_failures_are_not():
    flaky = Flaky(SearchUnavailable("gone"), [Hit(DOCUMENTS[0], 1.0)])
    search = searching(flaky, SearchConfig(result="{text}"))
    with pytest.raises(ToolFailed, match="did not answer: gone"):
        search("Oslo")
    assert search("Oslo") == search("Oslo") == "Oslo is the capital of Norway"
    assert flaky.asked == 2


def test_a_search_over_http_ends_before_the_tool_does():
    url = "http://127.0.0.1:9/retrieve"

    def seconds(**keys):
        section = loop_section(url=url, timeout=5.0)
        section = section.model_copy(update=keys)
        return open_searcher(section.search, None, deadline_of(section))._timeout

    assert seconds() == 5.0 and seconds(tool_timeout=2.0) == 2.0
    own = {"search": ToolSettings(timeout=3.0)}
    assert seconds(tool_timeout=2.0, tool_settings=own) == 3.0


def test_inline_is_for_what_answers_at_once():
    for inline in (False, True):
        _, tools = make_loop(loop_section(inline=inline), None, documents=lambda: DOCUMENTS)
        assert tools._tools["search"].inline is inline
