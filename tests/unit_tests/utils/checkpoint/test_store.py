"""A checkpoint is complete or it is not there."""

from __future__ import annotations

import json
import os

import pytest

from rlinf.utils.checkpoint import Checkpoint, CheckpointError, CheckpointStore


def save(store, step, score=None, text="weights"):
    part = store.begin(step)
    (part / "actor").mkdir()
    (part / "actor" / "rank_0.json").write_text(text)
    return store.commit(step, {"config": {"a": 1}}, score)


def test_what_was_written_is_found_and_verified(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.latest() is None and store.all() == []
    for step in (2, 10, 9):
        save(store, step)
    assert [c.step for c in store.all()] == [2, 9, 10]
    newest = store.latest()
    assert newest.path == tmp_path / "checkpoints" / "global_step_10"
    assert newest.manifest["config"] == {"a": 1}
    assert Checkpoint.open(str(newest.path)).step == 10


def test_an_unfinished_one_is_never_seen(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    part = store.begin(2)
    (part / "actor.json").write_text("half")
    assert store.latest().step == 1
    # A copy that lacks its last file, as a killed transfer leaves it.
    os.rename(part, store.place(2))
    assert store.latest().step == 1
    with pytest.raises(CheckpointError, match="was not written to its end"):
        Checkpoint.open(store.place(2))


def test_a_straggler_of_a_killed_run_does_not_write_into_that_of_the_next(tmp_path):
    killed, resumed = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    late = killed.begin(3)
    part = resumed.begin(3)
    assert part != late and not late.exists()
    (part / "rank_0.json").write_text("new")
    late.mkdir(parents=True)
    (late / "rank_0.json").write_text("old, and only half of it")
    assert (resumed.commit(3, {}).path / "rank_0.json").read_text() == "new"
    resumed.begin(4)
    CheckpointStore(tmp_path).begin(3)
    assert not late.exists()


@pytest.mark.parametrize(
    "harm, words",
    [
        (lambda f: f.write_text("weightz"), "rank_0.json is not what was written"),
        (lambda f: f.write_text("weigh"), "has 5 bytes instead of 7"),
        (lambda f: f.unlink(), "rank_0.json is missing"),
    ],
)
def test_damage_is_named_and_the_one_before_is_used(tmp_path, capsys, harm, words):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    harm(save(store, 2).path / "actor" / "rank_0.json")
    with pytest.raises(CheckpointError, match=words):
        Checkpoint.open(store.place(2))
    assert store.latest().step == 1
    assert words in capsys.readouterr().out


def test_a_missing_one_lists_its_neighbours(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 3)
    with pytest.raises(CheckpointError, match=r"no checkpoint .*global_step_4.*global_step_3"):
        Checkpoint.open(store.place(4))


def test_another_format_is_refused(tmp_path):
    store = CheckpointStore(tmp_path)
    path = save(store, 1).path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        Checkpoint.open(store.place(1))


def test_the_newest_and_the_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2, keep_best=2)
    for step, score in enumerate([0.9, 0.1, None, 0.8, 0.2, 0.3], start=1):
        save(store, step, score)
    assert [c.step for c in store.all()] == [1, 4, 5, 6]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"global_step_{s}" for s in (1, 4, 5, 6)]


def test_a_step_that_is_saved_again_replaces_the_old_one(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1, text="old")
    save(store, 1, text="new")
    assert (store.latest().path / "actor" / "rank_0.json").read_text() == "new"


def test_the_newest_one_of_a_run(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match="is not a checkpoint, which is called global_step_"):
        Checkpoint.find(tmp_path)
    for step in (2, 10):
        save(store, step)
    for path in (tmp_path, store.folder, store.place(10)):
        found = Checkpoint.find(str(path))
        assert found.step == 10 and found.run_folder == tmp_path
    assert Checkpoint.find(store.place(2)).step == 2
    moved = tmp_path / "elsewhere" / "global_step_2"
    moved.parent.mkdir()
    os.rename(store.place(2), moved)
    assert Checkpoint.find(moved).run_folder == moved.parent
