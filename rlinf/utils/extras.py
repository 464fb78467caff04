"""How to install this package, its extras, and packages that it works with.

No hint names the package alone: the public index has another one of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rlinf import __version__


def clone_folder() -> Path | None:
    """Return the clone that this package runs from; None if it was installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def install_hint(*extras: str, packages: Iterable[str] = ()) -> str:
    """Return the one command that installs extras, for the way in which this package is installed.

    Args:
        *extras: as in `pyproject.toml`, such as `embodied`; none is the package itself, unless
            there are other packages.
        packages: other packages, as pip names them.
    """
    others = [f"'{name}'" for name in packages]
    if others and not extras:
        return f"pip install {' '.join(others)}"
    wanted = f"[{','.join(extras)}]" if extras else ""
    root = clone_folder()
    own = f"-e '{root}{wanted}'" if root is not None else f"'{_wheel()}{wanted}'"
    return " ".join(["pip install", own, *others])


def package_hint(requirement: str) -> str:
    """Return the command that installs another package in a version that fits this one.

    Args:
        requirement: as pip reads it, such as `torch<2.14,>=2.6`.
    """
    root = clone_folder()
    if root is not None and (root / "constraints.txt").is_file():
        return f"pip install -c '{root / 'constraints.txt'}' '{requirement}'"
    return f"pip install '{requirement}'"


def _wheel() -> str:
    """Return the wheel that this package was installed from, or what to put in its place."""
    name = f"rlinf-{__version__}-py3-none-any.whl"
    try:
        recorded = metadata.distribution("rlinf").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        recorded = None
    path = Path(unquote(urlsplit(json.loads(recorded or "{}").get("url", "")).path))
    return str(path) if path.name == name and path.is_file() else f"PATH/TO/{name}"
