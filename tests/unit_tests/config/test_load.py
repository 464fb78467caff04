"""Configs are composed by name, and broken files are explained."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from omegaconf import OmegaConf

from rlinf.config import ConfigError, build_config, config_names, validate_cfg


@pytest.fixture
def folder(tmp_path, embodied):
    (tmp_path / "base.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(embodied)))
    (tmp_path / "size").mkdir()
    for size, envs in (("small", 16), ("large", 32)):
        (tmp_path / "size" / f"{size}.yaml").write_text(
            f"# @package _global_\nenv:\n  train:\n    total_num_envs: {envs}\n"
        )
    (tmp_path / "maze_ppo.yaml").write_text(
        "defaults:\n  - base\n  - size: small\n  - _self_\nactor:\n  optim:\n    lr: 1e-3\n"
    )
    return tmp_path


def message_of(*args, **kwargs):
    with pytest.raises(ConfigError) as caught:
        build_config(*args, **kwargs)
    return str(caught.value)


def test_compose_override_and_check(folder):
    cfg = build_config("maze_ppo", ["runner.max_steps=3", "size=large"], folder)
    checked = validate_cfg(cfg)
    assert checked.actor.optim.lr == 1e-3
    assert checked.runner.max_steps == 3
    assert checked.env.train.total_num_envs == 32
    assert validate_cfg(build_config(str(folder / "maze_ppo.yaml"))).runner.max_steps == 10


def test_an_override_may_set_any_key_of_the_schema(folder):
    cfg = build_config("maze_ppo", ["runner.deterministic=true", "~env.eval"], folder)
    checked = validate_cfg(cfg)
    assert checked.runner.deterministic is True
    assert checked.env.eval is None
    with pytest.raises(ConfigError, match="did you mean 'deterministic'"):
        validate_cfg(build_config("maze_ppo", ["runner.determinstic=true"], folder))


def test_a_config_of_ones_own_stands_on_a_recipe_and_on_parts_of_others(folder):
    (folder / "mine.yaml").write_text(
        "defaults: [metaworld_ppo_mlp, model/cnn, _self_]\nrunner: {max_epochs: 7}\n"
    )
    cfg = build_config("mine", ["runner.seed=3"], folder)
    assert cfg.env.train.task == "button-press-v3" and cfg.actor.model.model_type == "cnn_policy"
    assert (cfg.runner.max_epochs, cfg.runner.seed) == (7, 3)


def test_names_in_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert build_config("base").runner.task_type == "embodied"
    (folder / "examples" / "maze" / "config").mkdir(parents=True)
    (folder / "base.yaml").rename(folder / "examples" / "maze" / "config" / "other.yaml")
    assert build_config("other").runner.task_type == "embodied"
    assert config_names(folder) == ["maze_ppo"]


def test_a_missing_config_names_the_near_ones(folder):
    message = message_of("maze_pop", config_path=folder)
    assert "config 'maze_pop'" in message
    assert f"there is no maze_pop.yaml in {folder}" in message
    assert "configs there: base, maze_ppo" in message
    assert "did you mean 'maze_ppo'?" in message
    assert "there is no folder" in message_of("x", config_path=folder / "nowhere")


def test_a_missing_group_lists_the_options(folder):
    message = message_of("maze_ppo", ["size=huge"], folder)
    assert 'override = "size=huge"\n  there is no part size/huge' in message
    assert "parts of size: large, small" in message
    assert "search path" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("runner:\n  task_type: [embodied\n", "line 3, column 1"),
        ("runner:\n\ttask_type: embodied\n", "line 2, column 1"),
        ("runner: {}\nrunner: {}\n", "found duplicate key runner"),
    ],
)
def test_broken_yaml_names_file_and_line(folder, text, expected):
    (folder / "broken.yaml").write_text(text)
    message = message_of("broken", config_path=folder)
    assert "is not valid YAML" in message
    assert str(folder / "broken.yaml") in message
    assert expected in message


def test_a_broken_override(folder):
    message = message_of("maze_ppo", ["runner.max_steps=[1", "seed", "size=small"], folder)
    assert message.startswith("The config has 2 problems:")
    assert 'override = "runner.max_steps=[1"' in message
    assert 'override = "seed"' in message
    assert "an override looks like runner.max_steps=10" in message
    assert "http" not in message


def test_inside_a_hydra_program(folder, run_python):
    program = folder / "main.py"
    program.write_text(
        "import hydra\n"
        "from hydra.core.global_hydra import GlobalHydra\n"
        "from hydra.core.hydra_config import HydraConfig\n"
        "from rlinf.config import build_config, validate_cfg\n"
        "@hydra.main(version_base='1.1', config_path='.', config_name='maze_ppo')\n"
        "def main(cfg):\n"
        "    before = GlobalHydra.instance().hydra\n"
        f"    other = build_config('base', ['runner.max_steps=2'], {str(folder)!r})\n"
        "    assert GlobalHydra.instance().hydra is before is not None\n"
        "    assert HydraConfig.get().job.config_name == 'maze_ppo'\n"
        "    print(validate_cfg(cfg).actor.optim.lr, validate_cfg(other).runner.max_steps)\n"
        "main()\n"
    )
    assert run_python(str(program), "hydra.run.dir=.").split() == ["0.001", "2"]


def test_hydra_is_left_as_it_was(folder):
    from hydra.core.global_hydra import GlobalHydra

    for _ in range(2):
        build_config("base", config_path=folder)
        message_of("maze_ppo", ["size=huge"], folder)
        assert not GlobalHydra.instance().is_initialized()


def test_threads_compose_at_the_same_time(folder):
    with ThreadPoolExecutor(8) as pool:
        overrides = [[f"runner.max_steps={step}"] for step in range(1, 33)]
        found = list(pool.map(lambda own: build_config("maze_ppo", own, folder), overrides))
    assert [cfg.runner.max_steps for cfg in found] == list(range(1, 33))
