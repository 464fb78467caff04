"""Env types read like an enum, are found lazily, and grow by a decorator."""

import copy
import pickle
import subprocess
import sys
import types
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from pydantic import BaseModel

from rlinf.config.plugins import get_schema, known_names
from rlinf.envs import SupportedEnvType, get_env_cls, register_env

ROOT = Path(__file__).parents[3]


class Maze(gymnasium.Env):
    """Walk right until the end."""

    def __init__(self, length=3):
        self.observation_space = gymnasium.spaces.Box(0, length, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self._obs(), {}

    def step(self, action):
        self.place += int(action)
        done = self.place >= self.length
        return self._obs(), float(done), done, False, {"is_success": done}

    def _obs(self):
        return np.array([self.place], dtype=np.float32)


def test_it_reads_like_an_enum():
    assert SupportedEnvType.METAWORLD.value == "metaworld"
    assert SupportedEnvType("MetaWorld") is SupportedEnvType.METAWORLD
    assert {member.value for member in SupportedEnvType} == set(known_names("env"))
    assert "libero" in SupportedEnvType and "doom" not in SupportedEnvType
    assert len(SupportedEnvType) == 6
    for duplicate in (copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
        assert duplicate(SupportedEnvType.GYMNASIUM) is SupportedEnvType.GYMNASIUM
    with pytest.raises(ValueError, match="'metaword' is not supported.*did you mean 'metaworld'?"):
        get_env_cls("metaword")


def test_importing_the_package_loads_no_simulator():
    program = (
        "import sys, rlinf.envs\n"
        "from rlinf.envs import get_env_cls, SupportedEnvType, register_env\n"
        "from rlinf.config.plugins import get_schema\n"
        "[get_schema('env', member.value) for member in SupportedEnvType]\n"
        "assert not {'torch', 'mujoco', 'gymnasium', 'metaworld', 'ray'} & set(sys.modules)\n"
        "classes = [get_env_cls(member) for member in SupportedEnvType]\n"
        "assert not {'mujoco', 'gymnasium', 'metaworld', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=110)


def test_a_gymnasium_class_is_an_env_type():
    register_env("maze")(Maze)
    assert SupportedEnvType("maze") is SupportedEnvType.MAZE
    cls = get_env_cls("maze")
    assert cls is get_env_cls(SupportedEnvType.MAZE)
    env = cls({"init_params": {"length": 2}}, 2)
    env.reset()
    obs, rewards, terminations, _, infos = env.chunk_step(np.ones((2, 3, 1), np.float32))
    assert rewards.tolist() == [[0, 1, 0]] * 2
    assert terminations.any(1).all()
    assert infos[-1]["episode"]["success_once"].tolist() == [1, 1]
    assert "success_key" in get_schema("env", "maze").model_fields


def test_keys_of_the_schema_are_arguments():
    class Keys(BaseModel):
        length: int = 3

    @register_env("long_maze", schema=Keys)
    def make(length):
        return Maze(length)

    env = get_env_cls("long_maze")({"length": 5}, 1)
    env.reset()
    assert env.chunk_step(np.ones((1, 5, 1)))[2].tolist() == [[False] * 4 + [True]]
    fields = get_schema("env", "long_maze").model_fields
    assert {"length", "on_nan", "num_reset_states"} <= set(fields)


def test_a_vector_env_class_and_a_path(walk):
    walk_cls = type(walk(1))
    register_env("stroll", walk_cls)
    assert get_env_cls("stroll") is walk_cls
    register_env("lazy", "rlinf.envs.gymnasium.env:GymnasiumEnv")
    assert get_env_cls("LAZY").__name__ == "GymnasiumEnv"


def test_a_name_is_taken_only_on_purpose():
    register_env("maze", Maze)
    register_env("maze", Maze)
    with pytest.raises(ValueError, match="'maze' is already.*pass replaces=True"):
        register_env("maze", "somewhere:Else")
    register_env("maze", "somewhere:Else", replaces=True)
    with pytest.raises(ModuleNotFoundError, match="somewhere"):
        get_env_cls("maze")
    with pytest.raises(ValueError, match="must be an env class or a function, but is 3"):
        register_env("nothing", 3)


def test_an_extension_module_registers_envs(monkeypatch):
    module = types.ModuleType("my_envs")
    module.register = lambda: register_env("maze", Maze)
    monkeypatch.setitem(sys.modules, "my_envs", module)
    monkeypatch.setenv("RLINF_EXT_MODULE", "my_envs")
    assert issubclass(get_env_cls("maze"), get_env_cls("gymnasium"))
