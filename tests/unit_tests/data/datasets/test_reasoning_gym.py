"""Generated prompts: the same everywhere, ahead of time, and none of validation in training."""

from __future__ import annotations

import sqlite3
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("reasoning_gym")

from rlinf.data.datasets import gym_entries, make_dataset  # noqa: E402
from rlinf.data.datasets.gym_entries import EntryCache, EntryKey, EntrySource  # noqa: E402
from rlinf.utils.processes.pool import ProcessPool, ProcessSpec  # noqa: E402
from tests.unit_tests.data.settings import data_section  # noqa: E402

MIX = [
    {"name": "leg_counting", "weight": 3.0},
    {"name": "chain_sum", "config": {"max_terms": 3}},
]


def section(tmp_path, **keys):
    keys = {"tasks": MIX, "size": 200, "val_size": 20, "num_workers": 0, **keys}
    return data_section(type="reasoning_gym", cache_dir=str(tmp_path), **keys)


def records(dataset, count=None):
    return [dataset[i] for i in range(count or len(dataset))]


def test_records_follow_from_seed_and_split_whoever_generates_them(tmp_path):
    here = make_dataset(section(tmp_path / "a"), "train", 7)
    there = make_dataset(section(tmp_path / "b", num_workers=1), "train", 7)
    try:
        there.prefetch(range(40))
        assert records(there, 40) == records(here, 40)
        assert here.fingerprint() == there.fingerprint()
    finally:
        there.close()
    other = make_dataset(section(tmp_path / "a"), "train", 8)
    assert records(other, 5) != records(here, 5)


def test_tasks_are_mixed_by_weight(tmp_path):
    tasks = [record.task for record in records(make_dataset(section(tmp_path), "train", 0))]
    assert set(tasks) == {"leg_counting", "chain_sum"}
    assert 120 <= tasks.count("leg_counting") <= 178  # 150, and 4.6 deviations


def test_no_validation_question_is_trained_on(tmp_path):
    tasks = [{"name": "coin_flip", "config": {"min_trials": 3, "max_trials": 6}}]
    cfg = section(tmp_path, tasks=tasks, val_size=4, size=100)
    val = {record.prompt for record in records(make_dataset(cfg, "val", 0))}
    train = {record.prompt for record in records(make_dataset(cfg, "train", 0))}
    assert val and train and not val & train
    # Without the rule there would be some: the task has few questions.
    free = section(tmp_path, tasks=tasks, val_size=0, size=100)
    assert val & {record.prompt for record in records(make_dataset(free, "train", 0))}


def test_a_task_with_too_few_questions_says_so(tmp_path):
    tasks = [{"name": "coin_flip", "config": {"min_trials": 3, "max_trials": 3}}]
    cfg = section(tmp_path, tasks=tasks, val_size=200)
    dataset = make_dataset(cfg, "train", 0)
    with pytest.raises(ValueError, match="'coin_flip': none of 200 questions can be used"):
        records(dataset)


def test_wrong_tasks_are_named(tmp_path):
    with pytest.raises(ValueError, match="no task 'leg_count'; did you mean 'leg_counting'"):
        make_dataset(section(tmp_path, tasks=[{"name": "leg_count"}]), "train", 0)
    wrong = [{"name": "chain_sum", "config": {"terms": 3}}]
    with pytest.raises(ValueError, match="'chain_sum' refuses its config: TypeError.*terms"):
        make_dataset(section(tmp_path, tasks=wrong), "train", 0)
    with pytest.raises(ValueError, match="data.val_size is 0"):
        make_dataset(section(tmp_path, val_size=0), "val", 0)


KEY = EntryKey("countdown", "{}", 5, 10, 3)


def test_slow_entries_are_kept_on_disk_when_they_are_made(tmp_path, monkeypatch):
    source = EntrySource(1, str(tmp_path))
    try:
        source.prefetch([KEY, KEY._replace(index=4)])
        pending = list(source._pending.values())
        assert [future.result().status for future in pending] == ["ok", "ok"]
        deadline = time.monotonic() + 60
        # A future tells its waiters before it calls back.
        while source._cache.get(KEY) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        first = source.get(KEY)
    finally:
        source.close()
    fresh = EntrySource(0, str(tmp_path))
    monkeypatch.setattr(gym_entries, "make_generator", lambda: pytest.fail("generated again"))
    assert fresh.get(KEY) == first
    assert isinstance(first["metadata"]["difficulty"]["numbers"], tuple), "types are kept"


def test_fast_entries_are_not_kept(tmp_path):
    source = EntrySource(0, str(tmp_path))
    quick = EntryKey("leg_counting", "{}", 5, 10, 3)
    source.get(quick)
    began = time.monotonic()
    source.get(quick._replace(index=4))
    if time.monotonic() - began < gym_entries.SLOW_SECONDS:
        assert source._cache.get(quick._replace(index=4)) is None


def test_entries_that_are_no_literals_are_made_where_they_are_used(tmp_path):
    source = EntrySource(1, str(tmp_path))
    try:
        key = EntryKey("knights_knaves", "{}", 5, 10, 3)
        assert source.get(key) == gym_entries._dataset(*key[:4])[3]
    finally:
        source.close()


def test_a_cache_that_cannot_be_used_is_said_once(tmp_path):
    (tmp_path / "file").write_text("")
    cache = EntryCache(str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not kept on disk.*data.cache_dir") as caught:
        cache.put(KEY, "{}")
        assert cache.get(KEY) is None
    assert len(caught) == 1


def test_a_cache_serves_several_processes(tmp_path):
    one, two = EntryCache(str(tmp_path)), EntryCache(str(tmp_path))
    one.put(KEY, "{'a': 1}")
    two.put(KEY, "{'a': 2}")
    assert two.get(KEY) == one.get(KEY) == "{'a': 1}"
    (path,) = tmp_path.iterdir()
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM entries").fetchone() == (1,)


def test_the_reward_scores_what_the_dataset_gives(tmp_path):
    from rlinf.algorithms.rewards.reasoning_gym import ReasoningGymReward

    rule = ReasoningGymReward(SimpleNamespace(answer_tag="answer"))
    whole = ReasoningGymReward(SimpleNamespace(answer_tag=None))
    for record in records(make_dataset(section(tmp_path), "val", 0), 5):
        right = f"so <answer>{record.answer}</answer>"
        assert rule.score(right, record.answer, metadata=record.metadata)[0] == 1.0
        assert whole.score(record.answer, record.answer, metadata=record.metadata)[0] == 1.0
        assert rule.score(record.answer, record.answer, metadata=record.metadata)[0] == 0.0
        wrong = "<answer>none</answer>"
        assert rule.score(wrong, record.answer, metadata=record.metadata)[0] < 0.1
    with pytest.raises(ValueError, match="set data.type: reasoning_gym"):
        rule.score("<answer>1</answer>", "1", metadata={})


@pytest.mark.parametrize("confined", [True, False])
def test_text_that_a_task_evaluates_can_do_no_harm(tmp_path, confined):
    """The task countdown would evaluate the answer as Python: nothing but formulas gets there."""
    cfg = section(tmp_path, tasks=[{"name": "countdown"}], val_size=1)
    (record,) = records(make_dataset(cfg, "val", 0))
    target = tmp_path / "harm"
    attacks = [f"__import__('os').system('touch {target}')", f"open('{target}', 'w').write('x')"]
    settings = {"answer_tag": "answer", "timeout": 10.0}
    target_and_args = "rlinf.algorithms.rewards.base:make_scorer", ("reasoning_gym", settings)
    pool = ProcessPool(ProcessSpec(*target_and_args, confined=confined), timeout=10.0)
    try:
        texts = [f"<answer>{text}</answer>" for text in (*attacks, record.answer)]
        outcomes = pool.map([(text, "", "", record.metadata) for text in texts])
    finally:
        pool.close()
    *scores, right = [outcome.value["score"] for outcome in outcomes]
    assert max(scores) < 0.1 and right == 1.0
    assert not target.exists()
