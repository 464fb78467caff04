"""The real wandb and swanlab write, without network and account, what they were given."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFIG = {"runner": {"seed": 3, "task_type": "embodied"}, "actor": {"optim": {"lr": 0.001}}}
STEPS = [(1, {"env/return": 1.5, "train/loss": 0.1}), (1, {"eval/return": 2.0}), (2, {"a/b": 3.0})]
PROGRAM = """
import json, sys
from pathlib import Path
from rlinf.config.schema.runner import LoggerConfig
from rlinf.utils import metric_backends
from rlinf.utils.metric_logger import MetricLogger

folder, name, first, steps, more = map(json.loads, sys.argv[1:])
metric_backends.START_SECONDS = 2.0
logger = MetricLogger(
    Path(folder),
    LoggerConfig(
        logger_backends=[name], project_name="ours", experiment_name="mine", **more
    ),
)
logger.start(first)
for step, metrics in steps:
    logger.log(metrics, step)
logger.close()
"""

pytestmark = pytest.mark.slow
needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
needs_swanlab = pytest.mark.skipif(find_spec("swanlab") is None, reason="swanlab is not installed")


@pytest.fixture
def log(tmp_path):
    """Logs in a process of its own, as a user without accounts; returns what it says."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(json.dumps(CONFIG))

    def log(name: str, first: int, steps: list, settings: dict | None = None, **variables: str):
        known = ("WANDB", "SWANLAB")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(known)}
        values = (str(tmp_path / "run"), name, first, steps, settings or {})
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(json.dumps, values)],
            env={**kept, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **variables},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    return log


def wandb_records(path: Path) -> Iterator[Any]:
    """Read a file of records: blocks of 32 KiB, in each of them checksum, size, kind, content."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            part = b""
            yield record


def wandb_history(folder: Path) -> tuple[Any, dict[int, dict[str, float]]]:
    """Return the run, and metrics by step."""
    (path,) = folder.glob("*.wandb")
    run, history = None, {}
    for record in wandb_records(path):
        if record.HasField("run"):
            run = record.run
        elif record.HasField("history"):
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            own = {key: value for key, value in row.items() if not key.startswith("_")}
            assert row["_step"] == record.history.step.num
            history[row["_step"]] = own
    return run, history


@needs_wandb
def test_wandb_offline_keeps_names_values_steps_and_config(log, tmp_path):
    said = log("wandb", 0, STEPS, WANDB_MODE="offline")
    assert "WARNING" not in said
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    run, history = wandb_history(folder)
    assert (run.project, run.display_name) == ("ours", "mine")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {key: config[key] for key in CONFIG} == CONFIG
    assert history == {1: {**STEPS[0][1], **STEPS[1][1]}, 2: STEPS[2][1]}


@needs_wandb
def test_a_resumed_run_is_the_same_one_for_wandb(log, tmp_path):
    log("wandb", 0, STEPS, WANDB_MODE="offline")
    log("wandb", 2, [(3, {"a/b": math.nan}), (4, {"a/b": 5.0})], WANDB_MODE="offline")
    first, second = (
        wandb_history(folder)
        for folder in sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    )
    assert first[0].run_id == second[0].run_id == (tmp_path / "run" / "wandb_run_id").read_text()
    assert list(second[1]) == [3, 4] and second[1][4] == {"a/b": 5.0}


@needs_wandb
@pytest.mark.parametrize(
    "variables",
    [{}, {"WANDB_API_KEY": 40 * "a", "WANDB_BASE_URL": "http://127.0.0.1:9"}],
    ids=["no account", "no server"],
)
def test_wandb_without_a_connection_keeps_everything(log, tmp_path, variables):
    said = log("wandb", 0, STEPS, **variables)
    assert "WARNING: no connection to wandb" in said and "not written" not in said
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert wandb_history(folder)[1][2] == {"a/b": 3.0}


def swanlab_scalars(folder: Path) -> tuple[Any, list[tuple[int, str, float]]]:
    """Return how the experiment was begun, and all values."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (path,) = folder.glob("*.swanlab")
    reader, start, found = DataStoreReader(), None, []
    reader.open(path)
    while (content := reader.scan()) is not None:
        record = Record()
        record.ParseFromString(content)
        if record.HasField("start"):
            start = record.start
        elif record.HasField("scalar"):
            found.append((record.scalar.step, record.scalar.key, record.scalar.value.number))
    return start, found


@needs_swanlab
def test_swanlab_offline_keeps_names_values_steps_and_config(log, tmp_path):
    said = log("swanlab", 0, STEPS, {"swanlab_mode": "offline"})
    assert "WARNING" not in said
    (folder,) = (tmp_path / "run" / "swanlab").glob("run-*")
    start, scalars = swanlab_scalars(folder)
    assert (start.project, start.name) == ("ours", "mine")
    given = [(step, name, value) for step, row in STEPS for name, value in row.items()]
    assert sorted(scalars) == sorted(given)
    assert "lr: 0.001" in (folder / "files" / "config.yaml").read_text()


@needs_swanlab
def test_a_resumed_run_is_the_same_experiment_for_swanlab(log, tmp_path):
    for first, steps in ((0, STEPS), (2, [(3, {"a/b": math.nan}), (4, {"a/b": 5.0})])):
        log("swanlab", first, steps, {"swanlab_mode": "offline"})
    starts = [
        swanlab_scalars(folder)[0]
        for folder in sorted((tmp_path / "run" / "swanlab").glob("run-*"))
    ]
    assert len(starts) == 2 and starts[0].id == starts[1].id != ""


@needs_swanlab
def test_swanlab_without_an_account_keeps_everything(log, tmp_path):
    said = log("swanlab", 0, STEPS)
    assert "WARNING: no connection to swanlab" in said and "not written" not in said
    (folder,) = (tmp_path / "run" / "swanlab").glob("run-*")
    assert (2, "a/b", 3.0) in swanlab_scalars(folder)[1]
