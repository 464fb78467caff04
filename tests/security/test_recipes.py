"""Recipes of a stranger that want to show the environment, or to run code."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from packaging.requirements import Requirement

from rlinf.cli import main
from rlinf.config.resolvers import ALLOW_VARIABLES, READABLE_VARIABLES, register_resolvers

SECRET = "hunter2-of-the-environment"
RECIPE = """
runner:
  task_type: embodied
  max_steps: ${{oc.env:{name}}}
  logger: {{experiment_name: "${{oc.env:{name}}}", project_name: "x${{oc.env:{name},y}}"}}
  ${{oc.env:{name}}}: 3
cluster: {{num_nodes: 1, component_placement: {{actor: "${{oc.env:{name}}}"}}}}
"""


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["words", "json"])
def test_checking_a_recipe_shows_no_secret(tmp_path, monkeypatch, capfd, options):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(name="WANDB_API_KEY"))
    assert main(["check", str(recipe), *options]) == 1
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    assert "WANDB_API_KEY is not among those that a config may read" in shown.out + shown.err


def test_overrides_show_no_secret_either(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("runner: {task_type: embodied}")
    assert main(["check", str(recipe), "runner.max_steps=${oc.env:WANDB_API_KEY}"]) == 1
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err


def test_variables_can_be_allowed(monkeypatch):
    register_resolvers()
    monkeypatch.setenv("MODEL_FOLDER", "/models")
    monkeypatch.setenv("RLINF_MODELS", "/ours")
    config = OmegaConf.create(
        {
            "a": "${oc.env:MODEL_FOLDER}",
            "b": "${oc.env:RLINF_MODELS}",
            "c": "${oc.env:NOT_SET_ANYWHERE,7}",
            "d": "${oc.env:NOT_SET_ANYWHERE,null}",
        }
    )
    assert (config.b, config.c, config.d) == ("/ours", "7", None)
    with pytest.raises(Exception, match="MODEL_FOLDER is not among"):
        _ = config.a
    monkeypatch.setenv(ALLOW_VARIABLES, "OTHER,MODEL_FOLDER")
    assert config.a == "/models"


@pytest.mark.parametrize(
    "target", ["os.system", "subprocess.Popen", "builtins.eval", "builtins.exec", "posix.system"]
)
def test_targets_that_run_code_are_refused(tmp_path, target):
    from hydra.utils import instantiate

    mark = tmp_path / "mark"
    with pytest.raises(Exception, match="block|refus|not allowed|denied"):
        instantiate({"_target_": target, "_args_": [f"touch {mark}"]})
    assert not mark.exists()


def test_no_hydra_is_allowed_that_was_not_tested():
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    line = next(line for line in project.read_text().splitlines() if "hydra-core" in line)
    specifier = Requirement(line.split('"')[1]).specifier
    assert "1.3.7" not in specifier and metadata.version("hydra-core") in specifier


def test_the_list_in_the_documentation_is_true():
    page = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
    section = page.read_text().split("## Environment variables")[1].split("## ")[0]
    assert all(f"`{name}`" in section for name in (*READABLE_VARIABLES, ALLOW_VARIABLES))
