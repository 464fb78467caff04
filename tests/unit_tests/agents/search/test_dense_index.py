"""A dense index: the product with all embeddings, block by block, from a file."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.agents.search import dense_index
from rlinf.agents.search.dense_index import DenseIndex, encoder_registry, register_query_encoder
from rlinf.agents.search.documents import Document, SearchUnavailable
from rlinf.agents.search.text_index import TextIndex

SIZE, COUNT = 8, 50


@pytest.fixture(scope="module")
def texts():
    return TextIndex.of(Document(str(i), "", f"document {i}") for i in range(COUNT))


@pytest.fixture
def rows(tmp_path):
    rows = np.random.default_rng(0).standard_normal((COUNT, SIZE)).astype(np.float16)
    np.save(tmp_path / "rows.npy", rows)
    return rows


def vector(texts):
    """Embed a text that is numbers."""
    return [[float(number) for number in text.split()] for text in texts]


@pytest.mark.parametrize("block", [7, 65_536])
def test_the_largest_products_come_first(texts, rows, tmp_path, monkeypatch, block):
    monkeypatch.setattr(dense_index, "_BLOCK", block)
    index = DenseIndex(texts, tmp_path / "rows.npy", vector)
    assert isinstance(index._rows, np.memmap) and len(index) == COUNT
    query = np.random.default_rng(1).standard_normal(SIZE)
    found = index.search(" ".join(map(str, query)), 12)
    expected = np.argsort(-(rows.astype(np.float64) @ query))[:12]
    assert [hit.document.id for hit in found] == [str(row) for row in expected]
    scores = [hit.score for hit in found]
    assert scores == sorted(scores, reverse=True)
    assert len(index.search(" ".join(map(str, query)), 1000)) == COUNT


def test_embeddings_that_do_not_fit_are_named(texts, tmp_path):
    place = tmp_path / "other.npy"
    for array, said in (
        (np.zeros((COUNT - 1, SIZE)), "are of 49 documents"),
        (np.zeros(COUNT), "of shape"),
        (np.zeros((COUNT, SIZE), int), "int64 of shape"),
    ):
        np.save(place, array)
        with pytest.raises(ValueError, match=said):
            DenseIndex(texts, place, vector)
    place.write_bytes(b"text")
    with pytest.raises(ValueError, match="cannot read the embeddings"):
        DenseIndex(texts, place, vector)
    np.save(place, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="cannot read the embeddings"):
        DenseIndex(texts, place, vector)


@pytest.mark.parametrize("query", ["not numbers", "1 2 3", " ".join(["nan"] * SIZE)])
def test_an_encoder_that_fails_is_no_fault_of_the_query(texts, rows, tmp_path, query):
    index = DenseIndex(texts, tmp_path / "rows.npy", vector)
    with pytest.raises(SearchUnavailable, match="query encoder"):
        index.search(query, 3)


def test_encoders_are_registered_by_name():
    register_query_encoder("of numbers")(vector)
    assert encoder_registry.lookup("Of Numbers") is vector
    with pytest.raises(ValueError, match="texts"):
        register_query_encoder("of nothing")(lambda: None)
    with pytest.raises(ValueError, match="register_query_encoder"):
        encoder_registry.lookup("no such encoder")
