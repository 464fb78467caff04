"""Which episodes slots get: groups, fixed and ordered ids, and what does not change them."""

import pytest
import torch


def beginnings(env, push, episodes=4, limit=2):
    """Returns where each slot begins its first episodes, `[episodes, B]`."""
    begun = [env.reset()[0]["states"][:, 0]]
    for _ in range(episodes - 1):
        begun.append(env.chunk_step(push(env.num_envs, limit))[0][-1]["states"][:, 0])
    return torch.stack(begun)


@pytest.mark.parametrize("states", [None, 40])
@pytest.mark.parametrize("group_size", [1, 2])
def test_workers_and_stages_do_not_change_the_episodes(walk, push, states, group_size):
    def all_slots(processes):
        share = 8 // processes
        cfg = {"seed": 5, "max_episode_steps": 2, "states": states, "group_size": group_size}
        envs = [walk(share, offset, processes, **cfg) for offset in range(processes)]
        return torch.cat([beginnings(env, push) for env in envs], dim=1)

    whole = all_slots(1)
    assert torch.equal(whole, all_slots(2))
    assert torch.equal(whole, all_slots(4))
    assert len(whole.unique()) > 8


def test_what_one_slot_does_changes_no_other(walk, push):
    cfg = {"seed": 3, "terminates": True, "max_episode_steps": 8}
    calm, busy = walk(2, **cfg), walk(2, **cfg)
    calm.reset(), busy.reset()
    still, moved = push(2, 8, 0.0), push(2, 8, 0.0)
    moved[0, :4] = 1
    after_calm = calm.chunk_step(still)[0][-1]["states"]
    after_busy = busy.chunk_step(moved)[0][-1]["states"]
    assert torch.equal(after_calm[1], after_busy[1])


def test_seeds_make_a_difference_and_slots_differ(walk, push):
    one, two = walk(4, seed=1), walk(4, seed=2)
    first, second = beginnings(one, push, 1)[0], beginnings(two, push, 1)[0]
    assert not torch.equal(first, second)
    assert len(first.unique()) == 4


def test_groups_begin_alike_in_every_episode(walk, push):
    env = walk(6, group_size=3, max_episode_steps=2, seed=1)
    begun = beginnings(env, push)
    assert torch.equal(begun[:, :3], begun[:, :1].expand(-1, 3))
    assert torch.equal(begun[:, 3:], begun[:, 3:4].expand(-1, 3))
    assert len(begun.unique()) == 8


def test_fixed_ids_stay_until_they_are_drawn_again(walk, push):
    cfg = {"use_fixed_reset_state_ids": True, "max_episode_steps": 2, "states": 50, "seed": 1}
    env = walk(4, group_size=2, **cfg)
    begun = beginnings(env, push)
    assert (begun == begun[0]).all()
    assert torch.equal(env.reset()[0]["states"][:, 0], begun[0])
    env.update_reset_state_ids()
    assert not torch.equal(env.reset()[0]["states"][:, 0], begun[0])


def test_a_specific_id_is_all_there_is(walk, push):
    env = walk(3, specific_reset_id=7, states=10, max_episode_steps=2)
    assert (beginnings(env, push) == 7).all()


@pytest.mark.parametrize(
    ("states", "processes", "share", "group_size"),
    [(10, 1, 4, 1), (10, 2, 3, 1), (3, 2, 4, 1), (24, 4, 2, 1), (5, 2, 4, 2)],
)
def test_ordered_ids_are_used_exactly_once_with_auto_reset(
    walk, push, states, processes, share, group_size
):
    seen = []
    for offset in range(processes):
        env = walk(
            share,
            offset,
            processes,
            states=states,
            group_size=group_size,
            use_ordered_reset_state_ids=True,
            max_episode_steps=2,
        )
        for _ in range(2):
            ids = []
            _, infos = env.reset()
            assert infos["_valid"].any() == env.has_work
            while env.has_work:
                *_, infos = env.chunk_step(push(share, 2))
                ids += infos[-1]["episode_reset_ids"][infos[-1]["_episode"]].tolist()
        seen += ids
        *_, infos = env.chunk_step(push(share, 2))
        assert not infos[-1]["_valid"].any()
        assert "episode" not in infos[-1]
    assert sorted(seen) == sorted(list(range(states)) * group_size)


def test_ordered_ids_are_used_exactly_once_in_rounds(walk, push):
    seen = []
    cfg = {"use_ordered_reset_state_ids": True, "auto_reset": False, "max_episode_steps": 2}
    for offset in range(2):
        env = walk(3, offset, 2, states=14, **cfg)
        assert env.rounds == 3
        for _ in range(env.rounds):
            _, infos = env.reset()
            valid = infos["_valid"]
            seen += infos["reset_state_ids"][valid].tolist()
            *_, infos = env.chunk_step(push(3, 2))
            assert torch.equal(infos[-1].get("_episode", torch.zeros(3, dtype=bool)), valid)
        _, infos = env.reset()
        assert infos["reset_state_ids"].tolist() == [3 * offset + slot for slot in range(3)]
    assert sorted(seen) == list(range(14))


def test_numbers_that_do_not_fit(walk):
    with pytest.raises(ValueError, match=r"6 envs per process .* group_size 4: 6 / 4 = 1.5 groups"):
        walk(6, group_size=4)
    with pytest.raises(ValueError, match="walk has no end of them: set num_reset_states"):
        walk(2, use_ordered_reset_state_ids=True)
    with pytest.raises(ValueError, match="has 5 reset states, from 0 to 4"):
        walk(2, specific_reset_id=5, states=5)
    with pytest.raises(ValueError, match="exclude each other"):
        walk(2, use_ordered_reset_state_ids=True, use_fixed_reset_state_ids=True, states=5)
    with pytest.raises(ValueError, match="seed_offset 2 must be from 0 to 1"):
        walk(2, 2, 2)
    with pytest.raises(ValueError, match="on_nan is 'ignore'; allowed: error, skip"):
        walk(2, on_nan="ignore")
