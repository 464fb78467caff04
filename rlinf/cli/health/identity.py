"""Is the rlinf that is installed this package, and the only one?

The public index has another package of the same name. Python may also see two copies of this one:
what pip says of the one is then not true of the files of the other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import rlinf
from rlinf.cli.health.finding import Finding
from rlinf.utils.extras import install_hint

NAME = "rlinf"

MARK = PurePosixPath("cli/health/finding.py")
"""A file that this package has and the other one does not."""


@dataclass(frozen=True)
class Installed:
    """A distribution called rlinf.

    Attributes:
        version: as pip shows it.
        folder: folder of its package.
        site: folder that pip installed it into.
        is_ours: whether it is this package, of whatever version.
        requires: what it requires, as in its metadata.
    """

    version: str
    folder: Path
    site: Path
    is_ours: bool
    requires: tuple[str, ...] = ()


def installed_copies(path: Sequence[str] | None = None) -> list[Installed]:
    """Return the distributions called rlinf, those that Python finds first coming first.

    Args:
        path: where to look; `sys.path` by default.
    """
    found = metadata.distributions(name=NAME, path=list(sys.path if path is None else path))
    return list(dict.fromkeys(_describe(distribution) for distribution in found))


def own_requirements() -> tuple[str, ...] | None:
    """Return what this package requires, with its extras; None if it is not installed.

    A copy of this version that is installed elsewhere requires the same.
    """
    package = Path(rlinf.__file__).resolve().parent
    ours = [copy for copy in installed_copies() if copy.is_ours]
    same = [copy for copy in ours if _is(copy, package) or copy.version == rlinf.__version__]
    return min(same, key=lambda copy: copy.folder != package).requires if same else None


def check_identity(
    package: Path | None = None, version: str = rlinf.__version__, path: Sequence[str] | None = None
) -> list[Finding]:
    """Find another package called rlinf, and further copies of this one.

    Args:
        package: folder of the package that was imported; that of this process by default.
        version: its version.
        path: where Python looks for packages; `sys.path` by default.

    Returns:
        Findings; none if no rlinf is installed, which is for the check of packages to say.
    """
    package = Path(rlinf.__file__).parent if package is None else package
    package, path = package.resolve(), list(sys.path if path is None else path)
    copies = installed_copies(path)
    others = [copy for copy in copies if not _is(copy, package)]
    own = next((copy for copy in copies if _is(copy, package)), None)
    findings = [_other(copy, package, version, own is not None) for copy in others]
    known = {package, *(copy.folder for copy in copies)}
    findings += [_shadow(folder, package) for folder in _on_path(path) if folder not in known]
    if own is not None and own.version != version:
        said = f"is {version}, but was installed as {own.version}: its extras may be others now"
        findings.append(Finding(NAME, "warn", f"{package} {said}", install_hint()))
    if own is not None and not findings:
        findings.append(Finding(NAME, "ok", f"{version} ({package})"))
    return findings


def _is(copy: Installed, package: Path) -> bool:
    return copy.is_ours and copy.folder == package


def _other(copy: Installed, package: Path, version: str, is_installed: bool) -> Finding:
    here = f"this one is {version}, in {package}"
    if copy.is_ours and not is_installed:
        said = f"{copy.version} is installed, in {copy.folder}, but not used; {here}"
        fix = f"take {package.parent} off PYTHONPATH, or install this one: {install_hint()}"
        return Finding(NAME, "warn", said, fix)
    if copy.is_ours:
        said = f"installed twice: {copy.version} in {copy.folder}; {here}"
        return Finding(NAME, "warn", said, _removal(copy.site))
    said = f"another package called rlinf, {copy.version} in {copy.folder}, is installed; {here}"
    if copy.folder == package:
        said += ", and the files of both are mixed"
    return Finding(NAME, "fail", said, _removal(copy.site))


def _shadow(folder: Path, package: Path) -> Finding:
    kind = "another copy of rlinf" if (folder / MARK).is_file() else "another package called rlinf"
    said = f"{kind} is on sys.path: {folder}; workers may import it instead of {package}"
    return Finding(NAME, "warn", said, _removal(folder.parent))


def _removal(site: Path) -> str:
    """Return how to have only this package."""
    if not site.is_relative_to(Path(sys.prefix).resolve()):
        return f"take {site} off PYTHONPATH, or use a virtual environment that does not see it"
    return f"pip uninstall -y {NAME}, again until none is left; then {install_hint()}"


def _on_path(path: Sequence[str]) -> list[Path]:
    folders = [Path(entry or ".").resolve() / NAME for entry in path]
    return [folder for folder in dict.fromkeys(folders) if (folder / "__init__.py").is_file()]


def _describe(distribution: metadata.Distribution) -> Installed:
    site = Path(str(distribution.locate_file(""))).resolve()
    recorded = json.loads(distribution.read_text("direct_url.json") or "{}")
    if recorded.get("dir_info", {}).get("editable"):
        folder = Path(unquote(urlsplit(recorded["url"]).path)) / NAME
        is_ours = (folder / MARK).is_file()
    else:
        folder = site / NAME
        # Files of two packages may lie in one folder; each distribution knows its own.
        listed = {PurePosixPath(file) for file in distribution.files or ()}
        is_ours = NAME / MARK in listed if listed else (folder / MARK).is_file()
    requires = tuple(distribution.requires or ())
    return Installed(distribution.version, folder.resolve(), site, is_ours, requires)
