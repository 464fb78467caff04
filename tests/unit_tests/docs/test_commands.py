"""Commands of the pages about vision-language-action policies exist, and their keys are right.

Nothing is run: a command is parsed, and the config that it names is composed and checked.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf.cli import build_parser, recipes
from rlinf.config import build_config, plugins
from tests.unit_tests.docs.test_pages import DOCS, ROOT, blocks

PAGES = ("vla_quickstart", "bring_your_own_vla", "vla")
ON_CONFIGS = ("train", "collect", "check", "eval")
MODULE = {"bring_your_own_vla": "llava_policy"}
"""The file that a page shows, which its commands need."""


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of each command of a page, without comments and variables."""
    for block in blocks(DOCS / f"{page}.md", "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                yield words


def experiments(page: str) -> dict[str, tuple[str, list[str]]]:
    """Return the trainings of a page, by the folder in `logs` that each writes to."""
    found = {}
    for words in commands(page):
        if words[:2] == ["rlinf", "train"]:
            name, overrides = words[2], words[3:]
            own = [each for each in overrides if each.startswith("runner.logger.experiment_name=")]
            found[own[0].partition("=")[2] if own else name] = name, overrides
    return found


@pytest.fixture
def own_module(page: str, monkeypatch, tmp_path, fresh_registries) -> Iterator[None]:
    if page not in MODULE:
        yield
        return
    pytest.importorskip("transformers")
    file = tmp_path / f"{MODULE[page]}.py"
    file.write_text(blocks(DOCS / f"{page}.md", "python")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_extensions", set(plugins._extensions))
    monkeypatch.setattr(plugins, "_config_extensions", dict(plugins._config_extensions))
    monkeypatch.setenv(plugins.EXT_VARIABLE, MODULE[page])
    yield
    sys.modules.pop(MODULE[page], None)


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_right(page: str, own_module: None, monkeypatch, tmp_path: Path) -> None:
    parser, known = build_parser(), experiments(page)
    monkeypatch.chdir(tmp_path)
    for name in known:
        (tmp_path / "logs" / name).mkdir(parents=True)
    text = " ".join(blocks(DOCS / f"{page}.md", "bash"))
    assert (f"RLINF_EXT_MODULE={MODULE.get(page)}" in text) == (page in MODULE)
    checked, loaded = set(), set()
    for words in commands(page):
        if words[0] == "rlinf":
            args = parser.parse_args(words[1:])
            if words[1] in ON_CONFIGS:
                name, overrides = args.config, args.overrides
                if name.startswith("logs/"):
                    assert words[1] == "eval", words
                    name, own = known[name.removeprefix("logs/")]
                    overrides = [*own, *overrides, "runner.only_eval=true"]
                if (name, *overrides) not in loaded:
                    recipes.load(name, overrides)
                    loaded.add((name, *overrides))
                if any(each.startswith("actor.model.model_path=") for each in overrides):
                    # A folder says what the model is; keys that do so, too, are refused.
                    model = build_config(name, overrides).actor.model
                    assert not model.get("hf_config") and not model.get("words"), words
            for place in words:
                if place.startswith("logs/"):
                    assert place.removeprefix("logs/") in known, words
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]), words
        else:
            assert words[0] in ("source", "export"), words
        checked.add(" ".join(words[:2]))
    assert {"rlinf collect", "rlinf train", "rlinf eval", "rlinf export"} <= checked


@pytest.mark.parametrize(
    ("page", "task"), [("vla_quickstart", "embodied"), ("bring_your_own_vla", "sft")]
)
def test_the_recipe_of_a_page_is_valid(
    page: str, task: str, own_module: None, tmp_path: Path
) -> None:
    (recipe,) = blocks(DOCS / f"{page}.md", r"\{code-block\} yaml")
    (tmp_path / "large.yaml").write_text(recipe)
    assert recipes.load(str(tmp_path / "large.yaml")).task_type == task
