"""Plug-ins bring the schema of their own keys."""

import sys
import types

import pytest
from pydantic import BaseModel, Field

from rlinf.config import (
    Int,
    Section,
    SupportedModel,
    register_lazy,
    register_schema,
    validate_cfg,
)
from rlinf.config.checks import cross_check
from rlinf.config.errors import Problem
from rlinf.config.plugins import get_schema, known_names, load_extension, worker_extensions
from rlinf.config.tracked import unread_keys


class MazeKeys(Section):
    """Keys of an env that a test adds."""

    walls: Int = Field(3, ge=0, description="Walls of the maze.")
    max_episode_steps: Int = Field(50, gt=0, description="Steps until the maze closes.")


def test_a_new_env_has_its_own_keys_beside_the_common_ones(embodied, complaint):
    register_schema("env", "Maze", MazeKeys)
    train = {"env_type": "maze", "total_num_envs": 16, "walls": 4}
    embodied["env"] = {"train": train}
    embodied["actor"]["global_batch_size"] = 200
    cfg = validate_cfg(embodied)
    assert cfg.env.train.walls == 4
    assert cfg.env.train.auto_reset is True
    assert cfg.env.train.max_episode_steps == 50
    train["walls"] = -1
    assert "env.train.walls = -1\n  must be a whole number, at least 0" in complaint(embodied)
    train["walls"] = 1
    train["task"] = "reach-v3"
    assert "unknown key: 'env.train' has no 'task'" in complaint(embodied)


def test_a_plain_pydantic_model_will_do_and_is_as_strict(embodied, complaint):
    class Keys(BaseModel):
        depth: int = 1

    register_schema("advantage", "deep", Keys)
    embodied["algorithm"].update(adv_type="deep", depth=3)
    assert validate_cfg(embodied).algorithm.depth == 3
    embodied["algorithm"]["depth"] = True
    assert "algorithm.depth = true" in complaint(embodied)
    embodied["algorithm"].update(depth=1, width=2)
    assert "algorithm.width = 2" in complaint(embodied)


def test_advantage_and_loss_both_add_keys(embodied):
    class AdvantageKeys(Section):
        depth: Int = 1

    class LossKeys(Section):
        width: Int = 2

    register_schema("advantage", "deep", AdvantageKeys)
    register_schema("loss", "wide", LossKeys)
    embodied["algorithm"].update(adv_type="deep", loss_type="wide", width=5)
    algorithm = validate_cfg(embodied).algorithm
    assert (algorithm.depth, algorithm.width) == (1, 5)


def test_a_new_model_with_and_without_keys(embodied, complaint):
    assert SupportedModel.register("my_model", "embodied").category == "embodied"
    embodied["actor"]["model"] = {"model_type": "my_model", "add_value_head": True}
    assert validate_cfg(embodied).actor.model.model_type == "my_model"
    embodied["actor"]["model"]["layers"] = 2
    message = complaint(embodied)
    assert "unknown key: 'actor.model' has no 'layers'" in message
    assert "keys of a plug-in are those its model_type registered (register_schema)" in message

    class Keys(Section):
        layers: Int = 1

    register_schema("model", "my_model", Keys)
    assert validate_cfg(embodied).actor.model.layers == 2


def test_a_name_is_taken_only_on_purpose():
    class Other(Section):
        pass

    register_schema("env", "maze", MazeKeys)
    register_schema("env", "maze", MazeKeys)
    with pytest.raises(ValueError, match="replaces=True"):
        register_schema("env", "maze", Other)
    register_schema("env", "maze", Other, replaces=True)
    register_schema("env", "maze", MazeKeys)
    assert get_schema("env", "maze") is Other
    with pytest.raises(ValueError, match="unknown plug-in kind 'envs'"):
        register_schema("envs", "maze", MazeKeys)


def test_lazy_modules_are_imported_on_first_use(monkeypatch, tmp_path, embodied):
    (tmp_path / "lazy_maze.py").write_text(
        "from rlinf.config import Section, register_schema\n"
        "class Keys(Section):\n"
        "    walls: int = 7\n"
        "register_schema('env', 'lazy_maze', Keys)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    register_lazy("env", "lazy_maze", "lazy_maze")
    assert "lazy_maze" in known_names("env")
    validate_cfg(embodied)
    assert "lazy_maze" not in sys.modules
    embodied["env"]["train"]["env_type"] = "lazy_maze"
    assert validate_cfg(embodied).env.train.walls == 7
    monkeypatch.delitem(sys.modules, "lazy_maze")


def test_lazy_modules_that_fail(embodied, complaint):
    register_lazy("env", "broken", "no_such_module_here")
    register_lazy("env", "silent", "textwrap")
    embodied["env"]["train"]["env_type"] = "broken"
    message = complaint(embodied)
    assert 'env.train.env_type = "broken"' in message
    assert "module no_such_module_here, which fails to import" in message
    embodied["env"]["train"]["env_type"] = "silent"
    assert "module textwrap does not register the env 'silent'" in complaint(embodied)


def extension(monkeypatch, **content):
    module = types.ModuleType("my_extension")
    for name, value in content.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "my_extension", module)
    monkeypatch.setenv("RLINF_EXT_MODULE", "my_extension")


def test_the_extension_module_registers_once(monkeypatch, embodied):
    calls = []

    def register():
        calls.append(1)
        register_schema("env", "maze", MazeKeys)

    extension(monkeypatch, register=register)
    embodied["env"] = {"train": {"env_type": "maze", "total_num_envs": 16, "walls": 1}}
    embodied["actor"]["global_batch_size"] = 200
    assert validate_cfg(embodied).env.train.walls == 1
    validate_cfg(embodied)
    load_extension()
    assert calls == [1]


def test_several_extensions_in_the_current_folder_need_no_register(monkeypatch, embodied, tmp_path):
    keys = "from rlinf.config import register_schema\nregister_schema('env', '{0}', None)\n"
    for name in ("first_maze", "second_maze"):
        (tmp_path / f"{name}.py").write_text(keys.format(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("RLINF_EXT_MODULE", "first_maze, second_maze")
    load_extension()
    assert {"first_maze", "second_maze"} <= set(known_names("env"))


def test_extensions_that_fail_are_named(monkeypatch, embodied, complaint):
    monkeypatch.setenv("RLINF_EXT_MODULE", "no_such_extension")
    message = complaint(embodied)
    assert 'environment variable RLINF_EXT_MODULE = "no_such_extension"' in message
    assert "the module cannot be imported: No module named 'no_such_extension'" in message

    def register():
        raise RuntimeError("no licence")

    extension(monkeypatch, register=register)
    assert "register() of the module failed: RuntimeError: no licence" in complaint(embodied)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """The current folder, which holds modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_config_names_its_own_modules(here, monkeypatch, embodied):
    text = "from rlinf.config import register_schema\nregister_schema('env', 'own_maze', None)\n"
    (here / "own_maze.py").write_text(text)
    embodied["runner"]["ext_modules"] = ["own_maze"]
    embodied["env"]["train"]["env_type"] = "own_maze"
    cfg = validate_cfg(embodied)
    assert cfg.env.train.env_type == "own_maze"
    assert "runner.ext_modules" not in unread_keys(cfg, [])
    # Workers have no config when they begin: they get the modules by the variable.
    assert worker_extensions("") == "own_maze"
    assert worker_extensions("other, own_maze") == "other,own_maze"


def test_modules_of_the_variable_are_no_business_of_other_workers(monkeypatch):
    extension(monkeypatch)
    load_extension()
    assert worker_extensions("") == ""


def test_modules_of_a_config_that_fail_are_named_all_at_once(here, embodied, complaint):
    (here / "broken_maze.py").write_text("walls = 3\nwalls.push(4)\n")
    (here / "only_a_folder").mkdir()
    names = ["no_such_maze", "broken_maze", "only_a_folder"]
    embodied["runner"]["ext_modules"] = names
    message = complaint(embodied)
    assert "The config has 3 problems" in message
    assert all(f'runner.ext_modules = "{name}"' in message for name in names)
    assert "No module named 'no_such_maze'" in message
    assert "run from the folder that holds no_such_maze" in message
    assert "AttributeError: 'int' object has no attribute 'push'" in message
    assert f"{here / 'broken_maze.py'}, line 2" in message
    assert f"this is the folder {here / 'only_a_folder'}, which has no __init__.py" in message


@pytest.mark.parametrize("given", ["envs.py", "../envs", "my-envs", ""])
def test_a_path_is_no_module(given, embodied, complaint):
    embodied["runner"]["ext_modules"] = [given]
    assert "must be the name of a module" in complaint(embodied)


def test_a_feature_can_add_a_rule(embodied, complaint):
    @cross_check(("embodied",))
    def few_envs(context):
        if context.cfg.env.train.total_num_envs > 8 * context.workers("env"):
            yield Problem("env.train.total_num_envs", 1, "too many for this machine")

    validate_cfg(embodied)
    embodied["env"]["train"]["total_num_envs"] = 32
    assert "too many for this machine" in complaint(embodied)
