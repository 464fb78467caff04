"""A text index finds what fits best, whatever a model writes, from many threads."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.agents.search import text_index
from rlinf.agents.search.documents import Document, SearchUnavailable
from rlinf.agents.search.queries import MOST_WORDS, words_of
from rlinf.agents.search.text_index import TextIndex, build_index

PEOPLE = [f"{first} {last}" for first in ("ada", "ben", "eva") for last in ("dahl", "falk", "xu")]
DOCUMENTS = [
    Document(f"{relation} {person}", person, f"the {relation} of {person} is {other}")
    for i, person in enumerate(PEOPLE)
    for j, relation in enumerate(("father", "mother"))
    for other in [PEOPLE[(i + j + 1) % len(PEOPLE)]]
]


@pytest.fixture(scope="module")
def index():
    made = TextIndex.of(DOCUMENTS)
    yield made
    made.close()


def test_the_document_that_has_all_words_comes_first(index):
    assert len(index) == len(DOCUMENTS) == 18
    for document in DOCUMENTS:
        relation = document.text.split()[1]
        # The names are in other documents, too, as those of others.
        first, second = index.search(f"{relation} {document.title}", 2)
        assert first.document == document and first.score >= second.score


def test_then_come_those_with_any_word(index):
    found = [hit.document for hit in index.search("father ada dahl zanzibar", 50)]
    assert len(found) == len(set(found))
    assert found[0].text.startswith("the father of ada dahl")
    words = {"father", "ada", "dahl"}
    assert all(words & set(each.text.split()) for each in found) and len(found) > 9
    assert index.search("zanzibar", 3) == [] and index.search("father", 0) == []


def test_equal_documents_come_in_the_order_of_the_corpus():
    same = [Document(str(i), "", "a fact") for i in range(20)]
    made = TextIndex.of(same)
    assert [hit.document.id for hit in made.search("fact", 5)] == ["0", "1", "2", "3", "4"]


HOSTILE = [
    '"',
    "'; DROP TABLE documents; --",
    "ada AND",
    "ada NOT (",
    "NEAR(ada dahl, 1",
    "title:ada",
    "^ada*",
    "{title text} : ada",
    "-ada + dahl",
    "\x00ada\x00",
    "\ud800ada",
    "ada\u0301 \u0e31 \u093c",
    "(" * 10_000,
    "ada " * 100_000,
    " ".join(f"word{i}" for i in range(50_000)),
    "x" * 1_000_000,
]


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: repr(query[:12]))
def test_syntax_is_nothing_but_words(index, query):
    found = index.search(query, 3)
    assert bool(found) == ("ada" in query)
    assert len(index.search("father ada dahl", 1)) == 1


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_any_text_is_answered(index, query):
    assert len(index.search(query, 3)) <= 3


def test_a_query_has_so_many_words():
    assert words_of("Ada, ada: ÖSTER_LUND's 3rd!") == ["ada", "öster", "lund", "s", "3rd"]
    assert len(words_of(" ".join(map(str, range(1000))))) == MOST_WORDS
    assert words_of("the father of ada", {"the", "of"}) == ["father", "ada"]
    assert words_of("the of", {"the", "of"}) == ["the", "of"]


def test_words_that_nearly_all_documents_have_are_left_out():
    many = [Document(str(i), "", f"the fact number {i}") for i in range(300)]
    made = TextIndex.of(many)
    assert made._common == {"the", "fact", "number"}
    assert [hit.document.id for hit in made.search("the fact number 7", 3)] == ["7"]
    assert len(made.search("the", 3)) == 3


def test_stemming_is_asked_for(tmp_path):
    documents = [Document("1", "", "many fathers")]
    for stemming, found in ((False, 0), (True, 1)):
        build_index(tmp_path / "index", documents, stemming)
        assert len(TextIndex(tmp_path / "index").search("father", 3)) == found


def test_many_threads_search_at_once(index):
    together = threading.Barrier(16)

    def ask(seed: int) -> int:
        draw = random.Random(seed)
        together.wait()
        right = 0
        for _ in range(50):
            document = draw.choice(DOCUMENTS)
            query = f"{document.text.split()[1]} {document.title}"
            right += index.search(query, 1)[0].document == document
        return right

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == [50] * 16


def test_a_search_that_takes_too_long_is_ended(monkeypatch, index):
    monkeypatch.setattr(text_index, "_TICKS", 1)
    slow = TextIndex(index.path, timeout=1e-9)
    begin = time.monotonic()
    with pytest.raises(SearchUnavailable, match="took more than 1e-09 s"):
        slow.search("father ada", 3)
    assert time.monotonic() - begin < 60
    # The connection is as good as before.
    slow._timeout = 60.0
    assert len(slow.search("father ada", 3)) == 3


def test_files_that_are_no_index_are_named(tmp_path):
    with pytest.raises(ValueError, match="toolkits.search build"):
        TextIndex(tmp_path / "none")
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(ValueError, match="is no search index"):
        TextIndex(tmp_path / "text")
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE a (b)")
    with pytest.raises(ValueError, match="build it again"):
        TextIndex(tmp_path / "other")
    with pytest.raises(ValueError, match="there is no folder"):
        build_index(tmp_path / "folder" / "index", DOCUMENTS)


def test_an_index_is_whole_or_the_one_before(tmp_path):
    place = tmp_path / "an index?#.sqlite"
    assert build_index(place, DOCUMENTS) == len(DOCUMENTS)

    def broken():
        yield DOCUMENTS[0]
        raise ValueError("line 2")

    for documents, said in ((broken(), "line 2"), ([], "there is no document")):
        with pytest.raises(ValueError, match=said):
            build_index(place, documents)
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    assert len(TextIndex(place)) == len(DOCUMENTS)
