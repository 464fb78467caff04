"""The file of samples has what was trained on, and stays right when a run goes on."""

import json
from pathlib import Path

from rlinf.data.reasoning import Transcript, Verdict
from rlinf.runners.sample_file import append_samples, drop_after, write_evaluated
from rlinf.utils.runs.folders import SAMPLES


def verdict(number: int, **changes) -> Verdict:
    given = {"scores": [0.0, 1.0], "rewards": [0.0, 1.0], "lengths": [2, 2]} | changes
    facts = {"truncated": 0, "version": 0, "prompt": f"p{number}", "response": "r"}
    return Verdict(index=number, task="sums", **given, **facts)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / SAMPLES).read_text().splitlines()]


def test_steps_that_are_made_anew_are_dropped_and_evaluations_stay(tmp_path: Path) -> None:
    drop_after(tmp_path, 3)
    assert not (tmp_path / SAMPLES).exists()
    for step in (1, 2, 3):
        append_samples(tmp_path, [verdict(step)], step)
    write_evaluated(tmp_path, [verdict(8)])
    drop_after(tmp_path, 2)
    assert [(line.get("step"), line["prompt"]) for line in lines(tmp_path)] == [
        (1, "p1"),
        (2, "p2"),
        (None, "p8"),
    ]


def test_an_evaluation_takes_the_place_of_the_one_before_it(tmp_path: Path) -> None:
    append_samples(tmp_path, [verdict(1)], 1)
    write_evaluated(tmp_path, [verdict(7), verdict(8)])
    write_evaluated(tmp_path, [verdict(9)])
    assert [line["prompt"] for line in lines(tmp_path)] == ["p1", "p9"]


def test_a_line_that_was_not_complete_is_dropped(tmp_path: Path) -> None:
    append_samples(tmp_path, [verdict(1)], 1)
    with (tmp_path / SAMPLES).open("a") as file:
        file.write('{"step": 2, "prom')
    drop_after(tmp_path, 2)
    append_samples(tmp_path, [verdict(2)], 2)
    assert [line["prompt"] for line in lines(tmp_path)] == ["p1", "p2"]
    assert [path.name for path in tmp_path.iterdir()] == [SAMPLES]


def test_an_episode_that_is_left_out_has_its_own_score(tmp_path: Path) -> None:
    told = Transcript(0.25, 0.5, "failed", "gone", [], [])
    facts = {"transcript": told, "learnt": False, "why_left_out": "it failed"}
    append_samples(tmp_path, [verdict(1, **facts)], 1)
    (line,) = lines(tmp_path)
    # Scores are of those that count.
    assert line["score"] == 0.25 and line["scores"] == [0.0, 1.0]
    assert line["learnt"] is False and line["failure"] == "gone"
    assert line["why_left_out"] == "it failed"
