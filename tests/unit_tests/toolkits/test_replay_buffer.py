"""The tool for saved replay buffers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf.data.replay import TrajectoryReplayBuffer, find_shards
from tests.unit_tests.data.replay.reference import Envs, SlowReplay, pick, same
from toolkits.replay_buffer.__main__ import main


def save(folder, seed=0, steps=30, ranks=1):
    """Saves random episodes; returns what should be drawn, by the first number of the state."""
    expected = {}
    envs = Envs(np.random.default_rng(seed), 3, 2)
    envs.seen = 10_000 * seed
    for rank in range(ranks):
        buffer = TrajectoryReplayBuffer(200, rank=rank, world_size=ranks, segment_bytes=500)
        slow = SlowReplay(200, 0.99, "step")
        trajectory = envs.rollout(steps, streams=False)
        buffer.add_trajectories([trajectory])
        slow.add(trajectory)
        buffer.save_checkpoint(folder)
        for row in slow.rows:
            if row.drawable:
                expected[row.obs["state"][0].item()] = (row, slow.transition(row, 3))
    return expected


def drawn(folder, half=torch.bfloat16):
    """Returns all that can be drawn from a saved buffer, by the first number of the state."""
    found = {}
    for rank, shard in enumerate(shards := find_shards(folder)):
        buffer = TrajectoryReplayBuffer(1000, rank=rank, world_size=len(shards))
        buffer.load_checkpoint(folder)
        batch = buffer.sample(40 * buffer.num_drawable, 3)
        assert batch.obs["half"].dtype == half
        for i, key in enumerate(batch.obs["state"][:, 0].tolist()):
            found.setdefault(key, (batch, i))
        assert len(shard) == len(buffer)
    return found


def check(found, expected, *, without=()):
    assert found.keys() == expected.keys()
    for key, (batch, i) in found.items():
        row, transition = expected[key]

        def strip(obs):
            return {name: value for name, value in obs.items() if name not in without}

        assert same(strip(pick(batch.obs, i)), strip(row.obs))
        assert same(strip(pick(batch.next_obs, i)), strip(transition["next_obs"]))
        assert batch.rewards[i].item() == pytest.approx(transition["rewards"], rel=1e-4, abs=1e-5)
        assert batch.versions[i].item() == row.version
        assert batch.valid[i].tolist() == row.valid


def test_merge_joins_buffers_and_shares_them_out(tmp_path, capsys):
    expected = save(tmp_path / "one", 1) | save(tmp_path / "two", 2, ranks=2)
    args = ["merge", str(tmp_path / "out"), str(tmp_path / "one"), str(tmp_path / "two")]
    assert main([*args, "--ranks", "3"]) == 0
    check(drawn(tmp_path / "out"), expected)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "rank_0",
        "rank_1",
        "rank_2",
    ]
    assert main(args) == 1
    assert "has a saved buffer already" in capsys.readouterr().err


def test_trim_keeps_the_newest(tmp_path, capsys):
    expected = save(tmp_path / "all", 3, ranks=2)
    assert main(["trim", str(tmp_path / "all"), str(tmp_path / "rows"), "--transitions", "40"]) == 0
    assert sum(map(len, find_shards(tmp_path / "rows"))) == 40
    found = drawn(tmp_path / "rows")
    check(found, {key: expected[key] for key in found})
    command = ["trim", str(tmp_path / "all"), str(tmp_path / "few"), "--episodes", "4"]
    assert main(command) == 0
    capsys.readouterr()
    main(["print", str(tmp_path / "few")])
    assert "episodes: 4\n" in capsys.readouterr().out
    assert main(["trim", str(tmp_path / "all"), str(tmp_path / "no")]) == 1
    assert "say how much to keep" in capsys.readouterr().err


def test_episodes_go_to_npz_and_back(tmp_path, capsys):
    expected = save(tmp_path / "all", 4, ranks=2)
    assert main(["convert", str(tmp_path / "all"), str(tmp_path / "npz")]) == 0
    assert main(["convert", str(tmp_path / "npz"), str(tmp_path / "back"), "--back"]) == 0
    check(drawn(tmp_path / "back", torch.float32), expected, without=("half",))
    (tmp_path / "bad").mkdir()
    np.savez(tmp_path / "bad" / "a.npz", rewards=np.ones((3, 1)))
    assert main(["convert", str(tmp_path / "bad"), str(tmp_path / "x"), "--back"]) == 1
    assert "a.npz lacks actions, terminated, truncated" in capsys.readouterr().err


def test_print_says_what_is_in_a_buffer(tmp_path, capsys):
    save(tmp_path / "all", 5, ranks=2)
    assert main(["print", str(tmp_path / "all")]) == 0
    told = capsys.readouterr().out
    count = sum(map(len, find_shards(tmp_path / "all")))
    assert f"transitions: {count}\n" in told and "shards: 2\n" in told
    assert "  obs/cameras/left: U8 [3]\n" in told
    assert main(["print", str(tmp_path)]) == 1
    assert "is no saved replay buffer" in capsys.readouterr().err
