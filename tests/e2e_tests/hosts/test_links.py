"""Links that fail for a while cost time and nothing else; hosts that are lost are named."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinf.testbed import HostBed
from tests.e2e_tests.hosts.conftest import ROOT, HostCluster
from tests.e2e_tests.hosts.test_embodied import RECIPE, SHORT, in_folder, placed
from tests.long_tests import ALL_TESTS, long_test

PROGRAM = Path(__file__).with_name("talk.py")


def talk(hosts: HostCluster, seconds: float, log_dir: str, *how: str) -> subprocess.Popen[str]:
    """Starts workers that talk on all hosts; returns when they do."""
    program = hosts.hosts[0].start(
        [sys.executable, str(PROGRAM), str(len(hosts.hosts)), str(seconds), log_dir, *how],
        env={**hosts.ray.env, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = []
    for line in program.stdout:
        said.append(line)
        if line == "talking\n":
            return program
    raise AssertionError("".join(said))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [[], pytest.param(["encrypted"], marks=long_test)])
def test_nothing_is_lost_or_reordered_when_links_are_cut_for_a_while(hosts, how):
    chance = random.Random(7)
    cuts = [chance.uniform(0.05, 2.0) for _ in range(12 if ALL_TESTS else 4)]
    cuts.append(8.5 if ALL_TESTS else 6.0)
    seconds = 2.0 * sum(cuts) if ALL_TESTS else 1.3 * sum(cuts)
    program = talk(hosts, seconds, "/tmp/logs-cuts", *how)
    for seconds in cuts:
        time.sleep(chance.uniform(0.0, 0.5))
        victims = chance.sample(hosts.hosts, chance.choice([1, 1, 2]))
        for host in victims:
            host.cut()
        time.sleep(seconds)
        for host in victims:
            host.restore()
    said, _ = program.communicate()
    assert program.returncode == 0, said
    heard, taken = map(int, re.search(r"heard (\d+), taken (\d+)", said).groups())
    assert heard > 50 and taken > 20, said


@pytest.fixture(scope="module")
def doomed(hosts):
    """Hosts of which a test may lose some."""
    with HostBed(3) as bed:
        yield HostCluster(bed)


@pytest.mark.timeout(300)
def test_a_lost_host_is_named_with_all_of_its_workers(doomed):
    program = talk(doomed, 600.0, "/tmp/logs-lost")
    victim = doomed.hosts[2]
    begin = time.monotonic()
    victim.kill()
    said, _ = program.communicate()
    seconds = time.monotonic() - begin
    assert program.returncode == 1, said
    card = json.loads(doomed.read("/tmp/logs-lost/failure.json"))
    assert card["who"] == f"node 2 ({victim.ip})" and victim.ip in card["what"]
    assert doomed.hosts[0].ip in card["what"], "the link has two ends"
    assert card["evidence"] == ["workers there:", "taker:0", "talkers:2"]
    assert card["followers"] in ([], ["talkers:0"], ["talkers:1"], ["talkers:0", "talkers:1"])
    print(f"named after {seconds:.1f} s")


@long_test
@pytest.mark.timeout(600)
def test_a_run_goes_on_from_its_checkpoint_on_the_hosts_that_are_left(hosts):
    """The simulators of all hosts: with one host less there are fewer, and the run ends well."""
    run = "/tmp/runs/survivor"
    with HostBed(3) as bed:
        doomed = HostCluster(bed)
        program = doomed.hosts[0].start(
            [sys.executable, "-m", "rlinf.cli", "train", RECIPE, *SHORT]
            + ["cluster.num_nodes=3", placed("0", "0", "all"), in_folder(run)]
            + ["cluster.cpu_slots_per_node=1", "env.train.total_num_envs=6"]
            + ["env.eval.total_num_envs=6"]
            + ["actor.global_batch_size=60", "runner.save_interval=1", "runner.max_epochs=60"]
            + ["runner.max_restarts=1"],
            env={**doomed.ray.env, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said, killed = [], False
        for line in program.stdout:
            said.append(line)
            if not killed and re.search(r"step \d+/60 ", line):
                bed.hosts[1].kill()
                killed = True
        assert program.wait() == 0, "".join(said)
        summary = json.loads(doomed.read(f"{run}/summary.json"))
        assert (summary["status"], summary["restarts"]) == ("finished", 1)
        assert "going on with 2 of 3 nodes" in "".join(said)
        steps = [m["step"] for m in doomed.metrics(run) if "env/episodes" in m]
        assert steps == list(range(1, 61))
