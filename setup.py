"""Builds the package: what `examples` holds becomes data of it, so that recipes run anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "logs", "outputs", "multirun", "*.log")


class BuildWithExamples(build_py):
    """Copies `examples` into the package; an editable install uses them where they are."""

    def run(self) -> None:
        """Build."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "rlinf" / "examples"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(__file__).parent / "examples", target, ignore=_LEFT_OUT)


setup(cmdclass={"build_py": BuildWithExamples})
