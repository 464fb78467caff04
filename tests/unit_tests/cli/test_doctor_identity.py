"""`rlinf doctor` tells this package from the other one of its name, and from copies of itself."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from rlinf import __version__
from rlinf.cli import doctor
from rlinf.cli.health import Finding, identity, packages, processes, python_env
from rlinf.utils import extras

OURS = ("rlinf/__init__.py", f"rlinf/{identity.MARK}")
FOREIGN = ("rlinf/__init__.py", "rlinf/something_else.py")


def install(site: Path, files: tuple[str, ...], version: str = __version__) -> Path:
    """Lay out what pip makes of a wheel; return the folder of its package."""
    info = site / f"rlinf-{version}.dist-info"
    for name in files:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rlinf\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    return site / "rlinf"


def install_editable(site: Path, clone: Path, version: str = __version__) -> Path:
    """Lay out what `pip install -e` makes of a clone; return the folder of its package."""
    for name in OURS:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    install(site, (), version)
    info = site / f"rlinf-{version}.dist-info"
    recorded = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(recorded))
    return clone / "rlinf"


def check(package: Path, *path: Path) -> list[Finding]:
    return identity.check_identity(package, __version__, [str(entry) for entry in path])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip installs into."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    folder = tmp_path / "venv" / "site-packages"
    folder.mkdir(parents=True)
    return folder


def test_the_only_one_is_fine(site: Path) -> None:
    (finding,) = check(install(site, OURS), site)
    assert finding.status == "ok" and finding.found == f"{__version__} ({site / 'rlinf'})"


def test_an_editable_one_is_fine_also_inside_its_clone(site: Path, tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    package = install_editable(site, clone)
    (finding,) = check(package, clone, site)
    assert finding.status == "ok"


def test_files_of_ours_with_the_metadata_of_the_other(site: Path, tmp_path: Path) -> None:
    install(site, FOREIGN, "0.3.0")
    clone = tmp_path / "clone"
    package = clone / "rlinf"
    (package / identity.MARK).parent.mkdir(parents=True)
    (package / identity.MARK).touch()
    (package / "__init__.py").touch()
    (finding,) = check(package, clone, site)
    assert finding.status == "fail"
    assert "another package called rlinf, 0.3.0" in finding.found
    assert str(package) in finding.found
    assert finding.fix.startswith("pip uninstall -y rlinf") and "pip install -e" in finding.fix


def test_both_in_one_folder(site: Path) -> None:
    install(site, FOREIGN, "0.3.0")
    found = check(install(site, OURS), site)
    assert [finding.status for finding in found] == ["fail"]
    assert "0.3.0" in found[0].found and "files of both are mixed" in found[0].found


def test_two_copies_of_ours(site: Path, tmp_path: Path) -> None:
    install(site, OURS, "0.0.9")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (finding,) = check(install(other, OURS), other, site)
    assert finding.status == "warn" and "installed twice: 0.0.9" in finding.found


def test_a_clone_on_the_path_beside_an_installed_one(site: Path, tmp_path: Path) -> None:
    install(site, OURS)
    clone = tmp_path / "clone"
    for name in OURS:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    (finding,) = check(clone / "rlinf", clone, site)
    assert finding.status == "warn" and f"is installed, in {site / 'rlinf'}, but" in finding.found
    assert finding.fix.startswith(f"take {clone} off PYTHONPATH, or install this one: pip install")


def test_a_folder_on_the_path_that_nobody_installed(site: Path, tmp_path: Path) -> None:
    stray = tmp_path / "work" / "rlinf"
    stray.mkdir(parents=True)
    (stray / "__init__.py").touch()
    (finding,) = check(install(site, OURS), site, stray.parent)
    assert finding.status == "warn" and f"on sys.path: {stray}" in finding.found
    assert f"take {stray.parent} off PYTHONPATH" in finding.fix


def test_an_editable_one_of_an_older_version(site: Path, tmp_path: Path) -> None:
    package = install_editable(site, tmp_path / "clone", "0.0.9")
    (finding,) = check(package, site)
    assert finding.status == "warn" and "was installed as 0.0.9" in finding.found


def test_bounds_are_those_of_this_package(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "installed_copies", lambda: [])
    (finding,) = packages.check_packages()
    assert finding.status == "fail" and finding.fix == extras.install_hint()


def test_the_one_that_runs_is_known_and_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(item.startswith("torch") for item in identity.own_requirements() or ())
    foreign = Finding("rlinf", "fail", "another one")
    monkeypatch.setattr(identity, "check_identity", lambda: [foreign])
    monkeypatch.setattr(packages, "check_packages", lambda: [])
    assert foreign in itertools.islice(doctor.examine(Path("logs")), 5)


def test_hints_fit_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "rlinf" / "utils" / "extras.py"))
    wheel = f"rlinf-{__version__}-py3-none-any.whl"
    requires = ["rich>=13", "torch<2; extra == 'embodied'", "mujoco==3; extra == 'embodied'"]
    found = packages.check_packages(requires, {"torch": "2.1"}.get)
    fixes = {finding.name: finding.fix for finding in found}
    assert wheel in fixes["packages"] and f"{wheel}[embodied]" in fixes["extra embodied"]
    assert fixes["torch"] == "pip install 'torch<2'"
    assert wheel in python_env.check_python((3, 9, 0)).fix
    assert wheel in python_env.check_environment("/usr", "/usr", {}).fix

    def load(name: str) -> None:
        raise ImportError(name)

    (ray,) = processes.check_ray({}, load)
    assert ray.fix == "pip install 'ray[default]'"
