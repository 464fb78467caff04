"""`start_ray.sh` tells Ray what a node is, and says what is wrong with what it was given."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "ray_utils" / "start_ray.sh"


@pytest.fixture
def start(bench):
    return lambda *options, **env: bench.run(SCRIPT, *options, **env)


def test_the_head_is_started_and_its_address_written_down(bench, start, free_port):
    bench.token()
    done = start("--num-cpus=2", RLINF_NODE_RANK="0", RLINF_HEAD_PORT=str(free_port))
    assert done.returncode == 0, done.stderr
    own = f"--head --port={free_port} --node-ip-address=127.0.0.1 --num-cpus=2"
    assert bench.called("ray") == [f"start {own} --disable-usage-stats 0 token"]
    address = f"127.0.0.1:{free_port}"
    assert Path(bench.env["RLINF_HEAD_FILE"]).read_text() == f"{address}\n"
    assert f"export RAY_ADDRESS={address}" in done.stderr


def test_a_node_joins_the_head_of_the_file(bench, start, listening):
    bench.token()
    Path(bench.env["RLINF_HEAD_FILE"]).write_text(f"127.0.0.1:{listening}\n")
    # RANK is what launchers of other systems set; leading zeros are not octal.
    done = start(RANK="08")
    assert done.returncode == 0, done.stderr
    own = f"--address=127.0.0.1:{listening} --node-ip-address=127.0.0.1"
    assert bench.called("ray") == [f"start {own} --disable-usage-stats 8 token"]


@pytest.mark.parametrize("in_address", [True, False])
def test_the_address_can_be_given(bench, start, listening, in_address):
    bench.token()
    port = {} if in_address else {"RLINF_HEAD_PORT": str(listening)}
    address = f"127.0.0.1:{listening}" if in_address else "127.0.0.1"
    # The node's own address is then that from which it reaches the head.
    done = start(RLINF_NODE_RANK="1", RAY_ADDRESS=address, RLINF_NODE_IP=None, **port)
    assert done.returncode == 0, done.stderr
    assert f"--address=127.0.0.1:{listening} --node-ip-address=127.0.0.1" in bench.called("ray")[0]


def test_a_given_address_is_not_written_down(bench, start, free_port):
    bench.token()
    done = start(RLINF_NODE_RANK="0", RAY_ADDRESS=f"127.0.0.1:{free_port}")
    assert done.returncode == 0, done.stderr
    assert f"--head --port={free_port}" in bench.called("ray")[0]
    assert not Path(bench.env["RLINF_HEAD_FILE"]).exists()


def test_the_head_makes_a_token_that_only_its_user_reads(bench, start, free_port):
    make = 'if [ "$1" = get-auth-token ]; then mkdir -p ~/.ray; echo made > ~/.ray/auth_token; fi'
    bench.program("ray", f"{bench.record()}\n{make}")
    done = start(RLINF_NODE_RANK="0", RLINF_HEAD_PORT=str(free_port))
    assert done.returncode == 0 and "made a token" in done.stderr
    token = Path(bench.env["HOME"]) / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert [call.split()[0] for call in bench.called("ray")] == ["get-auth-token", "start"]


def test_a_node_without_the_token_is_told_how_to_get_it(bench, start, listening):
    address = f"127.0.0.1:{listening}"
    done = start(RLINF_NODE_RANK="1", RAY_ADDRESS=address)
    assert done.returncode == 1 and "Copy ~/.ray/auth_token of the head" in done.stderr
    assert bench.called("ray") == []
    assert start(RLINF_NODE_RANK="1", RAY_ADDRESS=address, RAY_AUTH_TOKEN="x").returncode == 0
    without = start(RLINF_NODE_RANK="1", RAY_ADDRESS=address, RAY_AUTH_MODE="disabled")
    assert without.returncode == 0 and "can run code as you" in without.stderr


def test_a_head_that_does_not_start_leaves_no_address_behind(bench, start, free_port):
    bench.token()
    bench.program("ray", "echo no room >&2; exit 3")
    done = start(RLINF_NODE_RANK="0", RLINF_HEAD_PORT=str(free_port))
    assert done.returncode == 1
    assert "no room" in done.stderr and "did not start as the head" in done.stderr
    assert not Path(bench.env["RLINF_HEAD_FILE"]).exists()


def test_with_block_the_script_becomes_ray(bench, start, free_port):
    bench.token()
    bench.program("ray", "exit 42")
    done = start("--block", RLINF_NODE_RANK="0", RLINF_HEAD_PORT=str(free_port))
    assert done.returncode == 42


@pytest.mark.parametrize(
    ("options", "env", "said"),
    [
        ([], {}, "this node has no rank"),
        ([], {"RLINF_NODE_RANK": "-1"}, "RLINF_NODE_RANK is '-1'. It is a whole number"),
        ([], {"RLINF_NODE_RANK": "0", "RLINF_HEAD_PORT": "x"}, "RLINF_HEAD_PORT is 'x'"),
        ([], {"RLINF_NODE_RANK": "0", "RLINF_HEAD_PORT": "70000"}, "It is a port, 1 to 65535"),
        ([], {"RLINF_NODE_RANK": "1", "RAY_ADDRESS": "auto"}, "RAY_ADDRESS is 'auto'"),
        ([], {"RLINF_NODE_RANK": "1", "RAY_ADDRESS": "ray://a:1"}, "RAY_ADDRESS is 'ray://a:1'"),
        (
            [],
            {"RLINF_NODE_RANK": "1", "RAY_ADDRESS": "a:1", "RLINF_HEAD_PORT": "2"},
            "says port 1, RLINF_HEAD_PORT says 2",
        ),
        ([], {"RLINF_NODE_RANK": "1", "RLINF_START_TIMEOUT": "soon"}, "is 'soon'"),
        (["--head"], {"RLINF_NODE_RANK": "0"}, "--head is set by this script"),
        (["--address=a:1"], {"RLINF_NODE_RANK": "1"}, "--address is set by this script"),
        ([], {"RLINF_NODE_RANK": "1"}, "there was no {RLINF_HEAD_FILE} within 1 s"),
        (
            [],
            {"RLINF_NODE_RANK": "1", "RAY_ADDRESS": "127.0.0.1:1"},
            "nothing answered at 127.0.0.1:1 (of RAY_ADDRESS) within 1 s",
        ),
        (
            [],
            {"RLINF_NODE_RANK": "0", "RLINF_NODE_IP": "", "RLINF_COMM_NET_DEVICES": "none9"},
            "'none9' is no interface of this node",
        ),
        (
            [],
            {"RLINF_NODE_RANK": "0", "RLINF_HEAD_FILE": "/no/such/folder/head"},
            "Set RLINF_HEAD_FILE to a file that all nodes see",
        ),
    ],
)
def test_mistakes_are_named_with_what_to_do(bench, start, options, env, said, free_port):
    bench.token()
    port = {} if "RAY_ADDRESS" in env else {"RLINF_HEAD_PORT": str(free_port)}
    done = start(*options, **{**port, **env})
    assert done.returncode == 1
    assert said.format(**bench.env) in " ".join(done.stderr.split())
    assert bench.called("ray") == []


def test_a_port_that_is_taken_is_named_before_anything_is_changed(bench, start, listening):
    bench.token()
    done = start(RLINF_NODE_RANK="0", RLINF_HEAD_PORT=str(listening))
    assert done.returncode == 1 and f"something listens at 127.0.0.1:{listening}" in done.stderr
    assert not Path(bench.env["RLINF_HEAD_FILE"]).exists()


def test_a_file_that_holds_something_else_is_shown(bench, start):
    Path(bench.env["RLINF_HEAD_FILE"]).write_text("nonsense\n")
    done = start(RLINF_NODE_RANK="1")
    assert done.returncode == 1 and "says 'nonsense', which is no host:port" in done.stderr


def test_without_ray_it_says_which_environment_to_activate(bench, start):
    (bench.bin / "ray").unlink()
    done = start(RLINF_NODE_RANK="0")
    assert done.returncode == 1 and "no `ray` on PATH. Activate the environment" in done.stderr


def test_its_help_names_every_variable(start):
    done = start("--help")
    names = ("RLINF_NODE_RANK", "RAY_ADDRESS", "RLINF_HEAD_FILE", "RLINF_START_TIMEOUT")
    assert done.returncode == 0 and all(name in done.stdout for name in names)
