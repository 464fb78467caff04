"""`rlinf serve`: from a checkpoint to answers, by a process of its own."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from rlinf.cli import main, serve  # noqa: E402
from tests.unit_tests.cli.test_chat_model import save_run  # noqa: E402


def ask(endpoint: dict[str, str], path: str, body: Any, session: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {endpoint['key']}", "Content-Type": "application/json"}
    if session is not None:
        headers["X-RLinf-Session"] = session
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{endpoint['url']}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.timeout(180)
def test_a_run_is_served_until_it_is_asked_to_end(tmp_path: Path) -> None:
    save_run(tmp_path)
    command = [sys.executable, "-m", "rlinf.cli", "serve", str(tmp_path), "--engines", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = [process.stdout.readline() for _ in range(2)]
            path = tmp_path / "endpoint.json"
            assert "serving at http://127.0.0.1:" in lines[1] and str(path) in lines[1]
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            endpoint = json.loads(path.read_text())
            assert endpoint["key"] not in "".join(lines), "the key is for the file alone"
            body = {"model": endpoint["model"], "prompt": "12+3", "max_tokens": 6, "seed": 1}
            first = ask(endpoint, "/completions", body, session="s")
            text = first["choices"][0]["text"]
            more = {**body, "prompt": f"12+3{text}+1", "temperature": 0.5, "top_p": 0.25}
            ask(endpoint, "/completions", more, session="s")
            assert ask(endpoint, "/sessions/s/reward", {"reward": 1.0})["calls"] == 2
            with pytest.raises(urllib.error.HTTPError, match="401"):
                ask({**endpoint, "key": "no"}, "/completions", body)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not path.exists(), "nobody listens any more"
    recorded = tmp_path / "sessions.jsonl"
    assert stat.S_IMODE(os.stat(recorded).st_mode) == 0o600
    (line,) = recorded.read_text().splitlines()
    session = json.loads(line)
    assert session["reward"] == 1.0 and len(session["turns"]) == 4
    assert all(set(s["versions"]) <= {4} for s in session["sequences"])
    usual, asked = session["drawn"]
    assert asked == {"turn": 1, "temperature": 0.5, "top_p": 0.25, "top_k": usual["top_k"]}
    assert usual["turn"] == 0 and (usual["temperature"], usual["top_p"]) != (0.5, 0.25)


@pytest.mark.timeout(180)
def test_it_goes_on_with_the_engines_that_are_left_and_ends_without_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run(tmp_path)
    load, engines = serve._load, []

    def loading(*arguments: Any) -> Any:
        found = load(*arguments)
        engines.append(found.engine)
        return found

    def fails() -> Any:
        raise RuntimeError("the device is gone")

    answers: list[Any] = []

    def client() -> None:
        while not (tmp_path / "endpoint.json").exists():
            time.sleep(0.02)
        endpoint = json.loads((tmp_path / "endpoint.json").read_text())
        body = {"model": endpoint["model"], "prompt": "12+3", "max_tokens": 6}
        for number, engine in enumerate(engines):
            engine.step = fails
            try:
                answers.append(ask(endpoint, "/completions", body, session=f"s{number}"))
            except urllib.error.HTTPError as error:
                answers.append((error.code, json.load(error)["error"]["code"]))

    monkeypatch.setattr(serve, "_load", loading)
    thread = threading.Thread(target=client)
    thread.start()
    assert main(["serve", str(tmp_path), "--engines", "2"]) == 1
    thread.join(60)
    first, second = answers
    assert first["choices"][0]["finish_reason"] in ("stop", "length")
    assert second == (503, "engine_gone")
    said = capsys.readouterr().err
    assert "engine 0 is left out from now on: engine engine 0 failed: RuntimeError" in said
    assert "no engine is left" in said and "start it again" in said
    assert not (tmp_path / "endpoint.json").exists()


def test_what_is_no_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "none")]) == 1
    assert "there is no run at" in capsys.readouterr().err
    assert main(["serve", str(tmp_path), "--max-running", "0"]) == 2
    assert "--max-running is 0" in capsys.readouterr().err
