"""What the documentation shows must work: Python runs, YAML is valid, tables are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from rlinf.cli.recipes import ENTRY_SCRIPTS
from rlinf.config import validate_cfg
from rlinf.config.alternatives import relaxed
from rlinf.config.schema.cluster import TimeoutsConfig
from rlinf.config.schema.root import TASKS, root_model
from rlinf.config.specialise import specialise
from rlinf.scheduler.channel.client import INLINE_BYTES
from rlinf.scheduler.channel.entries import Stats
from rlinf.scheduler.collective.mailbox import MAX_BYTES_ON_THE_WAY, MAX_ITEMS_ON_THE_WAY
from rlinf.scheduler.collective.payload import SHARED_BYTES
from tests.unit_tests.docs.programs import Programs

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md"))
NEEDED = {
    "datasets": ("pyarrow", "av", "PIL"),
    "bring_your_own_vla": ("transformers",),
    "vla_quickstart": ("pyarrow", "metaworld"),
}
"""Packages of extras that the Python of a page needs."""
BUILT = ("reference/", "images/curves/")
"""Where files are that come to be when the documentation is built."""


def blocks(page: Path, language: str) -> list[str]:
    """Returns the fenced blocks of a language; `py` marks fragments, which are not run."""
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def cells(page: str, heading: str) -> list[list[str]]:
    """Returns the rows of the first table after a heading, without its head."""
    text = (DOCS / page).read_text(encoding="utf-8").split(heading, 1)[1]
    first = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert first, f"{page} has no table after {heading!r}"
    rows = first.group().splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def named(pages: list[Path], language: str) -> list[Path]:
    return [page for page in pages if blocks(page, language)]


@pytest.fixture(scope="module")
def programs(ray_address: str) -> Iterator[Programs]:
    programs = Programs({**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": ray_address})
    yield programs
    programs.close()


@pytest.mark.parametrize("page", named(PAGES, "python"), ids=lambda page: page.stem)
def test_python_of_a_page_runs(page: Path, programs: Programs, tmp_path: Path) -> None:
    for package in NEEDED.get(page.stem, ()):
        pytest.importorskip(package)
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks(page, "python")), encoding="utf-8")
    code, printed = programs.run(script)
    assert code == 0, printed


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, i) for page in PAGES for i in range(len(blocks(page, "yaml")))],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_yaml_of_a_page_is_valid(page: Path, number: int) -> None:
    config = yaml.safe_load(blocks(page, "yaml")[number])
    if config.get("runner", {}).get("task_type", "workers") != "workers":
        validate_cfg(config, accelerators_per_node=8)
        return
    # A fragment without a runner is part of a config of some task type.
    runner = {"runner": {"task_type": "workers"}}
    whole = {key: config[key] for key in config if key in ("runner", "cluster", "example")}
    validate_cfg({**runner, **whole}, accelerators_per_node=8)
    if whole != config:
        assert any(not complaints(task, config) for task in TASKS), [
            complaints(task, config) for task in TASKS
        ]


def complaints(task: str, fragment: dict[str, Any]) -> list[Any]:
    """Returns what is wrong with the keys of a fragment in a config of a task type."""
    problems: list[Any] = []
    model = relaxed(specialise(root_model(task), fragment, problems))
    try:
        model.model_validate(fragment)
    except ValidationError as error:
        problems += error.errors()
    return problems


def test_pages_have_examples_that_run() -> None:
    pages = {"placement", "workers", "communication", "configuration"}
    assert pages <= {p.stem for p in named(PAGES, "python")}


@pytest.mark.parametrize("page", ["failures.md", "communication.md"])
def test_the_table_of_deadlines_is_true(page: str) -> None:
    documented = {row[0].strip("`"): row[1] for row in cells(page, "## Deadlines")}
    for name, default in documented.items():
        actual = TimeoutsConfig.model_fields[name].default
        assert default == ("none" if actual is None else f"{actual:g}"), name


def test_the_table_of_channel_counters_is_true() -> None:
    documented = " ".join(row[0] for row in cells("communication.md", "## Counters"))
    assert re.findall(r"`(\w+)`", documented) == [field.name for field in fields(Stats)]


def test_the_sizes_of_communication_are_true() -> None:
    text = (DOCS / "communication.md").read_text(encoding="utf-8")
    assert f"below {SHARED_BYTES >> 10} KiB" in text
    assert f"item up to {INLINE_BYTES >> 10} KiB" in text
    assert f"{MAX_ITEMS_ON_THE_WAY} messages or {MAX_BYTES_ON_THE_WAY >> 20} MiB" in text


def test_the_table_of_entry_scripts_is_true() -> None:
    documented = {}
    for tasks, script in cells("cli.md", "follows from its `runner.task_type`"):
        for task in re.findall(r"`(\w+)`", tasks):
            documented[task] = script.strip("`")
    assert documented == ENTRY_SCRIPTS


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    for link in links:
        if not link.startswith(("http", *BUILT)):
            assert (page.parent / link).exists(), link


@pytest.mark.slow
def test_the_documentation_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "html" / "reference" / "configuration.html").read_text()
    assert "component_placement" in reference
