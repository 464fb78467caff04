"""`check_ray.sh` waits for what it was told, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "ray_utils"


def node(address: str, **resources: float) -> dict:
    return {"Alive": True, "NodeManagerAddress": address, "Resources": {"CPU": 4.0, **resources}}


HEAD = node("10.0.0.1", **{"node:__internal_head__": 1.0, "GPU": 8.0})
SECOND = node("10.0.0.2", GPU=8.0)
DEAD = {**SECOND, "Alive": False}


@pytest.fixture
def check(bench, listening):
    """Runs the script with a Ray whose nodes come one after the other."""

    def check(*arguments: str, states: list[list[dict]], **env: str | None):
        bench.fake_ray(*states)
        given = {"RAY_ADDRESS": f"127.0.0.1:{listening}", "RLINF_START_TIMEOUT": "60", **env}
        return bench.run(FOLDER / "check_ray.sh", *arguments, **given)

    return check


def test_it_returns_when_all_accelerators_are_there(check):
    done = check("16", states=[[HEAD], [HEAD, DEAD], [HEAD, SECOND]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2 nodes, 16 accelerators",
        "  10.0.0.1         8 accelerators, 4 CPUs (head)",
        "  10.0.0.2         8 accelerators, 4 CPUs",
    ]
    # More than were asked for are enough.
    assert check("9", states=[[HEAD, SECOND]]).returncode == 0


def test_nodes_without_accelerators_are_waited_for_by_their_number(check):
    bare = [node("10.0.0.1"), node("10.0.0.2")]
    assert check("--nodes", "2", states=[bare[:1], bare]).returncode == 0
    assert check("1", "--nodes", "2", "--timeout", "1", states=[bare]).returncode == 1


def test_what_is_missing_in_time_is_said(check):
    done = check("--timeout", "1", "17", states=[[HEAD, SECOND]])
    assert done.returncode == 1
    assert "not 17 accelerators within 1 s, but 2 nodes, 16 accelerators" in done.stderr
    assert "10.0.0.2" in done.stderr and "start_ray.sh" in done.stderr


def test_no_answer_is_told_with_the_address(check, bench):
    done = check("1", "--timeout", "1", states=[[]], RAY_ADDRESS="127.0.0.1:1")
    assert done.returncode == 1 and "no Ray answers at 127.0.0.1:1" in done.stderr
    # A file that was named is waited for.
    file = bench.env["RLINF_HEAD_FILE"]
    done = check("1", "--timeout", "1", states=[[]], RAY_ADDRESS=None)
    assert done.returncode == 1 and f"no Ray answers at the address in {file}" in done.stderr


def test_the_address_is_that_of_the_file_and_the_token_is_used(check, bench, listening):
    Path(bench.env["RLINF_HEAD_FILE"]).write_text(f"127.0.0.1:{listening}\n")
    assert check("1", states=[[HEAD]], RAY_ADDRESS=None).returncode == 0
    bench.token()
    assert check("1", states=[[HEAD]], RAY_ADDRESS=None).returncode == 0
    at = f"127.0.0.1:{listening}"
    assert bench.called("init") == [f"{at} None", f"{at} token"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say how many accelerators there must be, or --nodes N"),
        (["0"], "'0' is not a whole number from 1 on"),
        (["--nodes", "two"], "'two' is not a whole number from 1 on"),
    ],
)
def test_wrong_usage(check, arguments, said):
    done = check(*arguments, states=[[]])
    assert done.returncode == 2 and said in done.stderr
