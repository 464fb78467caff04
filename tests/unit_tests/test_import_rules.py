"""Holds the import rules: imports point down the list of layers, and a few stricter ones."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS = [
    "cli",
    "runners",
    "workers",
    "hybrid_engines",
    "algorithms",
    "data",
    "envs",
    "models",
    "agents",
    "scheduler",
    "config",
    "utils",
    "testbed",
]
"""From top to bottom: a layer imports itself and those below it."""

FORBIDDEN = {
    "algorithms": ("ray", "rlinf.scheduler"),
    "envs": ("rlinf.models",),
    "models": ("rlinf.envs",),
}
"""What a layer must not import although the order, or the lack of one, would allow it."""

SCHEDULER = [
    "cluster",
    "inline",
    "placement",
    "worker",
    "topology",
    "channel",
    "collective",
    "debug",
    "failure",
    "registry",
    "net",
    "hardware",
    "trace",
]
"""Folders of the scheduler, likewise; its files outside of folders may be imported by all."""

EXCEPTIONS = {"rlinf.utils.placement"}
"""Looks its names up in the scheduler, at first use, since users know them under that path."""


def imports_of(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yields line and full name of everything a module imports, inside functions too."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_module(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Returns what is wrong with the imports of one module of rlinf, in words."""
    layer = _layer(module)
    if module in EXCEPTIONS:
        return []
    found = []
    for line, name in imports_of(source, module, is_package):
        if any(_inside(name, banned) for banned in FORBIDDEN.get(layer or "", ())):
            found.append(f"{module}:{line} imports {name}: {layer} must not")
        elif _inside(name, "rlinf"):
            target = _layer(name)
            if layer is None and target is not None:
                found.append(f"{module}:{line} imports {name}: the package root imports nothing")
            elif None not in (layer, target) and LAYERS.index(target) < LAYERS.index(layer):
                found.append(f"{module}:{line} imports {name}: {target} is above {layer}")
    return found


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the sets of modules that import one another, directly or by way of others."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str, arrows: dict[str, set[str]], found: list[str]) -> None:
        seen.add(name)
        for target in sorted(arrows.get(name, ())):
            if target not in seen:
                visit(target, arrows, found)
        found.append(name)

    for name in sorted(graph):
        if name not in seen:
            visit(name, graph, order)
    backwards: dict[str, set[str]] = {}
    for name, targets in graph.items():
        for target in targets:
            backwards.setdefault(target, set()).add(name)
    seen.clear()
    circles = []
    for name in reversed(order):
        if name not in seen:
            members: list[str] = []
            visit(name, backwards, members)
            if len(members) > 1:
                circles.append(sorted(members))
    return circles


@functools.cache
def _graph() -> dict[str, set[str]]:
    """Which modules each module imports, inside functions and for types too."""
    modules = dict(_modules())
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = imports_of(path.read_text(encoding="utf-8"), name, path.name == "__init__.py")
        targets = {full if full in modules else full.rpartition(".")[0] for _, full in found}
        graph[name] = {target for target in targets if target in modules and target != name}
    return graph


def _is_import_module(function: ast.expr) -> bool:
    name = getattr(function, "attr", None) or getattr(function, "id", None)
    return name == "import_module"


def _inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _layer(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else None


def _modules() -> list[tuple[str, Path]]:
    paths = sorted((ROOT / "rlinf").rglob("*.py"))
    named = [(".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in paths]
    return [(name.removesuffix(".__init__"), path) for name, path in named]


def test_the_package_keeps_the_rules() -> None:
    found = [
        violation
        for name, path in _modules()
        for violation in violations(
            path.read_text(encoding="utf-8"), name, path.name == "__init__.py"
        )
    ]
    assert not found, "\n".join(found)


def test_no_modules_import_one_another() -> None:
    assert find_circles(_graph()) == []


def test_circles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}
    assert sorted(find_circles(arrows)) == [["a", "b", "c"], ["e", "f"]]
    assert find_circles({"a": {"b", "c"}, "b": {"c"}}) == []


def test_folders_of_the_scheduler_point_one_way() -> None:
    folders = {path.parent.name for path in (ROOT / "rlinf" / "scheduler").glob("*/__init__.py")}
    assert folders == set(SCHEDULER)
    found = []
    for name, targets in _graph().items():
        own = name.split(".")[2:3]
        for target in targets:
            other = target.split(".")[2:3]
            known = {*own, *other} <= set(SCHEDULER) and own and other
            inside = _inside(name, "rlinf.scheduler") and _inside(target, "rlinf.scheduler")
            if inside and known and SCHEDULER.index(other[0]) < SCHEDULER.index(own[0]):
                found.append(f"{name} imports {target}: {other[0]} is above {own[0]}")
    assert not found, "\n".join(found)


def test_every_folder_of_the_package_is_a_layer() -> None:
    folders = {path.parent.name for path in (ROOT / "rlinf").glob("*/__init__.py")}
    assert folders <= set(LAYERS)


@pytest.mark.parametrize(
    ("module", "source", "named"),
    [
        ("rlinf.scheduler.worker", "from rlinf.workers import actor", "rlinf.workers"),
        ("rlinf.scheduler.worker", "def f():\n    import rlinf.runners.base", "rlinf.runners"),
        ("rlinf.config.load", "from ..scheduler import Worker", "rlinf.scheduler"),
        ("rlinf.utils.logging", "from rlinf import config", "rlinf.config"),
        ("rlinf.utils.lazy", "importlib.import_module('rlinf.scheduler')", "rlinf.scheduler"),
        ("rlinf.algorithms.losses", "import ray", "ray"),
        ("rlinf.algorithms.losses", "from rlinf.scheduler import Worker", "rlinf.scheduler"),
        ("rlinf.algorithms.losses", "import rlinf.hybrid_engines.fsdp", "rlinf.hybrid_engines"),
        ("rlinf.envs.vector", "from rlinf.models import base", "rlinf.models"),
        ("rlinf.models.base", "from rlinf.envs import vector", "rlinf.envs"),
        ("rlinf.runners.embodied", "from rlinf.cli import main", "rlinf.cli"),
        ("rlinf", "from rlinf.scheduler import Worker", "rlinf.scheduler"),
    ],
)
def test_a_violation_is_found(module: str, source: str, named: str) -> None:
    (message,) = violations(source, module)
    assert named in message and module in message


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rlinf.runners.embodied", "from rlinf.workers import actor\nimport ray"),
        ("rlinf.scheduler.worker", "from . import address\nfrom rlinf.config import build_config"),
        ("rlinf.algorithms.losses", "import torch, rlinf.utils.metrics\nimport raylib"),
        ("rlinf.workers.env", "from rlinf.envs import vector\nfrom rlinf.models import base"),
    ],
)
def test_what_points_down_is_allowed(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_the_named_exception_is_still_needed() -> None:
    path = ROOT / "rlinf" / "utils" / "placement.py"
    names = [name for _, name in imports_of(path.read_text(), "rlinf.utils.placement", False)]
    assert any(_inside(name, "rlinf.scheduler") for name in names)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import rlinf.scheduler", ["torch"]),
        ("from rlinf.scheduler import Cluster, Worker, HybridComponentPlacement", ["torch"]),
        ("import rlinf.cli", ["torch", "ray", "hydra", "omegaconf", "pydantic", "numpy"]),
    ],
)
def test_an_import_stays_light(statement: str, absent: list[str]) -> None:
    program = f"{statement}\nimport sys\nprint([m for m in {absent} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
