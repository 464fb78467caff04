"""Checkpoints and models of a stranger whose manifest leads out of their folder, or is none."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from rlinf.models.tensor_files import tensors_of_folder
from rlinf.utils.checkpoint import MANIFEST, Checkpoint, CheckpointError, CheckpointStore

SECRET = b"not of the checkpoint"
FACTS = {"size": len(SECRET), "sha256": hashlib.sha256(SECRET).hexdigest()}
GOOD = {"format": 1, "step": 3, "score": None, "files": {}}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret").write_bytes(SECRET)
    folder = tmp_path / "checkpoints" / "global_step_3"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    "name", ["../../secret", "a/../../../secret", "{}/secret", "..", ".", "", "a\0b", "/"]
)
def test_names_that_lead_outside_are_refused(folder, tmp_path, name):
    name = name.format(tmp_path)
    (folder / MANIFEST).write_text(json.dumps({**GOOD, "files": {name: FACTS}}))
    with pytest.raises(CheckpointError, match="names the file .* must be a path inside"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ([], "must be a mapping"),
        ("text", "must be a mapping"),
        ({}, "has format None"),
        ({**GOOD, "format": "1"}, "has format '1'"),
        ({**GOOD, "step": "3"}, "has step '3'; it must be a whole number"),
        ({**GOOD, "step": True}, "has step 'True'"),
        ({**GOOD, "step": -1}, "has step"),
        ({**GOOD, "score": "best"}, "has score 'best'"),
        ({**GOOD, "files": []}, "must be a mapping of names"),
        ({**GOOD, "files": {"a": 3}}, "for a, the size 'None'"),
        ({**GOOD, "files": {"a": {"size": 1.5, "sha256": "0" * 64}}}, "the size '1.5'"),
        ({**GOOD, "files": {"a": {"size": 1, "sha256": 7}}}, "64 hexadecimal digits"),
        ({**GOOD, "files": {"a": {"size": 1, "sha256": "../" * 22}}}, "64 hexadecimal digits"),
    ],
)
def test_odd_types_are_refused_with_what_is_allowed(folder, manifest, words):
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=words):
        Checkpoint.open(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"\x00" * 10])
def test_what_is_not_json_is_refused(folder, text):
    (folder / MANIFEST).write_bytes(text)
    with pytest.raises(CheckpointError, match="is not JSON"):
        Checkpoint.open(folder)
    store = CheckpointStore(folder.parent)
    assert store.all() == [] and store.latest() is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
@pytest.mark.parametrize("name", [MANIFEST, "weights"])
def test_what_is_not_a_file_is_refused(folder, make, name):
    if name != MANIFEST:
        facts = {"size": 0, "sha256": "0" * 64}
        (folder / MANIFEST).write_text(json.dumps({**GOOD, "files": {name: facts}}))
    make(folder / name)
    with pytest.raises(CheckpointError, match="is not a file"):
        Checkpoint.open(folder)
    assert CheckpointStore(folder.parent).latest() is None


def test_a_bad_manifest_does_not_hide_good_ones(folder, capsys):
    store = CheckpointStore(folder.parent)
    (store.begin(2) / "weights").write_text("w")
    store.commit(2, {})
    (folder / MANIFEST).write_text(json.dumps({**GOOD, "files": {"../../secret": FACTS}}))
    assert store.latest().step == 2
    assert "must be a path inside" in capsys.readouterr().out


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "{}/secret.safetensors", "a/b.safetensors", "x.bin", 3, None]
)
def test_an_index_of_a_model_names_its_own_files_only(tmp_path, name):
    (tmp_path / "secret.safetensors").write_bytes(SECRET)
    folder = tmp_path / "model"
    folder.mkdir()
    name = name.format(tmp_path) if isinstance(name, str) else name
    (folder / INDEX).write_text(json.dumps({"weight_map": {"weight": name}}))
    with pytest.raises(ValueError, match="must be a safetensors file of the same folder"):
        tensors_of_folder(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[]", "has no weight_map"),
        (b'{"weight_map": []}', "has no weight_map"),
        (b'{"weight_map": {}}', "has no weight_map"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path, text, words):
    (tmp_path / INDEX).write_bytes(text)
    with pytest.raises(ValueError, match=words):
        tensors_of_folder(tmp_path)
