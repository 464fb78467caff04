"""Curves of language models and agents: pass@1 over training steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.cli import curves
from rlinf.cli.curves import Curve, compare
from tests.unit_tests.cli.test_curves import evaluation, write_metrics


def answered(step: int, rate: float, **more: float) -> dict:
    return {"step": step, "eval/prompts": 200.0, "eval/pass@1": rate, "eval/score": rate} | {
        f"eval/{name}": value for name, value in more.items()
    }


def agent_run(rates: list[float]) -> list[dict]:
    lines = [answered(0, rates[0], **{"pass@1_no_tools": 0.0, "one_hop/pass@1": rates[0]})]
    for step, rate in enumerate(rates[1:], 1):
        lines.append({"step": step, "rollout/score": rate, "time/step": 2.0})
        further = {"pass@1_no_tools": 0.1, "one_hop/pass@1": rate, "pass@1_low": 0.0}
        lines.append(answered(step, rate, **further))
    return lines


def test_the_curve_of_an_agent_is_over_training_steps_and_begins_before_them(
    tmp_path: Path,
) -> None:
    found = curves.read_curve(write_metrics(tmp_path, agent_run([0.3, 0.5, 0.9])))
    assert found.unit == "training steps" and found.steps == [0, 1, 2]
    assert found.episodes == [200] * 3 and found.values["pass@1"] == [0.3, 0.5, 0.9]
    # What else says how many answers were right is kept beside it, and ends of intervals are not.
    assert found.values["pass@1_no_tools"] == [0.0, 0.1, 0.1]
    assert set(found.values) == {"pass@1", "pass@1_no_tools", "one_hop/pass@1"}


def test_a_file_keeps_all_of_it_and_compares_pass_at_1(tmp_path: Path) -> None:
    seeds = {
        seed: curves.read_curve(write_metrics(tmp_path / str(seed), agent_run([0.3, 0.6, end])))
        for seed, end in enumerate((0.9, 0.95, 1.0))
    }
    written = curves.gather("mine", [], seeds, {})
    assert written.metric == "pass@1" and written.unit == "training steps"
    curves.save(written, tmp_path / "mine.json")
    read = curves.load(tmp_path / "mine.json")
    assert read.metric == "pass@1" and read.band() == written.band()
    assert read.curves[1].values == written.curves[1].values
    assert '"training_steps": [0, 1, 2],' in (tmp_path / "mine.json").read_text()


def test_a_model_that_stays_as_it_began_is_below_the_band() -> None:
    steps, seeds = [0, 20, 40], ([0.4, 0.8, 0.9], [0.3, 0.9, 1.0])
    known = {
        seed: Curve(steps, [200] * 3, {"pass@1": values}, "training steps")
        for seed, values in enumerate(seeds)
    }
    file = curves.gather("mine", [], known, {})
    # It answers some questions before it is trained: that is no sign of learning.
    assert file.floor == 0.4 and file.band().judging == [40]
    assert not compare(steps, [0.4, 0.4, 0.4], file.band()).ok


def test_answers_that_are_all_wrong_are_a_curve_too() -> None:
    known = {seed: Curve([0, 9], [50] * 2, {"pass@1": [0.0, 0.0]}) for seed in (0, 1)}
    assert curves.gather("mine", [], known, {}).metric == "pass@1"


def test_runs_of_different_kinds_make_no_file(tmp_path: Path) -> None:
    played = [{"step": 1, "env/total_steps": 1.0}, evaluation(1, 20, 0.5, 7.0)]
    one = curves.read_curve(write_metrics(tmp_path, played)).counted_in("training steps")
    other = Curve(one.steps, [20], {"pass@1": [0.5]}, "training steps")
    with pytest.raises(ValueError, match="different metrics: seed 0: success_once, return"):
        curves.gather("mine", [], {0: one, 1: other}, {})


def test_a_file_without_the_metric_that_it_names_is_broken(tmp_path: Path) -> None:
    known = {seed: Curve([0, 9], [50] * 2, {"pass@1": [0.0, 1.0]}) for seed in (0, 1)}
    path = tmp_path / "mine.json"
    curves.save(curves.gather("mine", [], known, {}), path)
    path.write_text(path.read_text().replace('"metric": "pass@1"', '"metric": "return"'))
    with pytest.raises(ValueError, match="is not a curve file"):
        curves.load(path)
