"""`rlinf chat`: what a user types, and what happens then."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf.cli import chat_model, main
from rlinf.cli.chat_model import Answer, Wishes
from rlinf.hybrid_engines.generation import SamplingParams


class Echo:
    """A model that says what it was asked, letter by letter; "?" cannot be answered."""

    name = "echo"
    params = SamplingParams(max_new_tokens=9)

    def __init__(self, has_turns: bool = True, interrupted: bool = False):
        self.has_turns, self.interrupted = has_turns, interrupted
        self.heard: list[list[Any]] = []

    def message(self, prompt: str) -> dict[str, str]:
        return {"role": "user", "content": prompt}

    def answer(self, said: list[Any], prompt: str, show: Any, stop: Any) -> Answer:
        self.heard.append([message["content"] for message in said] + [prompt])
        if prompt == "?":
            raise ValueError("cannot encode '?'")
        text = ""
        for letter in prompt.upper():
            if stop():
                return Answer(text, "abort", len(text))
            show(letter)
            text += letter
            if self.interrupted:
                os.kill(os.getpid(), signal.SIGINT)
        return Answer(text, "length" if len(text) == 9 else "stop", len(text))


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Echo:
    model = Echo()
    monkeypatch.setattr(chat_model, "load_chat_model", lambda path, wishes: model)
    return model


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """Let the user be at a terminal and type lines; an exception is Ctrl-C or Ctrl-D."""
    typed: Iterator[Any] = iter(lines)

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", read)


def test_a_conversation(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "abc", "", "de", "/new", "f", "/exit", "never")
    assert main(["chat", "run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "echo" and "temperature 1, at most 9 new tokens" in said[1]
    assert said[2:] == ["ABC", "DE", "a new conversation", "F"]
    assert echo.heard == [["abc"], ["abc", "ABC", "de"], ["f"]]


def test_prompts_stand_alone_without_a_template(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    echo.has_turns = False
    type_in(monkeypatch, "abc", "de", EOFError)
    assert main(["chat", "run"]) == 0
    assert echo.heard == [["abc"], ["de"]]
    assert "each prompt stands alone" in capsys.readouterr().out


def test_a_prompt_that_cannot_be_answered_does_not_end_it(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "?", "/nothing", "/help", "nine long", EOFError)
    assert main(["chat", "run"]) == 0
    said = capsys.readouterr().out
    assert "cannot encode '?'" in said
    assert "there is no command /nothing" in said and "/new   forget" in said
    assert "NINE LONG\n(cut after 9 tokens)" in said
    assert echo.heard[-1] == ["nine long"], "what failed was not said"


def test_ctrl_c_at_the_prompt_leaves_the_second_time(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, KeyboardInterrupt, "a", KeyboardInterrupt, KeyboardInterrupt, "b")
    assert main(["chat", "run"]) == 0
    assert capsys.readouterr().out.count("Ctrl-C again") == 2
    assert echo.heard == [["a"]]


def test_ctrl_c_ends_an_answer_and_not_the_conversation(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    echo.interrupted = True
    type_in(monkeypatch, "abc", "d", EOFError)
    before = signal.getsignal(signal.SIGINT)
    assert main(["chat", "run"]) == 0
    assert "A\n(stopped)\nD" in capsys.readouterr().out
    assert echo.heard[1] == ["abc", "A", "d"]
    assert signal.getsignal(signal.SIGINT) == before


def test_one_answer(echo: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "run", "12+34="]) == 0
    assert capsys.readouterr().out == "12+34=\n"


def test_one_answer_that_is_cut_or_stopped(echo: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "run", "nine long"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "NINE LONG\n" and "cut after 9 tokens" in captured.err
    echo.interrupted = True
    assert main(["chat", "run", "abc"]) == 130
    assert capsys.readouterr().out == "A\n"


def test_a_pipe_asks_once(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    assert main(["chat", "run"]) == 0
    assert capsys.readouterr().out == "TWO\nLINES\n" and echo.heard == [["two\nlines"]]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["chat", "run"]) == 2
    assert "standard input is empty" in capsys.readouterr().err


def test_what_is_wrong_is_told(
    echo: Echo, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "run", "?"]) == 1
    assert "rlinf chat: cannot encode '?'" in capsys.readouterr().err
    assert main(["chat", "run", "a", "--temperature", "-2"]) == 2
    assert "temperature is -2.0" in capsys.readouterr().err
    assert main(["chat", "run", " "]) == 2
    assert "PROMPT is empty" in capsys.readouterr().err


def test_options_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Wishes]] = []

    def load(path: str, wishes: Wishes) -> Echo:
        seen.append((path, wishes))
        return Echo()

    monkeypatch.setattr(chat_model, "load_chat_model", load)
    assert main(["chat", "run", "a", "--greedy", "--max-new-tokens", "7", "--seed", "3"]) == 0
    assert seen == [("run", Wishes(None, 7, True, 3))]
    main(["chat", "run", "a", "--temperature", "0.5"])
    main(["chat", "run", "a"])
    assert seen[1][1].temperature == 0.5
    assert seen[1][1].seed != seen[2][1].seed, "answers differ from time to time"
