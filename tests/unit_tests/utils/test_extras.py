"""Hints fit how the package is installed, and nobody is sent to another package of its name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

from rlinf import __version__
from rlinf.utils import extras

ROOT = Path(__file__).resolve().parents[3]


OTHER = r"pip install '?rlinf\b(?!-)|[\"'`]rlinf\["
"""Commands, or parts of them, that pip takes for the other package."""


def test_in_a_clone_the_clone_is_installed():
    assert extras.install_hint("embodied") == f"pip install -e '{ROOT}[embodied]'"


def test_an_installed_package_is_installed_from_its_wheel(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "rlinf" / "utils" / "extras.py"))
    assert f"rlinf-{__version__}-py3-none-any.whl[reasoning]" in extras.install_hint("reasoning")


def test_the_wheel_is_named_if_it_is_still_there(monkeypatch, tmp_path):
    wheel = tmp_path / f"rlinf-{__version__}-py3-none-any.whl"
    wheel.touch()
    recorded = json.dumps({"url": wheel.as_uri(), "archive_info": {}})
    found = SimpleNamespace(read_text=lambda name: recorded)
    monkeypatch.setattr(extras.metadata, "distribution", lambda name: found)
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "rlinf" / "utils" / "extras.py"))
    assert extras.install_hint("embodied") == f"pip install '{wheel}[embodied]'"
    wheel.unlink()
    assert "PATH/TO/" in extras.install_hint("embodied")


def test_one_command_for_several():
    found = extras.install_hint("embodied", "tracking", packages=["vllm"])
    assert found == f"pip install -e '{ROOT}[embodied,tracking]' 'vllm'"
    assert extras.install_hint(packages=["vllm"]) == "pip install 'vllm'"
    assert extras.install_hint() == f"pip install -e '{ROOT}'"


def test_no_text_says_to_install_the_other_package():
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("rlinf/**/*.py")]
    found = [path for path in texts if re.search(OTHER, path.read_text())]
    assert not found
