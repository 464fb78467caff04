"""A key that does nothing is not in the schema: code of its type of task reads each of them."""

import ast
from functools import cache
from pathlib import Path

import pytest

import rlinf
from rlinf.config import SupportedModel
from rlinf.config.plugins import get_schema, known_names
from rlinf.config.schema.cluster import TimeoutsConfig
from rlinf.config.schema.root import TASKS, root_model
from rlinf.config.walk import fields_below, section_of
from rlinf.scheduler.cluster.settings import DEFAULT_TIMEOUTS

PACKAGE = Path(rlinf.__file__).parent
DECLARE = ("config/schema/", "config/builtin/", "config/checks", "config/old_keys", "/config.py")
"""Where keys are described and checked, which is not what they are for."""
_ONLINE = (
    "online",
    "workers/rollout/server_rollout",
    "workers/rollout/engine_link",
    "workers/rollout/live_batches",
)
NOT_OF = {
    "workers": ("workers/", "runners/", "hybrid_engines/", "models/", "envs/", "data/", "cli/"),
    "embodied": (
        "reasoning",
        "causal_lm",
        "generation",
        "workers/critic/",
        "workers/inference/",
        "workers/reward/reward_worker",
        "workers/reward/scorer",
        "algorithms/rewards/",
        "algorithms/dynamic_sampling",
        "data/datasets/",
        "data/prompt",
        "data/token",
        "config/arithmetic",
        "cli/",
        "agents/serving/",
        *_ONLINE,
    ),
    "reasoning": (
        "embodied",
        "embodiment",
        "envs/",
        "workers/env/",
        "workers/rollout/multi_step",
        "workers/rollout/episode",
        "runners/evaluation",
        "cli/",
    ),
}
NOT_OF["coding_online_rl"] = (*NOT_OF["reasoning"], "workers/rollout/agent_loop")
NOT_OF["agent"] = (*NOT_OF["reasoning"], *_ONLINE)
NOT_OF["reasoning"] = (*NOT_OF["agent"], "agents/", "workers/rollout/agent_loop")
NOT_OF["offline"] = (
    *NOT_OF["embodied"],
    "embodied_runner",
    "embodied_learner",
    "embodied_samples",
    "embodied_credit",
    "runners/agreement",
)
NOT_OF["sft"] = NOT_OF["reward_model"] = NOT_OF["offline"]
"""Parts of the package that have no share in a run of a task type."""
PASSED_ON = ("rollout.vllm.", "rollout.sglang.")
"""Sections that another library gets as they are."""
OF_COMMAND = {"collect.": "cli/collect*.py"}
"""Sections of a command, and the modules of it that read them."""
OF_PROGRAM = {
    "workers": ("example", "runner.logger", "runner.seed"),
    "coding_online_rl": ("rollout_server.simulated_users", "rollout_server.think_seconds"),
}
"""What the user's own program reads."""
KINDS = {
    "workers": (),
    "embodied": ("env", "model", "start_sampler"),
    "offline": ("env", "model"),
    "sft": ("env", "model"),
    "reward_model": ("model",),
    "reasoning": ("model", "reward", "dataset"),
    "agent": ("model", "reward", "dataset", "agent_loop"),
    "coding_online_rl": ("model", "reward", "dataset"),
}


@cache
def names_in(path):
    """What a module may read of a config: attributes, and names that stand as text or argument."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.arg):
            # Losses, advantages and rewards get the keys that they name.
            found.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            # Settings that are read field by field.
            found.add(node.target.id)
    return found


def names_read(task):
    found = set()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        if not any(part in place for part in (*DECLARE, *NOT_OF[task])):
            found |= names_in(path)
    return found


def read_by_command(path):
    modules = [modules for section, modules in OF_COMMAND.items() if path.startswith(section)]
    return {
        name for pattern in modules for file in PACKAGE.glob(pattern) for name in names_in(file)
    }


def keys_of(task):
    """All keys of a task type, those of its plug-ins included."""
    own = OF_PROGRAM.get(task, ())
    for path, field, _ in fields_below(root_model(task)):
        if section_of(field.annotation) is None and not path.startswith(own):
            yield path
    for kind in KINDS[task]:
        for name in known_names(kind):
            if kind == "model" and SupportedModel.find(name).category != TASKS[task].model_category:
                continue
            schema = get_schema(kind, name)
            for path, _, _ in fields_below(schema) if schema is not None else ():
                yield f"<{kind} {name}>.{path}"


# An evaluation takes the config of a training as it is.
@pytest.mark.parametrize("task", [task for task in TASKS if not task.endswith("_eval")])
def test_every_key_is_read(task):
    read = names_read(task)
    unread = [
        path
        for path in keys_of(task)
        if path.rpartition(".")[2] not in read | read_by_command(path)
        and not path.startswith(PASSED_ON)
    ]
    assert unread == []


def test_a_key_of_another_task_would_be_found():
    # Otherwise the test above would see nothing.
    embodied, reasoning = names_read("embodied"), names_read("reasoning")
    assert not {"sampling_params", "enable_torch_compile", "max_num_gen_batches"} & embodied
    assert not {"overlap_env_bootstrap", "training_backend", "torch_compile_mode"} & embodied
    assert not {"normalize_returns", "logprob_type", "eval_episodes"} & reasoning


def test_every_deadline_is_the_one_of_some_wait():
    assert set(TimeoutsConfig.model_fields) == set(DEFAULT_TIMEOUTS)
