"""What `rlinf verify` believes: which curves are inside a band, and what a curve file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinf.cli import curves
from rlinf.cli.curves import Band, Curve, NoCurve, compare, make_band
from rlinf.config.load import shipped_folder

SHIPPED = sorted((shipped_folder() / "examples").glob("*/curves/*.json"))
STEPS = [100, 200, 300, 400]
BAND = Band(STEPS, low=[0.0, 0.0, 0.4, 0.8], high=[0.2, 0.5, 0.9, 1.0])


def curve(success: list[float], returns: list[float] | None = None) -> Curve:
    found = {"success_once": success, "return": returns or [10 * value for value in success]}
    return Curve(STEPS[: len(success)], [20] * len(success), found)


def test_a_curve_inside_the_band() -> None:
    verdict = compare(STEPS, [0.0, 0.5, 0.4, 0.9], BAND)
    assert verdict.ok and verdict.first_below is None and not verdict.not_compared
    assert {point.place for point in verdict.points} == {"inside"}


def test_the_first_point_below_is_named() -> None:
    verdict = compare(STEPS, [0.0, 0.1, 0.3, 0.2], BAND)
    assert not verdict.ok
    assert verdict.first_below is not None
    assert (verdict.first_below.steps, verdict.first_below.value) == (300, 0.3)
    assert verdict.first_below.low == 0.4


def test_better_than_the_band_is_fine() -> None:
    verdict = compare(STEPS, [0.3, 0.9, 1.0, 1.0], BAND)
    assert verdict.ok
    assert [point.place for point in verdict.points] == ["above", "above", "above", "inside"]


def test_edges_are_linear_between_evaluations_and_unknown_beyond_them() -> None:
    assert BAND.at(350) == pytest.approx((0.6, 0.95))
    assert BAND.at(400) == pytest.approx((0.8, 1.0))
    assert BAND.at(99) is None and BAND.at(401) is None
    verdict = compare([50, 350, 900], [0.0, 0.55, 0.0], BAND)
    assert verdict.not_compared == 2
    assert verdict.first_below is not None and verdict.first_below.steps == 350


@pytest.mark.parametrize("steps", [[], [50, 900]])
def test_nothing_to_compare_is_not_a_pass(steps: list[int]) -> None:
    with pytest.raises(NoCurve, match="between 100 and 400 env steps"):
        compare(steps, [1.0] * len(steps), BAND)


def test_a_band_lets_a_run_be_one_evaluation_late_and_a_little_worse() -> None:
    band = make_band(STEPS, [[0, 20, 80, 100], [0, 0, 40, 90]])
    # The range is 100, so the margin is 10.
    assert band.low == [-10, -10, -10, 30]
    assert band.high == [30, 90, 110, 110]


def test_a_band_judges_where_it_is_above_a_run_that_learns_nothing() -> None:
    seeds = {0: curve([0.0, 0.9, 1.0, 1.0]), 1: curve([0.0, 0.0, 0.8, 1.0])}
    band = curves.gather("mine", [], seeds, {}).band()
    assert band.judging == [400]
    early = compare(STEPS[:3], [0.0, 0.5, 0.7], band)
    assert early.ok and not early.judged
    late = compare(STEPS, [0.0, 0.5, 0.7, 0.9], band)
    assert [point.steps for point in late.judged] == [400]
    # Better than any seed says something, wherever it is.
    assert compare([100], [1.0], Band([100], [-0.1], [0.5])).judged


def test_returns_are_judged_by_where_they_begin() -> None:
    seeds = {0: curve([0.0] * 4, [-5.0, 10, 40, 50]), 1: curve([0.0] * 4, [3.0, 5, 30, 60])}
    found = curves.gather("mine", [], seeds, {})
    assert found.floor == 3.0 and found.band().judging == [400]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_curve_files_that_come_with_the_package_judge_the_end_of_a_run(path: Path) -> None:
    found = curves.load(path)
    assert found.band().judging[-1] == found.steps[-1]


def test_one_point_is_a_band() -> None:
    assert make_band([100], [[1.0], [3.0]]).at(100) == pytest.approx((0.8, 3.2))


def write_metrics(folder: Path, lines: list[dict]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def evaluation(step: int, episodes: int, success: float, returns: float) -> dict:
    names = ("eval/episodes", "eval/success_once", "eval/return")
    return {"step": step, **dict(zip(names, (episodes, success, returns), strict=True))}


def test_the_curve_of_a_run(tmp_path: Path) -> None:
    training = [{"step": s, "env/total_steps": 1600.0 * s, "env/return": 1.0} for s in (1, 2, 3)]
    run = [training[0], training[1], evaluation(2, 20, 0.5, 7.0), training[2]]
    # A policy that is evaluated twice plays the same episodes: it is one point.
    run += [evaluation(3, 20, 0.5, 10.0), evaluation(3, 60, 0.8, 17.5)]
    found = curves.read_curve(write_metrics(tmp_path, run))
    assert found.steps == [3200, 4800] and found.episodes == [20, 60]
    assert found.values["success_once"] == [0.5, 0.8]
    assert found.values["return"] == [7.0, 17.5]
    assert found.first_at_least("success_once", 0.8) == 4800
    assert found.first_at_least("success_once", 0.9) is None


def test_a_run_without_rollouts_counts_gradient_updates(tmp_path: Path) -> None:
    training = [{"step": s, "train/gradient_updates": 100.0 * s} for s in (1, 2)]
    run = [training[0], evaluation(1, 20, 0.5, 7.0), training[1], evaluation(2, 20, 1.0, 9.0)]
    found = curves.read_curve(write_metrics(tmp_path, run))
    assert found.steps == [100, 200] and found.unit == "gradient updates"
    with pytest.raises(NoCurve, match="between 100 and 200 gradient updates"):
        compare([300], [1.0], curves.gather("mine", [], {0: found, 1: found}, {}).band())
    # Learners from replay have both counts, and are told in env steps.
    both = [line | {"env/total_steps": 64.0 * line["step"]} for line in training]
    run = [both[0], evaluation(1, 20, 0.5, 7.0)]
    assert curves.read_curve(write_metrics(tmp_path, run)).steps == [64]


@pytest.mark.parametrize("unit", curves.UNITS)
def test_a_file_says_what_its_steps_are(unit: str, tmp_path: Path) -> None:
    found = {"success_once": [0.0, 1.0], "return": [0.0, 1.0]}
    seeds = {seed: Curve([100, 200], [20, 20], found, unit) for seed in (0, 1)}
    written = curves.gather("mine", [], seeds, {})
    curves.save(written, tmp_path / "mine.json")
    assert curves.load(tmp_path / "mine.json") == written and written.band().unit == unit
    assert f'"{unit.replace(" ", "_")}": [100, 200],' in (tmp_path / "mine.json").read_text()


def test_a_run_without_evaluations_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NoCurve, match="metrics.jsonl is not there"):
        curves.read_curve(tmp_path)
    write_metrics(tmp_path, [{"step": 1, "env/total_steps": 1600.0}])
    with pytest.raises(NoCurve, match="runner.val_check_interval"):
        curves.read_curve(tmp_path)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    seeds = {0: curve([0.0, 0.2, 0.8, 1.0]), 7: curve([0.0, 0.0, 0.7, 0.9])}
    facts = {"date": "2026-01-02", "versions": {"torch": "2.13.0"}}
    written = curves.gather("mine", ["runner.eval_episodes=20"], seeds, facts)
    path = curves.path_for(tmp_path / "config", "mine")
    curves.save(written, path)
    assert path == tmp_path / "curves" / "mine.json"
    read = curves.load(path)
    assert read == written and read.band() == written.band()
    content = json.loads(path.read_text())
    assert content["band"]["low"] == pytest.approx(read.band().low)
    # A list of numbers is one line, so that changes can be read.
    assert '"env_steps": [100, 200, 300, 400],' in path.read_text()


def test_recipes_without_successes_compare_returns() -> None:
    seeds = {0: curve([0.0, 0.0], [1.0, 9.0]), 1: curve([0.0, 0.0], [2.0, 5.0])}
    found = curves.gather("mine", [], seeds, {})
    assert found.metric == "return" and found.band().high == pytest.approx([9.8, 9.8])


def test_a_seed_is_judged_by_the_band_of_the_others() -> None:
    alike = [0.0, 0.5, 0.9, 1.0]
    seeds = {0: curve(alike), 1: curve(alike), 2: curve([0.0, 0.0, 0.0, 0.0])}
    found = curves.gather("mine", [], seeds, {})
    assert found.seeds_inside() == [0, 1]


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ({0: curve([0.1])}, "at least 2 seeds"),
        ({0: curve([0.1]), 1: curve([0.1, 0.2])}, "not evaluated after the same steps"),
    ],
)
def test_curves_that_make_no_band(seeds: dict[int, Curve], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        curves.gather("mine", [], seeds, {})


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for text in ("{}", "not json"):
        path.write_text(text)
        with pytest.raises(ValueError, match="mine.json is not a curve file"):
            curves.load(path)


def test_recipes_that_have_a_file(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "mine.yaml").write_text("")
    (tmp_path / "curves").mkdir()
    for name in ("mine", "left_over"):
        (tmp_path / "curves" / f"{name}.json").write_text("{}")
    assert curves.recipes_with_curves([config]) == ["mine"]


def test_seeds_whose_episodes_end_at_different_times_share_training_steps(tmp_path: Path) -> None:
    found = {"success_once": [0.2, 0.9], "return": [0.2, 0.9]}
    seeds = {
        seed: Curve([100 + seed, 180 + seed], [20, 20], found, training_steps=[5, 10])
        for seed in (0, 1)
    }
    file = curves.gather("mine", [], seeds, {})
    assert file.unit == "training steps" and file.steps == [5, 10]
    curves.save(file, tmp_path / "mine.json")
    read = curves.load(tmp_path / "mine.json")
    assert read.unit == "training steps" and read.steps == [5, 10]
    # A run counts as the file does.
    assert seeds[0].counted_in(read.unit).steps == [5, 10]
    assert seeds[0].counted_in("env steps").steps == [100, 180]
    other = Curve([90, 170], [20, 20], found, training_steps=[4, 8])
    with pytest.raises(ValueError, match=r"not evaluated after the same steps: .*\[4, 8\]"):
        curves.gather("mine", [], {**seeds, 2: other}, {})
