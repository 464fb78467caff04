"""What a user types to start a cluster really starts one: scripts, batch job, `rlinf testbed`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf.testbed import Host, HostBed
from tests.e2e_tests.hosts.conftest import ROOT
from tests.long_tests import long_test

PROGRAM = ("-m", "tests.e2e_tests.hosts.where_am_i")
START, CHECK = "ray_utils/start_ray.sh", "ray_utils/check_ray.sh"
SMALL = ("--num-cpus=2", "--object-store-memory=100000000")
CLUSTER = {"num_nodes": 2, "component_placement": {"witness": "all"}}
# Asks for a command on all hosts, through the folder that they share, and ends when it does.
SRUN = """
while [[ $1 == --* ]]; do shift; done
trap 'touch {shared}/end' TERM
env -0 > {shared}/environment
printf '%s\\0' "$@" > {shared}/command.part && mv {shared}/command.part {shared}/command
until [[ -e {shared}/ended ]]; do sleep 0.1; done
"""


@pytest.fixture
def bed(hosts) -> Iterator[HostBed]:
    """Two hosts without Ray, which share no home folder."""
    with HostBed(2) as bed:
        yield bed


def environment(bed: HostBed, **own: str) -> dict[str, str | None]:
    """What a user has on each host: no token, the environment activated."""
    ours = {name: None for name in os.environ if name.startswith(("RAY_", "RLINF_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    head = {"RLINF_HEAD_FILE": str(bed.shared / "head"), "RLINF_START_TIMEOUT": "200"}
    return {**ours, "PATH": path, "HOME": "/tmp", "OMP_NUM_THREADS": "1", **head, **own}


def on(host: Host, env: dict[str, str | None], *command: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return host.start(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, **pipes)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = process.communicate()
    assert process.returncode == code, said
    return said


def facts(said: str) -> list[dict[str, Any]]:
    return json.loads(said.strip().splitlines()[-1])["witness"]


@pytest.mark.timeout(400)
def test_the_scripts_start_ray_on_all_hosts(bed):
    first, second = bed.hosts
    waiting = on(second, environment(bed, RANK="1"), START, *SMALL)
    started = on(first, environment(bed, RLINF_NODE_RANK="0"), START, *SMALL)
    assert "made a token" in ended(started)
    # The second host waited for the head, and has not its token.
    assert "Copy ~/.ray/auth_token of the head" in ended(waiting, code=1)
    token = first.run(["cat", "/tmp/.ray/auth_token"], capture_output=True, text=True).stdout
    ended(on(second, environment(bed, RANK="1", RAY_AUTH_TOKEN=token), START, *SMALL))

    said = ended(on(first, environment(bed), CHECK, "--nodes", "2"))
    assert "2 nodes, 0 accelerators" in said and second.ip in said
    said = ended(on(first, environment(bed), CHECK, "1", "--timeout", "25"), code=1)
    assert "not 1 accelerator within 25 s, but 2 nodes" in said

    # The program finds the token of the head by itself.
    there = environment(bed, RAY_ADDRESS=(bed.shared / "head").read_text().strip())
    program = on(first, there, sys.executable, *PROGRAM, json.dumps(CLUSTER), "RLINF_NODE_RANK")
    workers = facts(ended(program))
    assert [(w["host"], w["env"]) for w in workers] == [
        ("host0", {"RLINF_NODE_RANK": "0"}),
        ("host1", {"RLINF_NODE_RANK": "1"}),
    ]
    other = {**there, "RAY_AUTH_TOKEN": "x" * 64}
    program = on(first, other, sys.executable, *PROGRAM, json.dumps(CLUSTER))
    assert "does not accept the token of this machine" in ended(program, code=1)


@pytest.mark.timeout(300)
def test_the_command_makes_hosts_and_passes_the_exit_code_on(hosts, tmp_path):
    shared = tmp_path / "shared"
    program = shlex.join([sys.executable, *PROGRAM, json.dumps(CLUSTER)])
    script = f"{program} > {shared}/said && touch /tmp/gone && exit 7"
    command = [sys.executable, "-m", "rlinf.cli", "testbed", "2", "--link", "1gbit"]
    done = subprocess.run(
        [*command, "--share", str(shared), "--", "bash", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr
    assert "host1  10.77.0.2  nsenter --target" in done.stderr
    assert [worker["host"] for worker in facts((shared / "said").read_text())] == ["host0", "host1"]
    assert not Path("/tmp/gone").exists()


class Slurm:
    """Runs what `srun` on the first host asks for, on all hosts."""

    def __init__(self, bed: HostBed):
        self.bed = bed
        folder = bed.shared / "bin"
        folder.mkdir()
        (folder / "srun").write_text("#!/bin/bash\n" + SRUN.format(shared=bed.shared))
        (folder / "srun").chmod(0o755)
        (folder / "rlinf").write_text(f'#!/bin/bash\nexec {sys.executable} -m rlinf.cli "$@"\n')
        (folder / "rlinf").chmod(0o755)
        self.path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Slurm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _wait_for(self, name: str) -> bool:
        while not (self.bed.shared / name).exists():
            if self._left.wait(0.1):
                return False
        return True

    def _serve(self) -> None:
        if not self._wait_for("command"):
            return
        command = (self.bed.shared / "command").read_text().split("\0")[:-1]
        text = (self.bed.shared / "environment").read_text()
        # What srun has, and nothing that these tests have besides.
        env: dict[str, str | None] = dict.fromkeys(os.environ)
        env |= dict(line.split("=", 1) for line in text.split("\0") if line)
        tasks = [on(h, {**env, "SLURM_NODEID": str(h.index)}, *command) for h in self.bed.hosts]
        self._wait_for("end")
        for host in self.bed.hosts:
            host.run(["ray", "stop", "--force"], env=env, capture_output=True)
        for task in tasks:
            task.communicate()
        (self.bed.shared / "ended").touch()


@long_test
@pytest.mark.timeout(600)
def test_the_batch_job_trains_on_all_nodes(bed):
    repo = bed.shared / "repo"
    repo.mkdir()
    (repo / "ray_utils").symlink_to(ROOT / "ray_utils")
    (repo / "examples").symlink_to(ROOT / "examples")
    short = ["env.train.total_num_envs=4", "runner.max_epochs=1", "runner.eval_episodes=2"]
    with Slurm(bed) as slurm:
        env = environment(
            bed,
            PATH=slurm.path,
            PYTHONPATH=str(ROOT),
            SLURM_JOB_ID="5",
            SLURM_JOB_NUM_NODES="2",
            SLURM_SUBMIT_DIR=str(repo),
        )
        batch = str(ROOT / "examples" / "clusters" / "slurm.sbatch")
        place = "cluster.component_placement={actor: 0, rollout: 0, env: 1}"
        said = ended(on(bed.hosts[0], env, "bash", batch, "metaworld_ppo_mlp", *short, place))
    summary = json.loads((repo / "logs" / "slurm-5" / "summary.json").read_text())
    assert summary["status"] == "finished", said
    assert (repo / "logs" / "slurm-5" / "workers" / "EnvGroup" / "rank_0.log").exists()
    assert not list((repo / "logs").glob("*.head*"))
