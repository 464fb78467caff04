"""What a user sees when evaluations show something else than training does."""

from pathlib import Path

import pytest

from rlinf.config import ConfigError, build_config, register_schema, validate_cfg
from rlinf.envs import register_env
from rlinf.envs.config import VectorEnvKeys, with_base_keys
from tests.unit_tests.config.conftest import EMBODIED

CONFIGS = Path(__file__).parents[3] / "examples" / "embodiment" / "config"
RECIPES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
PICTURES = {"obs_mode": "state_image"}
PUSHES = {"kind": "maniskill", "id": "PushCube-v1", "max_episode_steps": 100}
PICKS = {"kind": "libero", "task_suite_name": "libero_spatial", "max_episode_steps": 100}
SWIMS = {"kind": "envpool", "id": "Swimmer-v4", "max_episode_steps": 100}
RUNS = {"kind": "gymnasium", "id": "Ant-v5"}


def envs(train=None, evaluation=None, kind="metaworld", **both):
    section = {"env_type": kind, "total_num_envs": 8, **both}
    eval_only = {"max_episode_steps": 40, "task": "reach-v3"} if kind == "metaworld" else {}
    return {
        "env.train": {**EMBODIED["env"]["train"], **section, **(train or {})},
        "env.eval": {**section, **eval_only, **(evaluation or {})},
    }


DIFFERENT = {
    "a camera": (envs({}, {"camera_name": "topview"}, **PICTURES), "camera_name", "topview"),
    "a second camera": (
        envs({"wrist_camera_name": "gripperPOV"}, {}, **PICTURES),
        "wrist_camera_name",
        "null",
        '"gripperPOV"',
    ),
    "further cameras": (
        envs({"extra_camera_names": ["corner"]}, {}, **PICTURES),
        "extra_camera_names",
        "[]",
        '["corner"]',
    ),
    "the size of pictures": (
        envs({"image_size": 48}, {"image_size": 64}, **PICTURES),
        "image_size",
        "64",
        "48",
    ),
    "how they are drawn": (envs({"fast_render": False}, {}, **PICTURES), "fast_render", "true"),
    "what is seen at all": (envs(PICTURES, {}), "obs_mode", "state", "state_image"),
    "entries of the state": (envs({"state_entries": [0, 1]}, {}), "state_entries", "null"),
    "the goal": (envs({"hide_goal": True}, {}), "hide_goal", "false", "true"),
    "a one-hot": (envs({"task_one_hot": True}, {}), "task_one_hot", "false", "true"),
    "a one-hot of several tasks": (
        envs({"tasks": ["reach-v3", "push-v3"]}, {}),
        "task_one_hot",
        "false",
        "true",
    ),
    "the order of a one-hot": (
        envs({"tasks": ["reach-v3", "push-v3"]}, {"tasks": ["push-v3", "reach-v3"]}),
        "tasks",
        '["push-v3", "reach-v3"]',
        '["reach-v3", "push-v3"]',
    ),
    "what an agent sees of the world": (
        envs({"view": 5}, {"view": 7}, "navigation", max_episode_steps=100),
        "view",
        "7",
        "5",
    ),
    "how long an action lasts": (
        envs({"kwargs": {"frame_skip": 2}}, {}, **RUNS),
        "kwargs.frame_skip",
        "null",
        "2",
    ),
    "what a state has": (
        envs({}, {"init_params": {"include_cfrc_ext_in_observation": False}}, **RUNS),
        "init_params.include_cfrc_ext_in_observation",
        "false",
        "null",
    ),
    "what actions move": (
        envs({"control_mode": "pd_joint_pos"}, {"control_mode": "pd_joint_delta_pos"}, **PUSHES),
        "control_mode",
        "pd_joint_delta_pos",
        "pd_joint_pos",
    ),
    "how long ManiSkill carries an action out": (
        envs({"init_params": {"sim_config": {"control_freq": 10}}}, {}, **PUSHES),
        "init_params.sim_config.control_freq",
        "null",
        "10",
    ),
    "how many frames an action lasts": (
        envs({"init_params": {"frame_skip": 2}}, {}, **SWIMS),
        "init_params.frame_skip",
        "null",
        "2",
    ),
    "the goal in EnvPool": (
        envs({"init_params": {"partially_observable": True}}, {}, **SWIMS),
        "init_params.partially_observable",
        "false",
        "true",
    ),
    "another robot": (
        envs({}, {"init_params": {"robot_uids": "fetch"}}, **PUSHES),
        "init_params.robot_uids",
        "fetch",
        "null",
    ),
    "pictures that arguments ask for": (
        envs({"image_size": 64}, {"image_size": 48}, init_params={"obs_mode": "rgb"}, **PUSHES),
        "image_size",
        "48",
        "64",
    ),
    "a sensor": (
        envs({}, {"init_params": {"sensor_configs": {"fov": 1}}}, obs_mode="rgb", **PUSHES),
        "init_params.sensor_configs",
        "{fov: 1}",
        "null",
    ),
    "a controller": (
        envs({"init_params": {"controller": "OSC_POSITION"}}, {}, **PICKS),
        "init_params.controller",
        "null",
        "OSC_POSITION",
    ),
    "the actions of a policy": (
        envs({"action_convention": {"units": "unit"}}, {}),
        "action_convention",
        'units: "env"',
        'units: "unit"',
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_both_keys_and_both_values_are_named(embodied, change, complaint, name):
    changes, key, *values = DIFFERENT[name]
    said = complaint(change(embodied, changes))
    assert f"env.eval.{key} = " in said and f"env.train.{key} has " in said
    assert all(value in said for value in values)
    assert f"set it and env.train.{key} alike" in said
    assert said.count("evaluations have") == 1


ALIKE = {
    "pictures of people": envs({}, {"camera_name": "topview", "image_size": 200}),
    "black pictures": envs({}, {"blank_images": True}, **PICTURES),
    "another instruction": envs(
        {"tasks": ["reach-v3", "push-v3"]},
        {"tasks": ["reach-v3", "push-v3"], "swap_instructions": True},
    ),
    "a goal that is not among the entries": envs({"hide_goal": True}, {}, state_entries=[0, 1]),
    "a state that is not seen": envs({"hide_goal": True, "task_one_hot": True}, obs_mode="image"),
    "another task without a one-hot": envs({"task": "push-v3"}, {}),
    "other goals and rewards": envs({"reward": "success"}, {"goals": "random", "seed": 7}),
    "a one-hot that is written out": envs(
        {"tasks": ["reach-v3", "push-v3"]},
        {"tasks": ["reach-v3", "push-v3"], "task_one_hot": True},
    ),
    "another env": envs(PICTURES, {"env_type": "gymnasium", "id": "Pendulum-v1", "task": ...}),
    "an instruction that leads elsewhere": envs(
        {}, {"swap_instructions": True}, "navigation", max_episode_steps=100
    ),
    "other rewards, ends, noise and worlds": envs(
        {"kwargs": {"reset_noise_scale": 0.5, "xml_file": "ant.xml"}},
        {"kwargs": {"ctrl_cost_weight": 0.0}, "init_params": {"terminate_when_unhealthy": False}},
        **RUNS,
    ),
    "arguments that are the same": envs(kwargs={"frame_skip": 2}, **RUNS),
    "a default of EnvPool that is written out": envs(
        {"init_params": {"partially_observable": False}}, {}, **SWIMS
    ),
    "an argument in the place of a key": envs(
        {"obs_mode": "rgb"}, {"init_params": {"obs_mode": "rgb"}}, **PUSHES
    ),
    "sensors that nobody sees": envs(
        {"image_size": 64}, {"init_params": {"sensor_configs": {"fov": 1}}}, **PUSHES
    ),
    "where physics run": envs({"reward_mode": "sparse"}, {"sim_backend": "cpu"}, **PUSHES),
    "when a simulator ends": envs({"init_params": {"horizon": 500}}, {}, **PICKS),
    "a convention that is written out": envs({"action_convention": {}}, {}),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_leaves_observations_alone_or_tests_them_may_differ(embodied, change, name):
    changes = ALIKE[name]
    for section in changes.values():
        for key in [key for key, value in section.items() if value is ...]:
            del section[key]
    assert validate_cfg(change(embodied, changes)).env.eval is not None


def test_other_mistakes_are_told_of_with_it(embodied, change, complaint):
    changes = envs({}, {"camera_name": "topview"}, **PICTURES)
    said = complaint(change(embodied, changes | {"runner.max_stepz": 3}))
    assert "max_stepz" in said and "env.eval.camera_name" in said
    changes = envs({}, {"camera_name": "toppview"}, **PICTURES)
    said = complaint(change(embodied, changes))
    assert "toppview" in said and "evaluations have" not in said
    said = complaint(change(embodied, envs({}, {}, "metawrold")))
    assert "metawrold" in said and "evaluations have" not in said


def test_an_evaluation_alone_may_show_something_else(embodied, change):
    changes = envs({}, {"camera_name": "topview"}, **PICTURES)
    with pytest.raises(ConfigError):
        validate_cfg(change(embodied, changes))
    assert validate_cfg(change(embodied, {"runner.only_eval": True})).env.eval is not None


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_show_alike(recipe):
    try:
        validate_cfg(build_config(recipe, [], CONFIGS))
    except ConfigError as error:
        assert "evaluations have" not in str(error)


def test_an_env_of_ones_own_says_what_is_seen(embodied, change, complaint):
    class Keys(VectorEnvKeys):
        zoom: int = 1

        @classmethod
        def observed(cls, section):
            return {"zoom": section["zoom"]}

    register_schema("env", "zoomed", with_base_keys(Keys), replaces=True)
    both = {"env_type": "zoomed", "total_num_envs": 8, "max_episode_steps": 40}
    said = complaint(change(embodied, {"env.train": {**both, "zoom": 2}, "env.eval": both}))
    assert "env.eval.zoom = 1" in said and "env.train.zoom has 2" in said


def test_an_env_without_keys_of_its_own_is_compared_by_usual_arguments(change, complaint, embodied):
    register_env("plain", lambda frame_skip=1, wind=0.0: None, replaces=True)
    both = {"env_type": "plain", "total_num_envs": 8, "max_episode_steps": 40}
    params = {"init_params": {"frame_skip": 4, "wind": 1.0}}
    said = complaint(change(embodied, {"env.train": {**both, **params}, "env.eval": both}))
    assert "env.eval.init_params.frame_skip = null" in said and "wind" not in said


def test_conventions_of_actions_may_differ_between_different_envs(change, embodied):
    changes = envs({"action_convention": {"units": "unit"}})
    changes["env.eval"] = {"env_type": "gymnasium", "id": "Ant-v5", "total_num_envs": 8}
    assert validate_cfg(change(embodied, changes)).env.eval.action_convention is None
