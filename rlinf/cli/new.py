"""`rlinf new`: make a project of one's own that trains as it is."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).parent / "templates" / "project"
"""The project that is copied: a whole one, whose name is `STANDIN`."""
STANDIN = "my_project"
TAKEN = ("config", "logs", "tests")
"""Folders of a project beside its package."""

_EXAMPLES = """\
examples:
  rlinf new my_robot && cd my_robot
  rlinf train my_robot
  rlinf new my_robot --folder ~/robots/arm    # the folder may have another name
"""


class WrongName(ValueError):
    """A name that no project can have; says what is allowed."""


def add_parser(commands: Any) -> None:
    """Add `new` to the sub-commands."""
    parser = commands.add_parser(
        "new",
        help="make a project of your own that trains as it is",
        description="Make a folder with a Python package of your own, a recipe, tests and a "
        "README: env, reward and policy of a small task, which train as they are. An existing "
        "folder is never touched.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", metavar="NAME", help="of package and recipe: small letters, digits and _"
    )
    parser.add_argument(
        "--folder", metavar="PATH", type=Path, help="folder to make; NAME here by default"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make a project and say what to do next.

    Returns:
        0; 1 if it cannot be written, 2 for a wrong name or a folder that is there already.
    """
    folder = (args.folder or Path(args.name)).expanduser()
    try:
        check_name(args.name)
        files = write_project(args.name, folder)
    except (WrongName, FileExistsError) as error:
        print(f"rlinf new: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        place = error.filename or folder
        print(
            f"rlinf new: {place} cannot be written: {error.strerror}; name a folder of yours with "
            "--folder",
            file=sys.stderr,
        )
        return 1
    print(f"made {folder}:")
    print("\n".join(f"  {file}" for file in files))
    print(f"\nnext: cd {folder} && rlinf train {args.name}")
    return 0


def check_name(name: str) -> None:
    """Refuse what cannot be the name of the project's package.

    Raises:
        WrongName: It is no such name, or Python or the project has it already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        meant = _similar(name)
        hint = f"; {meant!r} would do" if meant else ""
        raise WrongName(
            f"{name!r} cannot be the name of a Python package here: small letters, digits and _ "
            f"are allowed, and a letter comes first{hint}"
        )
    taken_by = _taken_by(name)
    if taken_by:
        raise WrongName(f"{name!r} is {taken_by}; choose another name, such as {'my_' + name!r}")


def _similar(name: str) -> str:
    """Return the allowed name that is nearest to a wrong one; "" if there is none."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    near = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_").lstrip("0123456789_")
    return near if near and not _taken_by(near) else ""


def _taken_by(name: str) -> str:
    """Return in words what has a name already; "" if nothing has."""
    if keyword.iskeyword(name):
        return "a word of the Python language"
    if name in TAKEN:
        return "the name of another folder of a project"
    if name in sys.stdlib_module_names or _is_installed(name):
        return "a Python module that is installed, and that would be imported instead"
    return ""


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    # Any folder is found as a package; one without __init__.py gives way to a real one.
    return spec is not None and spec.origin is not None


def write_project(name: str, folder: Path) -> list[str]:
    """Write a project into a folder that is made for it.

    Args:
        name: As `check_name` allows.
        folder: Where; must not be there yet.

    Returns:
        The files, relative to the folder.

    Raises:
        FileExistsError: There is something of that name already; it is left alone.
        OSError: The folder cannot be written.
    """
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(
            f"{folder} is there already, and nothing in it is touched; name another folder with "
            "--folder, or remove it"
        )
    folder.mkdir(parents=True)
    written = []
    for source in template_files():
        place = str(source.relative_to(TEMPLATE)).replace(STANDIN, name)
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8").replace(STANDIN, name)
        target.write_text(text, encoding="utf-8")
        written.append(place)
    return written


def template_files() -> list[Path]:
    """Return the files of the template, sorted; not what running it has left behind."""
    left = {"__pycache__", ".pytest_cache", ".ruff_cache", "logs"}
    files = [path for path in TEMPLATE.rglob("*") if path.is_file()]
    return sorted(path for path in files if not left & {*path.relative_to(TEMPLATE).parts})
