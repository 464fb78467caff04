"""Are the packages there, in versions that work together?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from rlinf.cli.health.finding import Finding
from rlinf.cli.health.identity import own_requirements
from rlinf.utils.extras import install_hint, package_hint

if TYPE_CHECKING:
    from packaging.requirements import Requirement

EXTRAS = {
    "embodied": "to train in simulators",
    "reasoning": "to train language models",
    "tracking": "to log to wandb or swanlab",
    "dev": "to run the tests",
    "docs": "to build the documentation",
}
"""Extras and what each is for."""


def installed_version(name: str) -> str | None:
    """Return the version of an installed package, None without it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_packages(
    requires: Iterable[str] | None = None,
    version_of: Callable[[str], str | None] = installed_version,
) -> list[Finding]:
    """Compare installed packages with the bounds in the metadata of rlinf.

    Args:
        requires: Requirements; those of the installed rlinf by default.
        version_of: Looks up an installed version.

    Returns:
        One finding for the core, one for each extra, and one for each package in a wrong version.
    """
    from packaging.requirements import Requirement

    if requires is None:
        requires = own_requirements()
        if requires is None:
            said = "this rlinf is not installed in this Python, so what it needs is not known"
            return [Finding("packages", "fail", said, install_hint())]
    wanted = [Requirement(text) for text in requires]
    core = [item for item in wanted if _applies(item, "")]
    findings = [_core(core, version_of)]
    for extra, purpose in EXTRAS.items():
        items = [item for item in wanted if _applies(item, extra) and item not in core]
        if items:
            findings.append(_extra(extra, purpose, items, version_of))
    findings += [finding for item in wanted for finding in _wrong_version(item, version_of)]
    return list(dict.fromkeys(findings))


def check_mujoco(version_of: Callable[[str], str | None] = installed_version) -> list[Finding]:
    """Find the MuJoCo that breaks MetaWorld although `pip check` is content."""
    version = version_of("mujoco")
    if version is None or version_of("metaworld") is None or int(version.split(".")[0]) < 4:
        return []
    return [
        Finding(
            "mujoco",
            "fail",
            f"{version} breaks metaworld, whatever `pip check` says",
            "pip install mujoco==3.3.0",
        )
    ]


def check_torch(torch: Any = None, gpus: int = 0) -> Finding:
    """Check that torch loads, and that it can use the GPUs of this machine.

    Args:
        torch: The module; imported by default.
        gpus: GPUs that the driver reports.
    """
    if torch is None:
        try:
            import torch
        except (ImportError, OSError) as error:
            fix = f"{package_hint('torch')}; add --force-reinstall if it is there, but damaged"
            return Finding("torch", "fail", f"cannot be imported: {error}", fix)
    version = torch.__version__
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        if gpus:
            return Finding(
                "torch",
                "fail",
                f"{version} is a CPU build, but this machine has {gpus} GPU(s)",
                "pip uninstall torch, then install the same version from an index of CUDA builds",
            )
        return Finding("torch", "ok", f"{version}, CPU build")
    toolkit = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    if torch.cuda.is_available():
        return Finding("torch", "ok", f"{version}, {toolkit}, sees {torch.cuda.device_count()}")
    if gpus:
        return Finding(
            "torch",
            "fail",
            f"{version}, {toolkit}, sees none of {gpus} GPU(s)",
            "update the driver to one that supports this CUDA, and look at CUDA_VISIBLE_DEVICES",
        )
    return Finding("torch", "ok", f"{version}, {toolkit}; no GPU here, runs on the CPU")


def _core(items: list[Requirement], version_of: Callable[[str], str | None]) -> Finding:
    missing = [item.name for item in items if version_of(item.name) is None]
    if missing:
        return Finding("packages", "fail", f"missing: {', '.join(missing)}", install_hint())
    return Finding("packages", "ok", f"all {len(items)} packages of the core are installed")


def _extra(
    extra: str, purpose: str, items: list[Requirement], version_of: Callable[[str], str | None]
) -> Finding:
    missing = [item.name for item in items if version_of(item.name) is None]
    name = f"extra {extra}"
    install = install_hint(extra)
    if not missing:
        return Finding(name, "ok", ", ".join(f"{i.name} {version_of(i.name)}" for i in items))
    if len(missing) == len(items):
        return Finding(name, "ok", f"not installed; needed {purpose}: {install}")
    return Finding(name, "warn", f"installed in part; missing: {', '.join(missing)}", install)


def _wrong_version(item: Requirement, version_of: Callable[[str], str | None]) -> Iterable[Finding]:
    if not any(_applies(item, extra) for extra in ("", *EXTRAS)):
        return
    version = version_of(item.name)
    if version is not None and not item.specifier.contains(version, prereleases=True):
        bounds = str(item.specifier)
        yield Finding(
            item.name,
            "fail",
            f"{version} is installed, rlinf needs {bounds}",
            package_hint(f"{item.name}{bounds}"),
        )


def _applies(item: Requirement, extra: str) -> bool:
    return item.marker is None or item.marker.evaluate({"extra": extra})
