"""Tests the debugger in real workers, driven by what a user types at the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.scheduler.debug.debugger import install

PROGRAM = """
import sys
from rlinf.scheduler import Cluster, Worker
from rlinf.scheduler.placement import NodePlacementStrategy

class Doubler(Worker):
    def double(self, value):
        twice = 2 * value
        breakpoint()
        result = twice + self.rank
        return result

    async def wait_and_double(self, value):
        breakpoint(header="in a coroutine")
        return 2 * value

    def fail(self):
        secret = 41
        raise ValueError("a worker fails")

with Cluster(num_nodes=1, distributed_log_dir=sys.argv[1]) as cluster:
    group = Doubler.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="w")
    {body}
"""


def run(tmp_path: Path, ray_address: str, body: str, typed: str, debug: bool = False):
    """Runs a program whose user types some lines; returns its exit code and what it printed."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(body=body))
    env = os.environ | {"RAY_ADDRESS": ray_address, "RLINF_DEBUG": str(int(debug))}
    env["PYTHONPATH"] = str(Path(__file__).resolve().parents[4])
    env.pop("PYTHONBREAKPOINT", None)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "logs")],
        input=typed,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=200,
    )
    return done.returncode, done.stdout


@pytest.mark.timeout(240)
def test_a_breakpoint_opens_pdb_at_the_drivers_terminal(ray_address, tmp_path):
    body = "print('values', group.double(5).wait())"
    typed = "p ('seen', twice)\nn\np ('stepped', result)\nc\np ('other', twice)\nc\n"
    code, output = run(tmp_path, ray_address, body, typed)
    assert code == 0, output
    for said in ("('seen', 10)", "-> return result", "('stepped', 1", "('other', 10)"):
        assert said in output, output
    # Both ranks stop there, one after the other, and go on as if nothing had been.
    assert "w:0 is in the debugger" in output and "w:1 is in the debugger" in output
    assert "values [10, 11]" in output


@pytest.mark.timeout(240)
def test_deadlines_stand_still_in_a_coroutine_as_well(ray_address, tmp_path):
    body = "print('value', group.execute_on(0).wait_and_double(4).wait(timeout=2.0))"
    typed = "import time; time.sleep(4.0)\nc\n"
    code, output = run(tmp_path, ray_address, body, typed)
    assert code == 0, output
    assert "in a coroutine" in output and "value [8]" in output


@pytest.mark.timeout(240)
def test_post_mortem_shows_the_frame_that_raised_and_then_the_card(ray_address, tmp_path):
    body = "group.execute_on(1).fail().wait()"
    code, output = run(tmp_path, ray_address, body, "p ('found', secret)\nq\n", debug=True)
    assert code == 1
    assert "('found', 41)" in output and "a worker fails" in output
    assert output.rstrip().endswith("┘")


@pytest.mark.timeout(240)
def test_post_mortem_of_the_driver_itself(ray_address, tmp_path):
    body = "value = 7; print(undefined_name)"
    code, output = run(tmp_path, ray_address, body, "p ('value', value)\nq\n", debug=True)
    assert code == 1
    assert "('value', 7)" in output and output.rstrip().endswith("┘")


@pytest.mark.parametrize(
    "chosen, ours", [(None, True), ("ray.util.rpdb.set_trace", True), ("ipdb.set_trace", False)]
)
def test_a_debugger_that_the_user_has_chosen_stays(monkeypatch, chosen, ours):
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PYTHONBREAKPOINT", chosen)

    def hook() -> None: ...

    install(hook)
    assert (sys.breakpointhook is hook) == ours
