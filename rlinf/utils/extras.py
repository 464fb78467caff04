"""How to install the extras of this package."""

from __future__ import annotations

from pathlib import Path

from rlinf import __version__


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, for the way in which this package is installed.

    It never names the package alone: the public index has another one of the same name.

    Args:
        extra: as in `pyproject.toml`, such as `embodied`.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():
        return f"pip install -e '{root}[{extra}]'"
    return f"pip install 'PATH/TO/rlinf-{__version__}-py3-none-any.whl[{extra}]'"
