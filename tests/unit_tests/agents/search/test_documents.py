"""Corpora in JSONL: our fields, and those of Search-R1."""

import json

import pytest

from rlinf.agents.search.documents import Document, document_of, read_documents


def written(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_documents_are_read_in_both_layouts(tmp_path):
    path = written(
        tmp_path / "corpus.jsonl",
        {"id": 7, "title": "Oslo", "text": "a city"},
        {"text": "no title"},
        {"id": "b", "contents": '"Rome"\nanother city\nin Italy'},
        {"id": "c", "contents": "one line"},
    )
    path.write_text(path.read_text() + "\n")
    assert list(read_documents(path)) == [
        Document("7", "Oslo", "a city"),
        Document("1", "", "no title"),
        Document("b", "Rome", "another city\nin Italy"),
        Document("c", "", "one line"),
    ]


def test_what_is_written_as_contents_is_read_again():
    for document in (Document("1", "Oslo", "a city"), Document("2", "", "a city")):
        assert document_of({"id": document.id, "contents": document.contents}, "") == document


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "a"', "corpus.jsonl, line 2: "),
        ("[1]", "a document is a JSON object, not list"),
        ('{"titel": "x"}', "this has 'titel'"),
        ('{"text": 3}', 'has a "text"'),
    ],
)
def test_a_line_that_is_no_document_is_named(tmp_path, line, said):
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(ValueError) as caught:
        list(read_documents(path))
    assert said in str(caught.value) and "line 2" in str(caught.value)


def test_a_corpus_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        list(read_documents(tmp_path / "none.jsonl"))
