"""The Gymnasium adapter: spaces, choices, dict observations, success, limits, saved states."""

import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlinf.envs import EnvSlotError, get_env_cls
from rlinf.envs.gymnasium.env import env_cls_for
from rlinf.envs.gymnasium.spaces import ObsReader, action_spec_of, action_writer


def make(env_id, num_envs=2, **cfg):
    return get_env_cls("gymnasium")({"id": env_id, **cfg}, num_envs)


def has_robotics():
    try:
        import gymnasium_robotics  # noqa: F401
    except ImportError:
        return False
    return True


robotics = pytest.mark.skipif(not has_robotics(), reason="gymnasium-robotics is not installed")


def test_a_registered_id_works_and_agrees_with_gymnasium():
    env = make("CartPole-v1", seed=1)
    assert env.max_episode_steps == 500
    assert env.action_spec.choices == (2,)
    obs, _ = env.reset()
    own = gymnasium.make("CartPole-v1")
    first, _ = own.reset(seed=env._starts[0].seed)
    assert np.array_equal(obs["states"][0].numpy(), first)
    for action in (0, 1, 1):
        expected, *_ = own.step(action)
        states = env.chunk_step(torch.full((2, 1, 1), float(action)))[0][-1]["states"]
    assert np.array_equal(states[0].numpy(), expected)
    assert obs["task_descriptions"] == ["CartPole-v1"] * 2


def test_terminations_of_a_real_env_end_episodes():
    env = make("CartPole-v1")
    env.reset()
    lengths = []
    for _ in range(10):
        _, rewards, terminations, truncations, infos = env.chunk_step(np.ones((2, 5, 1)))
        if terminations.any():
            done = infos[-1]["_episode"]
            lengths += infos[-1]["episode"]["episode_len"][done].tolist()
            assert (infos[-1]["episode"]["return"] == infos[-1]["episode"]["episode_len"]).all()
        assert not truncations.any()
    assert lengths and all(8 <= length <= 11 for length in lengths)


def test_a_module_before_the_colon_registers_the_id(monkeypatch, tmp_path):
    entry = "gymnasium.envs.classic_control.pendulum:PendulumEnv"
    content = f'import gymnasium\ngymnasium.register("Own-v0", "{entry}", max_episode_steps=7)\n'
    (tmp_path / "own_envs.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    assert make("own_envs:Own-v0").max_episode_steps == 7
    del gymnasium.registry["Own-v0"]
    with pytest.raises(ValueError, match="'own_envs:Pendulum-v7'.*near ones: Pendulum-v1"):
        make("own_envs:Pendulum-v7")
    with pytest.raises(ValueError, match="No module named 'no_envs'"):
        make("no_envs:Own-v0")


def test_an_env_that_says_that_it_is_not_deterministic_is_not_repeated(monkeypatch):
    entry = "gymnasium.envs.classic_control.pendulum:PendulumEnv"
    gymnasium.register("Robot-v0", entry, nondeterministic=True)
    monkeypatch.setitem(gymnasium.registry, "Robot-v0", gymnasium.registry.pop("Robot-v0"))
    reason = "Robot-v0 is nondeterministic: repeating its actions does not bring it back"
    assert make("Robot-v0").get_state()["not_saved"] == reason
    assert make("Pendulum-v1").get_state()["not_saved"] == ""
    factory = type("Arm", (gymnasium.envs.classic_control.PendulumEnv,), {})
    factory.metadata = {**factory.metadata, "nondeterministic": True}
    env = env_cls_for("arm", factory)({}, 1)
    assert env.get_state()["not_saved"] == reason.replace("Robot-v0", "arm")


def test_mujoco_and_its_own_limit():
    env = make("InvertedPendulum-v5", max_episode_steps=7, task_description="stay upright")
    obs, _ = env.reset()
    assert obs["task_descriptions"] == ["stay upright"] * 2
    *_, truncations, _ = env.chunk_step(np.zeros((2, 7, 1)))
    assert truncations[:, -1].all()
    assert make("HalfCheetah-v5").max_episode_steps == 1000


@robotics
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("env_id", "size", "actions"), [("FetchReach-v4", 16, 4), ("FrankaKitchen-v1", 93, 9)]
)
def test_robots_with_dict_observations(env_id, size, actions):
    env, other = make(env_id, seed=2, max_episode_steps=4), make(env_id, max_episode_steps=4)
    obs, _ = env.reset()
    assert obs["states"].shape == (2, size)
    assert env.action_spec.dim == actions
    rng = np.random.default_rng(0)
    env.chunk_step(env.action_spec.sample(rng, 2, 6))
    env.chunk_step(env.action_spec.sample(rng, 2, 2))
    other.set_state(pickle.loads(pickle.dumps(env.get_state())))
    row = env.action_spec.sample(rng, 2, 1)
    a, b = env.chunk_step(row), other.chunk_step(row)
    assert torch.equal(a[0][-1]["states"], b[0][-1]["states"])


@robotics
@pytest.mark.filterwarnings("ignore")
def test_success_of_a_goal_env():
    env = make("FetchReach-v4", 1, max_episode_steps=50, seed=3)
    obs, _ = env.reset()
    for _ in range(50):
        gap = obs["states"][0, 3:6] - obs["states"][0, 0:3]
        action = torch.cat([(gap * 10).clamp(-1, 1), torch.zeros(1)])
        obs, _, _, truncations, infos = env.step(action[None])
    assert truncations.all()
    assert infos["episode"]["success_at_end"].item() == 1


def test_success_by_a_key():
    env = make("CartPole-v1", success_key="won")
    env.reset()
    with pytest.raises(EnvSlotError, match="info has no key 'won'"):
        env.chunk_step(np.zeros((2, 1, 1)))
    read = make("CartPole-v1")._success
    assert read({"is_success": 1.0}) and not read({"success": False}) and not read({})
    assert read({"tasks_to_complete": []}) and not read({"tasks_to_complete": ["kettle"]})


def test_ids_that_do_not_exist_list_near_ones():
    with pytest.raises(ValueError, match="no env 'HalfChetah-v5'.*near ones: HalfCheetah-v5"):
        make("HalfChetah-v5")
    with pytest.raises(ValueError, match="has no id"):
        make("")


def test_a_module_before_the_colon_is_imported_first(tmp_path, monkeypatch):
    entry = "gymnasium.envs.classic_control:CartPoleEnv"
    text = f"import gymnasium\ngymnasium.register('Mine-v0', '{entry}')\n"
    (tmp_path / "registers_mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    env = make("registers_mine:Mine-v0")
    assert env.reset()[0]["states"].shape == (2, 4)
    gymnasium.registry.pop("Mine-v0")
    with pytest.raises(ValueError, match="no env 'no_such_module:Mine-v0' .*no_such_module"):
        make("no_such_module:Mine-v0")


def test_observations_of_many_kinds_become_states_and_images():
    picture = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    space = spaces.Dict(
        {
            "b": spaces.Dict({"x": spaces.Box(-1, 1, (2, 2)), "n": spaces.Discrete(3)}),
            "a": picture,
            "c": spaces.MultiBinary(2),
            "d": picture,
        }
    )
    reader = ObsReader(space)
    space.seed(0)
    sample = space.sample()
    read = reader.read(sample)
    assert {key: tuple(spec.shape) for key, spec in reader.spec.items()} == {
        "states": (9,),
        "main_images": (6, 5, 3),
        "extra_view_images": (1, 6, 5, 3),
    }
    assert np.array_equal(read["main_images"], sample["a"])
    assert np.array_equal(read["extra_view_images"][0], sample["d"])
    one_hot = np.eye(3)[sample["b"]["n"]]
    parts = [one_hot, sample["b"]["x"].ravel(), sample["c"]]
    assert np.array_equal(read["states"], np.concatenate(parts).astype(np.float32))
    with pytest.raises(ValueError, match="lacks 'c'"):
        reader.read({"a": sample["a"], "b": sample["b"], "d": sample["d"]})
    with pytest.raises(ValueError, match="which has no fixed size"):
        ObsReader(spaces.Dict({"words": spaces.Sequence(spaces.Discrete(5))}))


def test_actions_of_many_kinds():
    rng = np.random.default_rng(0)
    for space in (
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 4], start=[1, -3]),
        spaces.MultiDiscrete(np.array([[2, 3, 4], [5, 2, 2]])),
        spaces.MultiBinary(3),
    ):
        spec, write = action_spec_of(space), action_writer(space)
        seen = {tuple(row) for row in spec.sample(rng, 400).tolist()}
        assert all(space.contains(write(np.array(row))) for row in seen)
        assert len(seen) == min(np.prod(spec.choices), len(seen)) and len(seen) >= 3
        assert spec.choices == tuple(np.ravel(spec.high - spec.low).astype(int) + 1)
    box = spaces.Box(-1, 1, (2, 3), np.float64)
    assert action_spec_of(box).dim == 6
    assert action_writer(box)(np.arange(6, dtype=np.float32)).shape == (2, 3)
    with pytest.raises(ValueError, match="kind Text are not supported, only Box"):
        action_spec_of(spaces.Text(3))


def test_what_is_not_a_choice_is_refused_and_resting_slots_do_not_matter():
    env = make("CartPole-v1", max_episode_steps=3, auto_reset=False)
    env.reset()
    with pytest.raises(ValueError, match="slot 1 is 0.5 at index .0, 0., .* numbers 0 to 1: give"):
        env.chunk_step(np.array([[[1.0]], [[0.5]]]))
    with pytest.raises(ValueError, match="is 2 at index"):
        env.chunk_step(torch.full((2, 1, 1), 2))
    env.chunk_step(torch.ones(2, 3, 1, dtype=torch.int64))
    env.chunk_step(np.full((2, 1, 1), 7))


def test_choices_go_on_from_a_saved_state():
    env, other = make("CartPole-v1", seed=2), make("CartPole-v1")
    env.reset()
    env.chunk_step(np.array([[[1], [0]], [[0], [0]]]))
    other.set_state(pickle.loads(pickle.dumps(env.get_state())))
    row = np.array([[[1]], [[0]]])
    a, b = env.chunk_step(row), other.chunk_step(row)
    assert torch.equal(a[0][-1]["states"], b[0][-1]["states"])
