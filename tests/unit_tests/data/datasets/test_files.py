"""Records of JSONL and parquet files, and what is said of wrong ones."""

from __future__ import annotations

import json

import pytest

from rlinf.data.datasets import dataset_registry, make_dataset, register_dataset
from rlinf.data.datasets.base import PromptDataset, Record
from tests.unit_tests.data.settings import data_section

ROWS = [
    {"prompt": "1+1", "answer": "2", "level": 1},
    {"prompt": "2+2", "answer": {"target": ["4", "four"]}, "task": "sums", "level": 2},
]


def write(path, rows):
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return str(path)


def test_jsonl(tmp_path):
    cfg = data_section(
        train_data_paths=[write(tmp_path / "a.jsonl", ROWS)],
        val_data_paths=[write(tmp_path / "b.jsonl", ROWS[:1])],
    )
    train, val = (make_dataset(cfg, split, 0) for split in ("train", "val"))
    assert len(train) == 2 and len(val) == 1
    assert train[0] == Record("1+1", "2", "a", {"level": 1})
    assert train[1] == Record("2+2", {"target": ["4", "four"]}, "sums", {"level": 2})
    assert train.fingerprint() != val.fingerprint()


def test_parquet_with_other_keys_and_messages(tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    rows = [{"question": messages, "gold": 3, "work": "so 3"}, {"question": messages, "gold": 4}]
    rows[1]["work"] = None
    path = write(tmp_path / "c.parquet", rows)
    cfg = data_section(train_data_paths=[path], prompt_key="question", answer_key="gold")
    assert make_dataset(cfg, "train", 0)[1] == Record(messages, 4, "c", {"work": None})
    cfg.solution_key = "work"
    assert make_dataset(cfg, "train", 0)[0] == Record(messages, 3, "c", {}, "so 3")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"prmpt": "x", "answer": 1}', "has no field 'prompt'.*it has: answer, prmpt. did you m"),
        ('{"prompt": "x"}', r"record 1 has no field 'answer' \(data.answer_key\)"),
        ('{"prompt": 3, "answer": 1}', "the prompt is '3'; it must be a text, or a list of mess"),
        ('{"prompt": [{"role": "user"}], "answer": 1}', "a list of messages with role and content"),
        ('{"prompt": "x", "answer": 1}\n{', "line 2 is not JSON"),
        ("[1]", "record 1 is list; it must be a mapping"),
        ("", "has no records"),
    ],
)
def test_wrong_records_are_named(tmp_path, content, complaint):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=complaint):
        make_dataset(data_section(train_data_paths=[str(path)]), "train", 0)


def test_wrong_paths_are_named(tmp_path):
    (tmp_path / "x.csv").write_text("")
    for paths, complaint in (
        ([], "data.train_data_paths is empty"),
        ([str(tmp_path / "none.jsonl")], "there is no file .*none.jsonl"),
        ([str(tmp_path / "x.csv")], "x.csv is neither .jsonl nor .parquet"),
    ):
        with pytest.raises(ValueError, match=complaint):
            make_dataset(data_section(train_data_paths=paths), "train", 0)


def test_a_new_dataset_works_by_decorator_alone():
    @register_dataset("Squares_for_tests")
    class Squares(PromptDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return Record(f"{index}*{index}=", index * index, "squares")

    cfg = data_section()
    cfg.type = "squares_for_tests"
    dataset = make_dataset(cfg, "train", 0)
    assert dataset[3].answer == 9 and "squares_for_tests" in dataset_registry
    cfg.type = "square_for_tests"
    with pytest.raises(ValueError, match="did you mean 'squares_for_tests'"):
        make_dataset(cfg, "train", 0)
