"""Overrides that Hydra refuses are explained: what was given, what there is, what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.config import ConfigError, build_config

RECIPE = "metaworld_ppo_mlp"
PARTS = "base/embodied, algo/ppo, env/metaworld, model/mlp"
CONFIGS = Path(__file__).parents[3] / "examples/embodiment/config"
PARTS_OF_ENV = (
    f"parts of env: {', '.join(sorted(file.stem for file in CONFIGS.glob('env/*.yaml')))}"
)


def said(*overrides: str, recipe: str = RECIPE, folder=None) -> str:
    with pytest.raises(ConfigError) as caught:
        build_config(recipe, list(overrides), folder)
    text = str(caught.value)
    for word in ("defaults list", "append", "Available options", "Could not", "multirun"):
        assert word not in text
    return text


@pytest.mark.parametrize("override", ["env=gymnasium", "env@here=gymnasium"])
def test_another_part_of_a_group(override):
    text = said(override)
    assert f'override = "{override}"' in text
    assert f"{RECIPE} is made of {PARTS}; an override cannot exchange one of them" in text
    assert PARTS_OF_ENV in text
    assert "recipes with env/gymnasium: gymnasium_ppo_mlp" in text
    assert "defaults: [base/embodied, algo/ppo, env/gymnasium, model/mlp, _self_]" in text


@pytest.mark.parametrize("override", ["env=gymnasum", "+env=gymnasum"])
def test_a_part_that_does_not_exist(override):
    text = said(override)
    assert "there is no part env/gymnasum" in text and "did you mean 'gymnasium'?" in text
    assert PARTS_OF_ENV in text


@pytest.mark.parametrize("override", ["base/x=y", "+foo/bar=baz", "foo/bar=baz", "~foo/bar"])
def test_a_group_that_does_not_exist(override):
    text = said(override)
    assert "there is no group of parts" in text
    parts = (
        "bc, crossq, dagger, dsrl, grpo, grpo_tokens, iql, nft, ppo, reward_model, rlpd, sac, "
        "sft, td3"
    )
    assert f"groups and their parts: algo: {parts}; base: embodied; env: " in text
    assert "a key is written with dots: runner.max_steps=10" in text


def test_a_part_in_the_place_of_a_group():
    assert "env/metaworld is a part, and not a group" in said("env/metaworld=gymnasium")


def test_a_part_cannot_be_left_out():
    assert "defaults: [base/embodied, algo/ppo, model/mlp, _self_]" in said("~env")


def test_parts_are_not_named_by_an_override():
    assert "the parts of a recipe are named in its file" in said("defaults=[algo/grpo]")


def test_a_key_that_is_not_there_cannot_be_deleted():
    assert f"nothing to delete: {RECIPE} does not set runner.nothing" in said("~runner.nothing")


def test_several_values():
    text = said("runner.seed=1,2")
    assert "names several values, but a run has one" in text and "[1,2]" in text


def test_all_wrong_ones_come_at_once_and_right_ones_are_not_blamed():
    text = said("env=foo", "runner.max_steps=3", "~runner.nothing")
    assert text.startswith("The config has 2 problems:") and "max_steps=3" not in text


def test_a_part_may_be_laid_over_the_others():
    assert build_config(RECIPE, ["+algo=grpo"]).algorithm.adv_type == "grpo"


def test_a_recipe_of_ones_own_knows_the_parts_that_come_with_the_package(tmp_path):
    (tmp_path / "mine.yaml").write_text(f"defaults: [{RECIPE}, _self_]\n")
    text = said("model=cn", recipe="mine", folder=tmp_path)
    assert "parts of model: cma, cnn, flow, mlp" in text and "did you mean 'cnn'?" in text


def test_groups_of_another_folder_are_left_to_hydra(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.yaml").write_text("runner: {task_type: workers}\n")
    (tmp_path / "more" / "sizes" / "own").mkdir(parents=True)
    (tmp_path / "more" / "sizes" / "own" / "big.yaml").write_text("example: {size: 3}\n")
    overrides = [f"hydra.searchpath=[file://{tmp_path / 'more'}]", "+sizes/own@_global_=big"]
    assert build_config("mine", overrides, tmp_path / "config").example.size == 3


ITEMS = "example:\n  items: {a: 1, b: 2}\n"


@pytest.fixture
def with_mapping(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(f"runner:\n  task_type: workers\n{ITEMS}")
    return tmp_path


@pytest.mark.parametrize("override", ["example.items={}", "++example.items={}"])
def test_an_empty_mapping_that_would_change_nothing(with_mapping, override):
    text = said(override, recipe="mine", folder=with_mapping)
    assert f'override = "{override}"' in text
    assert "changes nothing: mappings are merged, and example.items has a, b" in text
    assert "'~example.items.a' removes one of them, '~example.items' the key itself" in text
    assert "'~example.items' 'example.items={}' leaves it empty" in text


@pytest.mark.parametrize(
    ("overrides", "left"),
    [
        (["~example.items"], None),
        (["~example.items.a"], {"b": 2}),
        (["~example.items", "example.items={}"], {}),
        (["example.items={c: 3}"], {"a": 1, "b": 2, "c": 3}),
        (["example.others={}"], {"a": 1, "b": 2}),
        (["example.items=1", "example.items={}"], {}),
    ],
)
def test_mappings_are_merged_and_removed(with_mapping, overrides, left):
    cfg = build_config("mine", overrides, with_mapping)
    assert cfg.example.get("items") == left


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_an_empty_mapping_beside_the_choice_of_a_part(tmp_path, places):
    (tmp_path / "size").mkdir()
    big = "# @package _global_\nexample: {items: {a: 1}}\n"
    (tmp_path / "size" / "big.yaml").write_text(big)
    (tmp_path / "mine.yaml").write_text(
        "defaults: [_self_, {size: '???'}]\nrunner: {task_type: workers}\n"
        "example:\n  other: ${oc.env:NOT_SET_ANYWHERE}\n"
    )
    fine = ["example.other={}", "size=big"]
    assert build_config("mine", [fine[place] for place in places], tmp_path).example.other == {}
    wrong = ["example.items={}", "size=big"]
    text = said(*(wrong[place] for place in places), recipe="mine", folder=tmp_path)
    assert "changes nothing: mappings are merged, and example.items has a" in text


def test_an_empty_mapping_that_is_filled_behind(with_mapping):
    overrides = ["+example.more={}", "+example.more.c=3"]
    assert build_config("mine", overrides, with_mapping).example.more == {"c": 3}
