"""What episodes say together, in files, metrics and a table."""

from __future__ import annotations

import io
import json
import math

import pytest

from rlinf.utils.evaluation import EpisodeRecord, Evaluation, Summary, read_evaluation
from rlinf.utils.evaluation_table import show_evaluation
from rlinf.utils.intervals import mean_interval, wilson


def record(number, success=True, task="reach-v3", ret=10.0, length=5, start=None, **more):
    start = number if start is None else start
    return EpisodeRecord(
        number, task, start, start + 100, success, more.get("at_end", success), ret, length
    )


def evaluation(records, **more):
    return Evaluation(step=3, protocol="walk, seed 1", records=records, **more)


def shown(found) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120)
    show_evaluation(found, console)
    return console.file.getvalue()


def test_rates_and_means_have_their_intervals():
    records = [record(n, success=n % 4 > 0, ret=float(n), length=n + 1) for n in range(20)]
    found = evaluation(records[::-1])
    assert [r.id for r in found.records] == list(range(20))
    assert found.overall.success_once == wilson(0.75, 20)
    assert found.overall.ret == pytest.approx(mean_interval([float(n) for n in range(20)]))
    assert found.overall.length.value == 10.5
    assert found.failures() == [0, 4, 8, 12, 16]
    metrics = found.metrics()
    assert metrics["eval/episodes"] == 20.0 and metrics["eval/success_once"] == 0.75
    assert metrics["eval/success_once_low"] == pytest.approx(0.5313, abs=1e-4)
    assert metrics["eval/success_once_high"] == pytest.approx(0.8881, abs=1e-4)
    assert metrics["eval/episode_len"] == 10.5 and metrics["eval/return"] == 9.5
    assert metrics["eval/reward"] == pytest.approx(sum(n / (n + 1) for n in range(20)) / 20)
    assert not any("reach-v3" in name for name in metrics)
    said = "75.0% over 20 episodes from 20 distinct starts (95 % interval: 53.1% to 88.8%)"
    assert said in found.sentence()


def test_episodes_that_begin_alike_are_no_news():
    once = [record(n, success=n < 5, ret=float(n)) for n in range(10)]
    twice = once + [record(10 + n, success=n < 5, ret=float(n), start=n) for n in range(10)]
    one, two = Summary.of(once), Summary.of(twice)
    assert (two.episodes, two.distinct_starts, two.samples) == (20, 10, 10)
    assert two.success_once == one.success_once == wilson(0.5, 10)
    assert two.ret == pytest.approx(one.ret)
    # Played more often, a start weighs more, but it is still one start.
    uneven = Summary.of([*once, record(10, success=True, ret=0.0, start=0)])
    assert uneven.success_once == wilson(6 / 11, 10)
    assert uneven.ret.value == pytest.approx(45 / 11)
    text = shown(evaluation(twice))
    (row,) = (line for line in text.splitlines() if "reach-v3" in line)
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["20", "10"]
    assert "intervals count 10 of 20 episodes" in text
    assert "20 episodes from 10 distinct starts" in evaluation(twice).sentence()
    assert evaluation(twice).metrics()["eval/distinct_starts"] == 10.0


def test_starts_are_what_is_observed_and_not_what_was_planned():
    """Of an env that begins in one state, whatever the seed, ten episodes say as much as one."""
    planned = [record(n, success=False) for n in range(10)]
    assert Summary.of(planned).distinct_starts == 10
    for one in planned:
        one.start = "the same"
    one = Summary.of(planned)
    assert (one.episodes, one.distinct_starts, one.samples) == (10, 1, 1)
    assert one.success_once == wilson(0.0, 1)
    # If it is random after that, its seeds are samples of their own.
    planned[3].success_once = True
    random = Summary.of(planned)
    assert (random.distinct_starts, random.samples) == (1, 10)
    assert random.success_once == wilson(0.1, 10)
    # The same reset state and seed is one start, also if machines differ in the last bit of it.
    again = [record(n, start=0) for n in range(2)]
    again[0].start, again[1].start = "here", "there"
    assert Summary.of(again).distinct_starts == 1


def test_each_task_has_its_row_and_its_metric():
    records = [record(n, success=n % 2 == 0, task=("reach-v3", "push-v3")[n % 2]) for n in range(8)]
    found = evaluation(records)
    metrics = found.metrics()
    assert metrics["eval/success_once/reach-v3"] == 1.0
    assert metrics["eval/success_once/push-v3"] == 0.0
    lines = shown(found).splitlines()
    (reach,), (push,), (both,) = (
        [line for line in lines if f" {name} " in line] for name in ("reach-v3", "push-v3", "all")
    )
    assert "100.0% (51.0% – 100.0%)" in reach and "0.0% (0.0% – 49.0%)" in push
    assert " 8 " in both and "50.0%" in both
    assert "all" not in shown(evaluation(records[::2]))


def test_the_file_holds_everything_and_is_read_back(tmp_path):
    records = [record(0), record(1, success=True, at_end=False, ret=-3.5)]
    records[1].video = "videos/episode_0001.mp4"
    found = evaluation(records, dropped=[2], counters={"restarts": 1}, checkpoint="a/global_step_3")
    path = tmp_path / "evaluation.json"
    found.write(path)
    content = json.loads(path.read_text())
    assert content["overall"]["episodes"] == 2 and content["overall"]["distinct_starts"] == 2
    assert content["overall"]["success_at_end"]["value"] == 0.5
    assert content["tasks"]["reach-v3"]["return"]["value"] == 3.25
    assert content["episodes"][1] == {
        "id": 1,
        "task": "reach-v3",
        "reset_id": 1,
        "seed": 101,
        "success_once": True,
        "success_at_end": False,
        "return": -3.5,
        "length": 5,
        "start": None,
        "video": "videos/episode_0001.mp4",
    }
    again = read_evaluation(path)
    assert again.to_json() == content and again.metrics() == found.metrics()
    assert "do not count: 2" in shown(again)
    path.write_text('{"step": 3}')
    with pytest.raises(ValueError, match="is no evaluation"):
        read_evaluation(path)


def test_one_episode_or_none(tmp_path):
    one = evaluation([record(0)])
    one.write(tmp_path / "one.json")
    interval = json.loads((tmp_path / "one.json").read_text())["overall"]["return"]
    assert interval == {"value": 10.0, "low": None, "high": None}
    assert " 10 " in shown(one)
    none = evaluation([], dropped=[0])
    none.write(tmp_path / "none.json")
    assert none.metrics() == {"eval/episodes": 0.0, "eval/distinct_starts": 0.0}
    assert "no episode" in none.sentence()
    assert math.isnan(none.overall.success_once.value)
