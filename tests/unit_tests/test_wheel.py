"""The package works where nothing of the source tree is: recipes and scripts come with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.cli import new

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

TEMPLATE = {str(path.relative_to(new.TEMPLATE)) for path in new.template_files()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the installed package, and nothing else."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    leave_out = shutil.ignore_patterns("__pycache__")
    for name in ("rlinf", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=leave_out)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    # What it depends on is here; nothing is fetched.
    here = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*PIP, "wheel", *here, "-w", source / "dist", source], check=True)
    (wheel,) = (source / "dist").glob("rlinf-*.whl")
    subprocess.run([*PIP, "install", "--no-deps", "--target", target, wheel], check=True)
    return target


def rlinf(installed: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rlinf.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_package_has_its_recipes_and_scripts(installed, tmp_path):
    listed = rlinf(installed, tmp_path, "train", "--list")
    for recipe in ("metaworld_ppo_mlp", "arithmetic_grpo", "worker_groups"):
        assert f"  {recipe} " in listed
    command = rlinf(installed, tmp_path, "train", "metaworld_ppo_mlp", "--dry-run")
    assert str(installed / "rlinf/examples/embodiment/train_embodied_agent.py") in command
    assert "valid" in rlinf(installed, tmp_path, "check", "arithmetic_grpo")


def test_a_recipe_of_the_current_folder_wins(installed, tmp_path):
    text = "defaults: [gymnasium_ppo_mlp, _self_]\nrunner: {seed: 7}\n"
    (tmp_path / "metaworld_ppo_mlp.yaml").write_text(text)
    command = rlinf(installed, tmp_path, "train", "metaworld_ppo_mlp", "--dry-run")
    assert f"--config-path {tmp_path}" in command


def test_an_installed_package_makes_projects_and_completes(installed, tmp_path):
    rlinf(installed, tmp_path, "new", "arm")
    made = {str(path.relative_to(tmp_path)) for path in (tmp_path / "arm").rglob("*")}
    assert {f"arm/{file.replace('my_project', 'arm')}" for file in TEMPLATE} <= made
    assert "arm: valid" in rlinf(installed, tmp_path / "arm", "check", "arm", "--no-memory")
    for shell in ("bash", "zsh", "fish"):
        assert "__complete" in rlinf(installed, tmp_path, "completion", shell)
    # Nothing but the template: no caches of whoever built the package.
    found = installed / "rlinf" / "cli" / "templates" / "project"
    files = {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()}
    assert {file for file in files if "__pycache__" not in file} == TEMPLATE
