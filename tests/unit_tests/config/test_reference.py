"""The schema as JSON Schema and as a page of documentation."""

import json
from pathlib import Path

import jsonschema
import pytest
from pydantic import Field

from rlinf.config import (
    Int,
    Section,
    config_reference_markdown,
    json_schema,
    register_schema,
    to_plain,
    validate_cfg,
)
from rlinf.config.schema.root import SECTIONS, TASKS, root_model
from rlinf.config.walk import fields_below

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(json.dumps(json_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_json_schema_accepts_what_is_valid(validator, embodied, reasoning, workers):
    for config in (embodied, reasoning, workers):
        validator.validate(config)
        validator.validate(to_plain(validate_cfg(config)))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("actor", "micro_batch_sise", 3),
        ("actor", "micro_batch_size", "x"),
        ("algorithm", "gamma", 2),
        ("algorithm", "adv_type", "gea"),
        ("runner", "task_type", "embodid"),
        ("algorithm", "dynamic_sampling", True),
    ],
)
def test_json_schema_refuses_what_is_not(validator, embodied, section, key, value):
    embodied[section][key] = value
    assert not validator.is_valid(embodied)


def test_json_schema_knows_the_keys_of_plugins(validator, embodied):
    embodied["env"]["train"]["task"] = "reach-v3"
    assert validator.is_valid(embodied)
    embodied["env"]["train"]["id"] = "HalfCheetah-v5"
    assert not validator.is_valid(embodied)
    del embodied["env"]["train"]["task"]
    embodied["env"]["train"]["env_type"] = "gymnasium"
    assert validator.is_valid(embodied)


@pytest.mark.parametrize("task", TASKS)
def test_every_key_has_a_meaning(task):
    for path, field, _ in fields_below(root_model(task)):
        assert field.description, path
        assert field.description.endswith("."), path


def test_the_page_has_every_section_key_and_plugin():
    class Keys(Section):
        walls: Int = Field(3, description="Walls of the maze.")

    register_schema("env", "maze", Keys)
    page = config_reference_markdown()
    for section in SECTIONS:
        assert f"\n## {section}\n" in page
    assert (
        "| `runner.max_steps` | a whole number, at least -1 | `-1` | "
        "Global steps at which to stop; -1 is no limit. |" in page
    )
    assert "| `actor.model.model_type` | text | *required* |" in page
    assert "## data\n\nPrompts for training and validation, or " in page
    section = page.partition("## algorithm")[2].split("\n## ")[0]
    parts = section.split("With task type ")[2:]
    of_tasks = {part.partition(" only:")[0]: part for part in parts}
    shared = "`embodied`, `reasoning`, `reasoning_eval`, `agent`, `coding_online_rl`"
    assert [name for name, part in of_tasks.items() if "`algorithm.adv_type`" in part] == [shared]
    assert "`algorithm.reward_type`" in of_tasks["`embodied`"]
    language = "`reasoning`, `reasoning_eval`, `agent`, `coding_online_rl`"
    assert "`algorithm.n_minibatches`" in of_tasks[language]
    assert "`maze`:\n\n| key |" in page
    assert "| `walls` | a whole number | `3` | Walls of the maze. |" in page
    columns = {line.replace("\\|", "").count("|") for line in page.splitlines() if "|" in line}
    assert columns == {4, 5}


def test_the_script_writes_the_page(tmp_path, run_python):
    program = (
        "import runpy, pathlib\n"
        f"script = runpy.run_path({str(ROOT / 'docs' / 'gen_config_reference.py')!r})\n"
        f"print(script['generate'](pathlib.Path({str(tmp_path)!r}) / 'reference' / 'c.md'))\n"
    )
    run_python("-c", program)
    assert (tmp_path / "reference" / "c.md").read_text().startswith("# Configuration reference")
