"""Hints fit how the package is installed, and nobody is sent to another package of its name."""

from __future__ import annotations

import re
from pathlib import Path

from rlinf import __version__
from rlinf.utils import extras

ROOT = Path(__file__).resolve().parents[3]


def test_in_a_clone_the_clone_is_installed():
    assert extras.install_hint("embodied") == f"pip install -e '{ROOT}[embodied]'"


def test_an_installed_package_is_installed_from_its_wheel(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "rlinf" / "utils" / "extras.py"))
    assert f"rlinf-{__version__}-py3-none-any.whl[reasoning]" in extras.install_hint("reasoning")


def test_no_text_says_to_install_the_other_package():
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("rlinf/**/*.py")]
    found = [path for path in texts if re.search(r"pip install '?rlinf\b(?!-)", path.read_text())]
    assert not found
