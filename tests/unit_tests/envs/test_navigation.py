"""Navigation by instruction: worlds that can be solved, and only by what the text says."""

import numpy as np
import pytest

from rlinf.config import ConfigError, validate_cfg
from rlinf.envs import get_env_cls
from rlinf.envs.checker import check_env
from rlinf.envs.navigation.landmarks import COLOURS, SHAPES, landmark_names
from rlinf.envs.navigation.pictures import (
    FIRST_LANDMARK,
    FLOOR,
    TILE,
    WALL,
    tiles,
)
from rlinf.envs.navigation.world import Move, World
from tests.unit_tests.workers.actor.learning import BASE

SIZES = {"size": 7, "rooms": 1, "landmarks": 3, "kinds": range(16), "view": 5}
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))


def make_env(count=8, **keys):
    cfg = {"env_type": "navigation", "seed": 3, "auto_reset": True, **keys}
    return get_env_cls("navigation")(cfg, count)


def way_to_goal(world):
    """Moves that bring the agent to its goal: downhill by distance, then a stop."""
    moves, place, heading = [], world.position, world.heading
    while world._distances[place] > 1:
        ahead = {h: tuple(np.add(place, STEPS[h])) for h in range(4)}
        wanted = next(h for h in ahead if 0 < world._distances[ahead[h]] < world._distances[place])
        moves += [Move.RIGHT] * ((wanted - heading) % 4) + [Move.FORWARD]
        place, heading = ahead[wanted], wanted
    return [*moves, Move.STOP]


@pytest.mark.parametrize("rooms", [1, 2, 4])
def test_the_contract_is_kept(rooms):
    keys = {"env_type": "navigation", "rooms": rooms, "size": 9, "max_episode_steps": 20}
    findings = list(check_env(get_env_cls("navigation"), keys))
    assert findings and [f.found for f in findings if f.status == "fail"] == []


def test_every_content_of_a_cell_looks_different():
    pictures = tiles().reshape(len(tiles()), -1)
    assert len(tiles()) == FIRST_LANDMARK + len(COLOURS) * len(SHAPES)
    assert len(np.unique(pictures, axis=0)) == len(pictures)
    assert landmark_names()[5] == "green box"


def plain_look(world, view):
    """Cell by cell: what is so many steps ahead and to the right, walls outside of the world."""
    ahead, right = STEPS[world.heading], STEPS[(world.heading + 1) % 4]
    picture = np.zeros((view * TILE, view * TILE, 3), np.uint8)
    for row in range(view):
        for column in range(view):
            far, aside = view - 1 - row, column - view // 2
            cell = tuple(
                np.add(world.position, np.multiply(far, ahead) + np.multiply(aside, right))
            )
            inside = all(0 <= place < len(world._cells) for place in cell)
            content = world._cells[cell] if inside else WALL
            picture[row * TILE :, column * TILE :][:TILE, :TILE] = tiles()[content]
    return picture


@pytest.mark.parametrize("rooms", [1, 4])
def test_an_agent_sees_what_is_ahead_of_it(rooms):
    rng = np.random.default_rng(0)
    for seed in range(20):
        world = World(seed, goal=2, **{**SIZES, "rooms": rooms})
        for move in rng.integers(0, 3, 12):
            world.move(move)
            assert np.array_equal(world.look(), plain_look(world, 5)), (seed, world.heading)


@pytest.mark.parametrize("rooms", [1, 2, 4])
def test_every_goal_can_be_reached_and_walls_are_in_the_way(rooms):
    for seed in range(30):
        world = World(seed, goal=seed % 16, **{**SIZES, "rooms": rooms})
        assert len(set(world.landmarks)) == 3 and world.landmarks[0] == seed % 16
        assert not world.is_there
        for move in way_to_goal(world):
            world.move(move)
            assert world._cells[world.position] == FLOOR
        assert world.is_there
        for _ in range(10):
            world.move(Move.FORWARD)
        assert world._cells[world.position] == FLOOR, "nobody walks through walls or landmarks"


def test_a_seed_and_a_goal_make_a_world():
    one, same, other = (World(seed, goal=4, **SIZES) for seed in (7, 7, 8))
    assert np.array_equal(one.look_down(), same.look_down())
    assert not np.array_equal(one.look_down(), other.look_down())


def test_success_is_a_stop_beside_the_named_landmark():
    env = make_env(auto_reset=False, max_episode_steps=60)
    obs, _ = env.reset()
    plans = [way_to_goal(world) for world in env._worlds]
    begun = np.array([world.distance for world in env._worlds])
    for slot, world in enumerate(env._worlds):
        assert obs["task_descriptions"][slot] == f"go to the {landmark_names()[world.landmarks[0]]}"
    total = np.zeros(8)
    for step in range(max(map(len, plans))):
        actions = [[plan[step]] if step < len(plan) else [Move.LEFT] for plan in plans]
        _, reward, ended, _, infos = env.step(np.array(actions))
        total += reward.numpy()
        for slot, plan in enumerate(plans):
            assert bool(ended[slot]) == (step == len(plan) - 1)
    assert env.episode_metrics()["success_once"].all()
    np.testing.assert_allclose(total, 1 + 0.1 * (begun - 1), rtol=1e-5)


def test_a_stop_elsewhere_fails():
    env = make_env(reward="success")
    env.reset()
    _, reward, ended, _, infos = env.step(np.full((8, 1), Move.STOP))
    assert ended.all() and not reward.any() and not infos["episode"]["success_once"].any()


def test_swapped_instructions_name_another_landmark_of_the_same_world():
    plain, swapped = make_env(), make_env(swap_instructions=True)
    one, other = plain.reset()[0], swapped.reset()[0]
    assert (one["main_images"] == other["main_images"]).all()
    for slot, world in enumerate(swapped._worlds):
        told = other["task_descriptions"][slot]
        assert told != one["task_descriptions"][slot]
        assert told == f"go to the {landmark_names()[world.landmarks[1]]}"


def test_kinds_of_landmarks_may_be_chosen():
    env = make_env(colours=["blue", "red"], shapes=["box"], landmarks=2)
    assert env.task_names == ["blue box", "red box"]
    assert env.instructions == ["go to the blue box", "go to the red box"]
    told = env.reset()[0]["task_descriptions"]
    for text, world in zip(told, env._worlds, strict=True):
        names = [landmark_names()[number] for number in world.landmarks]
        assert sorted(names) == ["blue box", "red box"] and text == f"go to the {names[0]}"


def test_which_observations_begin_an_episode():
    env = make_env(max_episode_steps=3)
    env.reset()
    assert env.begins.all()
    env.step(np.array([[Move.STOP]] + [[Move.LEFT]] * 7))
    assert env.begins.tolist() == [True] + [False] * 7
    for _ in range(2):
        env.step(np.full((8, 1), Move.LEFT))
    assert env.begins.tolist() == [False] + [True] * 7


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"size": 3, "landmarks": 16}, "has no place for 16 landmarks"),
        ({"landmarks": 3, "colours": ["red"], "shapes": ["box", "ball"]}, "there are 2 kinds of"),
        ({"landmarks": 1, "swap_instructions": True}, "needs another landmark to name"),
    ],
)
def test_what_cannot_be_is_said(keys, said):
    with pytest.raises(ValueError, match=said):
        make_env(1, **keys)


def test_a_view_has_a_middle():
    data = {**BASE, "env": {"train": {"env_type": "navigation", "total_num_envs": 8, "view": 4}}}
    with pytest.raises(ConfigError, match="must be odd"):
        validate_cfg(data)
