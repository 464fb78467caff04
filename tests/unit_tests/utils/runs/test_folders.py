"""Each run has a folder of its own, and is found again."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from rlinf.utils.runs import (
    experiment_runs,
    find_run,
    new_evaluation_folder,
    new_run_folder,
    point_latest_to,
)


def make_run(path):
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("{}")
    return path


def test_no_two_runs_have_the_same_folder(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: new_run_folder(tmp_path / "job"), range(200)))
    assert len(set(made)) == 200
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-z]{4}", folder.name) for folder in made)


def test_names_sort_by_time(tmp_path):
    made = [new_run_folder(tmp_path) for _ in range(50)]
    assert made == sorted(made)


def test_evaluations_of_one_checkpoint_are_counted(tmp_path):
    made = [new_evaluation_folder(tmp_path, "eval_global_step_3").name for _ in range(3)]
    assert made == ["eval_global_step_3", "eval_global_step_3-2", "eval_global_step_3-3"]


def test_latest_points_to_the_run_that_began_last(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    point_latest_to(second)
    point_latest_to(first)
    assert (tmp_path / "latest").resolve() == first.resolve()
    assert find_run(tmp_path) == first.resolve()
    assert experiment_runs(tmp_path) == [first, second], "the link is no run"


def test_a_folder_called_latest_is_left_alone(tmp_path):
    run = make_run(tmp_path / "a")
    (tmp_path / "latest").mkdir()
    point_latest_to(run)
    assert not (tmp_path / "latest").is_symlink()
    assert find_run(tmp_path) == run


def test_a_run_is_found_by_itself_and_anything_else_is_left_as_it_is(tmp_path):
    run = make_run(tmp_path / "job" / "a")
    assert find_run(run) == run and find_run(tmp_path / "job") == run
    assert find_run(tmp_path / "no") == tmp_path / "no"
    assert find_run(tmp_path) == tmp_path
