"""Episodes of a language model in the page: turns, calls, rewards, and what was trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.data.reasoning import Verdict
from rlinf.runners.sample_file import append_samples
from tests.unit_tests.cli.test_report import HOSTILE, make_run, report


def part(role: str, text: str, agent: int = 0, **more) -> dict:
    facts = {"role": role, "text": text, "tokens": len(text), "agent": agent, "written": False}
    return facts | more


def wrote(text: str, turn: int, agent: int = 0, reward: float = 0.0, calls: tuple = ()) -> dict:
    own = {"written": True, "turn": turn, "reward": reward, "calls": list(calls)}
    return part("model", text, agent, **own)


def turn(text: str, number: int, agent: int = 0, reward: float = 0.0, calls: tuple = ()) -> dict:
    facts = {"role": "assistant", "text": text, "agent": agent, "turn": number}
    return facts | {"error": False, "reward": reward, "calls": list(calls)}


CALL = {"name": "price", "arguments": {"product": "apple"}}
EPISODE = {
    "step": 7,
    "prompt": "what is it?",
    "response": "",
    "score": 1.0,
    "scores": [1.0, 0.0, 0.25],
    "reward": 1.0,
    "learnt": True,
    "ending": "done",
    "failure": "",
    "turns": [turn("ask", 0, 0, 0.5, [CALL]), turn("seven", 1)],
    "sequences": [
        [
            part("prompt", "what is it?"),
            wrote("ask", 0, 0, 0.5, [CALL]),
            part("tool", "answer 7", error=False),
            wrote("seven", 1),
        ]
    ],
}


def with_samples(folder: Path, samples: list[dict]) -> Path:
    make_run(folder)
    (folder / "samples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in samples))
    return folder


def test_what_a_run_writes_is_what_its_page_reads(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    facts = {"scores": [1.0], "rewards": [1.0], "lengths": [1], "truncated": 0, "version": 0}
    verdict = Verdict(index=1, task="sums", prompt="1+2=", response="3", **facts)
    append_samples(tmp_path / "run", [verdict], 1)
    assert report(tmp_path / "run").texts["part trained"] == ["model", "3"]


def test_an_episode_is_shown_turn_by_turn(tmp_path: Path) -> None:
    page = report(with_samples(tmp_path / "run", [EPISODE]))
    assert page.texts["part trained"] == [
        "model · turn 0 · 3 tokens · reward +0.5",
        "ask",
        "price(product='apple')",
        "model · turn 1 · 5 tokens",
        "seven",
    ]
    assert page.texts["part read"] == [
        "prompt · 11 tokens",
        "what is it?",
        "tool · 8 tokens",
        "answer 7",
    ]
    line = page.text("summary")
    for fact in ("step 7", "score 1", "2 turns", "1 tool call", "what is it?"):
        assert fact in line
    assert "scores of the group: 1, 0, 0.25" in page.text("sample")
    assert "rewards of its turns +0.5 together" in page.text("sample")
    assert "no video was recorded" not in page.text("episodes")


def test_episodes_without_their_tokens_are_shown_by_their_turns(tmp_path: Path) -> None:
    """As runs wrote them that were made before tokens were noted."""
    said = {"role": "assistant", "text": "ask", "agent": 0}
    told = {"role": "tool", "text": "seven", "agent": 0}
    old = {"step": 1, "prompt": "what?", "response": "ask seven", "scores": [1.0], "score": 1.0}
    page = report(with_samples(tmp_path / "run", [old | {"turns": [said, told]}]))
    assert page.texts["part trained"] == ["assistant", "ask"]
    assert page.texts["part read"] == ["prompt", "what?", "tool", "seven"]


def test_what_was_left_out_is_not_marked_as_trained_on(tmp_path: Path) -> None:
    why = {"learnt": False, "why_left_out": "algorithm.mask_truncated is true"}
    failed = EPISODE | why | {"ending": "failed", "failure": "the tool is gone"}
    page = report(with_samples(tmp_path / "run", [failed]))
    assert "part trained" not in page.texts and len(page.texts["part written"]) == 5
    for words in ("failed; the tool is gone", "left out: algorithm.mask_truncated is true"):
        assert words in page.text("sample")
    single = {"step": 1, "prompt": "1+2=", "response": "33333", "score": 0.0, "scores": [0.0]}
    page = report(with_samples(tmp_path / "single", [single | why]))
    assert "part trained" not in page.texts and page.texts["part written"] == ["model", "33333"]
    assert "left out: algorithm.mask_truncated is true" in page.text("sample")


def test_a_sequence_that_was_left_out_is_marked_by_itself(tmp_path: Path) -> None:
    sequences = [
        [part("prompt", "what?"), wrote("do it", 0) | {"learnt": learnt}]
        for learnt in (True, False)
    ]
    team = EPISODE | {"why_left_out": "it was cut", "sequences": sequences}
    page = report(with_samples(tmp_path / "run", [team]))
    assert page.texts["part trained"] == page.texts["part written"]
    assert "left out in part: it was cut" in page.text("sample")


def test_an_evaluation_marks_what_the_model_wrote(tmp_path: Path) -> None:
    evaluated = {key: value for key, value in EPISODE.items() if key != "step"}
    page = report(with_samples(tmp_path / "run", [evaluated | {"learnt": False}]))
    assert "part trained" not in page.texts and "seven" in page.texts["part written"]
    assert "is what the model wrote" in page.text("episodes")
    assert "left out" not in page.text("sample")


def test_agents_of_a_team_are_told_apart(tmp_path: Path) -> None:
    wrong = {"problem": "no such tool"}
    team = EPISODE | {
        "turns": [turn("do it", 0), turn("hm", 1, 1, calls=[wrong])],
        "sequences": [
            [part("prompt", "what is it?"), wrote("do it", 0)],
            [
                part("prompt", "do", 1),
                wrote("hm", 1, 1, calls=[wrong]),
                part("tool", "no!", 1, error=True),
            ],
        ],
    }
    page = report(with_samples(tmp_path / "run", [team]))
    assert page.texts["h4"] == ["agent 0", "agent 1"] and "2 agents" in page.text("summary")
    assert page.texts["part error"] == ["tool · 3 tokens · error", "no!"]
    assert page.texts["calls"] == ["not a call: no such tool"]


def test_a_response_of_one_turn_is_a_prompt_and_what_was_trained_on(tmp_path: Path) -> None:
    single = {"step": 1, "prompt": "1+2=", "response": "3", "score": 0.0, "scores": [0.0, 1.0]}
    page = report(with_samples(tmp_path / "run", [single]))
    assert page.texts["part read"] == ["prompt", "1+2="]
    assert page.texts["part trained"] == ["model", "3"] and "score 0" in page.texts["bad"]


def test_a_wrong_answer_is_shown_with_the_expected_one(tmp_path: Path) -> None:
    single = {"prompt": "1-1=", "response": "4", "answer": 0, "scores": [0.0]}
    wrong, right = ({"step": 1, "score": score} | single for score in (0.0, 1.0))
    assert "expected: 0" in report(with_samples(tmp_path / "a", [wrong])).text("sample")
    assert "expected" not in report(with_samples(tmp_path / "b", [right])).text("sample")


def test_no_text_of_a_model_or_a_tool_leaves_its_element(tmp_path: Path) -> None:
    call = {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}
    hostile = EPISODE | {
        "prompt": HOSTILE,
        "answer": HOSTILE,
        "score": 0.0,
        "failure": HOSTILE,
        "ending": HOSTILE,
        "turns": [turn(HOSTILE, 0, calls=[call])],
        "sequences": [[part(HOSTILE, HOSTILE), wrote(HOSTILE, 0, calls=[call])]],
    }
    folder = with_samples(tmp_path / "run", [hostile])
    page = report(folder)
    assert page.texts["part trained"][1] == HOSTILE and page.texts["part read"][1] == HOSTILE
    assert page.texts["calls"] == [f"{HOSTILE}({HOSTILE}={HOSTILE!r})"]
    assert "<b>bold" not in (folder / "report.html").read_text()


def test_samples_are_chosen_evenly_and_a_line_that_is_being_written_is_left(tmp_path: Path) -> None:
    folder = with_samples(tmp_path / "run", [EPISODE | {"step": step} for step in range(1, 102)])
    with open(folder / "samples.jsonl", "a") as file:
        file.write('{"step": 102, "pro')
    page = report(folder, "--samples", "5")
    assert [text for text in page.texts["summary"] if text.startswith("step")] == [
        *("step 1", "step 26", "step 51", "step 76", "step 101")
    ]
    assert "5 of 101 in samples.jsonl" in page.text("episodes")
    assert "sample" not in report(folder, "--samples", "0").texts


def test_wrong_answers_of_an_evaluation_come_first(tmp_path: Path) -> None:
    evaluated = {key: value for key, value in EPISODE.items() if key != "step"}
    wrong = (33, 34, 77)
    samples = [
        evaluated | {"prompt": f"q{number} .", "score": float(number not in wrong)}
        for number in range(100)
    ]
    page = report(with_samples(tmp_path / "run", samples), "--samples", "8")
    shown = [text.split()[-2] for text in page.texts["summary"] if " · q" in text]
    assert shown[:3] == ["q33", "q34", "q77"] and len(shown) == 8
    assert "8 of 100 in samples.jsonl, the first 3 with a wrong answer" in page.text("episodes")
    for every in (0.0, 1.0):
        alike = [sample | {"score": every} for sample in samples]
        page = report(with_samples(tmp_path / str(every), alike), "--samples", "8")
        assert len([text for text in page.texts["summary"] if " · q" in text]) == 8


def test_wrong_answers_are_said_to_be_first_only_if_they_are(tmp_path: Path) -> None:
    evaluated = {key: value for key, value in EPISODE.items() if key != "step"}
    wrong = evaluated | {"score": 0.0}
    for name, samples, said in (
        ("between", [EPISODE, wrong, EPISODE], False),
        ("before", [wrong, EPISODE], True),
        ("apart", [wrong, EPISODE, wrong, EPISODE], False),
        ("unscored", [evaluated | {"score": None}, evaluated], False),
    ):
        page = report(with_samples(tmp_path / name, samples))
        assert ("with a wrong answer" in page.text("episodes")) is said, name


def test_a_damaged_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = with_samples(tmp_path / "run", [EPISODE])
    (folder / "samples.jsonl").write_text("{}}\n")
    assert main(["report", str(folder)]) == 1
    assert "samples.jsonl, line 1, is not JSON" in capsys.readouterr().err
    for no_object in ("7", "null", '["step"]', '"step"'):
        (folder / "samples.jsonl").write_text(f"{no_object}\n")
        assert main(["report", str(folder)]) == 1
        assert "samples.jsonl, line 1, is not a JSON object" in capsys.readouterr().err
