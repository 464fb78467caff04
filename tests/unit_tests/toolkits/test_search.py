"""`python -m toolkits.search`: an index is built, asked and served from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlinf.agents.search.client import RemoteIndex
from toolkits.search.__main__ import main

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def index(tmp_path, capsys):
    for name in ("a", "b"):
        line = json.dumps({"id": name, "title": f"town {name}", "text": f"the mayor of {name}"})
        (tmp_path / f"{name}.jsonl").write_text(line + "\n")
    place = tmp_path / "index.sqlite"
    assert main(["build", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), str(place)]) == 0
    assert "2 documents" in capsys.readouterr().out
    return place


def test_an_index_is_built_and_asked(index, capsys):
    assert main(["query", str(index), "mayor b", "--topk", "1"]) == 0
    assert "b: town b" in capsys.readouterr().out


def test_a_dense_search_has_its_encoder_from_a_module(index, tmp_path, monkeypatch, capsys):
    np.save(tmp_path / "rows.npy", np.eye(2))
    (tmp_path / "my_encoder.py").write_text(
        "from rlinf.agents.search.dense_index import register_query_encoder\n"
        "register_query_encoder('letters')(lambda texts: [[t.count('a'), t.count('b')] "
        "for t in texts])\n"
    )
    monkeypatch.chdir(tmp_path)
    dense = ["--embeddings", "rows.npy", "--encoder", "letters", "--ext-module", "my_encoder"]
    assert main(["query", str(index), "bbb", "--topk", "1", *dense]) == 0
    assert "b: town b" in capsys.readouterr().out
    assert main(["query", str(index), "bbb", *dense[:2]]) == 1
    assert "needs both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "none.jsonl", "index"], "there is no file none.jsonl"),
        (["query", "none.sqlite", "a"], "there is no index none.sqlite"),
    ],
)
def test_mistakes_are_told(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    assert said in capsys.readouterr().err


def test_other_hosts_are_not_let_in_without_a_key(index, capsys, monkeypatch):
    monkeypatch.delenv("RLINF_SEARCH_KEY", raising=False)
    assert main(["serve", str(index), "--host", "0.0.0.0"]) == 1
    assert "RLINF_SEARCH_KEY" in capsys.readouterr().err


def test_it_serves_until_interrupted(index):
    command = [sys.executable, "-m", "toolkits.search", "serve", str(index), "--port", "0"]
    env = {name: text for name, text in os.environ.items() if name != "RLINF_SEARCH_KEY"}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[4].rstrip(";")
        (hit,) = RemoteIndex(url).search("mayor of a", 1)
        assert hit.document.id == "a"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
