"""The batch job starts Ray on all nodes, trains, passes signals on and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BATCH = ROOT / "examples" / "clusters" / "slurm.sbatch"
# Runs a command once per node, as srun does: a signal ends all tasks, a failed one no other.
SRUN = r"""
echo srun "$*" >> "$CALLS"
while [[ $1 == --* ]]; do shift; done
tasks=()
trap 'for task in "${tasks[@]}"; do kill -- "-$task"; done' TERM
for ((n = 0; n < SLURM_JOB_NUM_NODES; n++)); do
  SLURM_NODEID=$n setsid "$@" &
  tasks+=($!)
done
while [[ -n $(jobs -pr) ]]; do wait; done
"""
# The head listens; all stay until they are ended.
RAY = r"""
echo ray "$*" "$RLINF_NODE_RANK" "$RAY_AUTH_MODE" "$RAY_AUTH_TOKEN" >> "$CALLS"
if [[ -n ${BROKEN:-} ]]; then exit 3; fi
if [[ $2 != --head ]]; then exec sleep 1000; fi
exec python3 -S -c 'import signal, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
signal.pause()' "${3#--port=}"
"""
# The nodes of the stand-in for Ray are there before its processes are.
TRAIN = r"""
until [[ $(grep -c '^ray start' "$CALLS") -ge $SLURM_JOB_NUM_NODES ]]; do sleep 0.02; done
echo rlinf "$*" "$RAY_ADDRESS" >> "$CALLS"
exit "${CODE:-0}"
"""
TRAIN_UNTIL_ENDED = r"""
trap 'echo saved; kill $!; exit 143' TERM
echo training
sleep 1000 & wait
"""
NODE = {"Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4}}


@pytest.fixture
def job(bench, free_port):
    """What a batch job of two nodes has on its first node."""
    repo = bench.folder / "repo"
    repo.mkdir()
    (repo / "ray_utils").symlink_to(ROOT / "ray_utils")
    bench.fake_ray([NODE], [NODE, NODE])
    bench.program("srun", SRUN)
    bench.program("ray", RAY)
    bench.program("rlinf", TRAIN)
    bench.env |= {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_SUBMIT_DIR": str(repo),
        "RLINF_HEAD_PORT": str(free_port),
        "RLINF_START_TIMEOUT": "30",
    }
    return bench


def test_a_recipe_is_trained_on_all_nodes(job, free_port):
    done = job.run("bash", BATCH, "my_recipe", "a.b={c: 1}")
    assert done.returncode == 0, done.stderr
    started = {line.split()[-3]: line for line in job.called("ray")}
    assert set(started) == {"0", "1"} and all("--block" in line for line in started.values())
    assert "--head" in started["0"] and f"--address=127.0.0.1:{free_port}" in started["1"]
    tokens = {line.split()[-1] for line in started.values()}
    assert len(tokens) == 1 and len(tokens.pop()) == 64
    (step,) = job.called("srun")
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1" in step
    folder = Path(job.env["SLURM_SUBMIT_DIR"]) / "logs"
    assert job.called("rlinf") == [
        f"train my_recipe cluster.num_nodes=2 runner.run_dir={folder}/slurm-77 "
        f"runner.resume_dir=auto a.b={{c: 1}} 127.0.0.1:{free_port}"
    ]
    assert list(folder.iterdir()) == []


def test_each_job_has_a_token_of_its_own_and_the_default_job(job):
    for _ in range(2):
        assert job.run("bash", BATCH, SLURM_JOB_NUM_NODES="1").returncode == 0
    assert len({line.split()[-1] for line in job.called("ray")}) == 2
    assert all(line.startswith("train metaworld_ppo_mlp ") for line in job.called("rlinf"))


def test_the_exit_code_is_that_of_the_run(job):
    assert job.run("bash", BATCH, CODE="7").returncode == 7


def test_a_signal_lets_the_run_save(job):
    job.program("rlinf", TRAIN_UNTIL_ENDED)
    batch = subprocess.Popen(["bash", BATCH], env=job.env, stdout=subprocess.PIPE, text=True)
    assert "training\n" in iter(batch.stdout.readline, "")
    batch.send_signal(signal.SIGTERM)
    assert batch.communicate(timeout=60)[0] == "saved\n"
    assert batch.returncode == 143


def test_a_ray_that_does_not_start_ends_the_job_at_once(job):
    done = job.run("bash", BATCH, BROKEN="1", RLINF_START_TIMEOUT="1000")
    assert done.returncode == 1 and "Ray has not started on" in done.stderr
    assert job.called("rlinf") == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"SLURM_JOB_ID": None}, "this is not a SLURM job"),
        ({"RLINF_REPO": "/usr"}, "there is no ray_utils/start_ray.sh in /usr"),
        ({"RLINF_ENV": "/usr"}, "RLINF_ENV is /usr, which is no virtual environment"),
    ],
)
def test_mistakes_are_named_with_what_to_do(job, env, said):
    done = job.run("bash", BATCH, **env)
    assert done.returncode == 1 and said in done.stderr


def test_scripts_are_whole():
    for script in (BATCH, *sorted((ROOT / "ray_utils").glob("*.sh"))):
        checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        text = script.read_text()
        assert max(map(len, text.splitlines())) <= 100 and sys.executable not in text
