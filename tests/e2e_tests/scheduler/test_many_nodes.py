"""Several nodes: real raylets on this machine, with ranks, groups and environments of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(case: str, log_dir: Path) -> dict:
    own = ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    env = {k: v for k, v in os.environ.items() if k not in own} | {"PYTHONPATH": str(ROOT)}
    # Processes that Ray starts ahead on each node would only be in each other's way.
    env["RAY_prestart_worker_first_driver"] = "0"
    script = Path(__file__).with_name("many_nodes.py")
    done = subprocess.run(
        [sys.executable, str(script), case, str(log_dir)],
        env=env,
        capture_output=True,
        text=True,
        timeout=170,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[0][len("RESULT ") :])


@pytest.mark.timeout(180)
def test_four_nodes_with_groups(tmp_path):
    result = run("four", tmp_path)
    assert [f["RLINF_NODE_RANK"] for f in result["actor"]] == ["0", "1"]
    assert [f["CLUSTER_NODE_RANK"] for f in result["actor"]] == ["0", "1"]
    env = result["env"]
    assert [f["RLINF_NODE_RANK"] for f in env] == ["2", "2", "3", "3", "0", "0", "1", "1"]
    assert [f["COLOUR"] for f in env] == ["red", "red", "blue", "blue", None, None, None, None]
    assert [f["LOCAL_RANK"] for f in env] == ["0", "1"] * 4
    assert {f["WORLD_SIZE"] for f in env} == {"8"}
    assert result["reduce"] == [28.0] * 8
    assert result["ring"] == [True, True]
    assert result["spread"] == [True, True]
    assert result["taken"] == [[rank, i] for rank in range(2) for i in range(20)]
    assert result["driver"] == [[0, 0], [1, 0]]
    worker, node, signal, activity, log = result["died"]
    assert (worker, node, signal, activity) == ("env:1", 2, "SIGKILL", "running die()")
    assert "about to go" in log


@pytest.mark.timeout(180)
def test_two_nodes_without_ranks(tmp_path):
    result = run("two", tmp_path)
    assert result["head_first"] is True
    assert [f["CLUSTER_NODE_RANK"] for f in result["ranks"]] == ["0", "1"]
    assert result["one_of_two"] == 1
    assert "2 of 3 nodes joined within 1 s" in result["missing"]
    assert "RLINF_NODE_RANK must be set on every node" in result["unranked"]
