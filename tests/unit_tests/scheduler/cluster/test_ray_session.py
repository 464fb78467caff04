"""A Ray of one's own starts even where it needs several attempts; that of others is joined."""

from __future__ import annotations

import os
import socket
import subprocess

import psutil
import pytest

from rlinf.scheduler.cluster import ray_session
from rlinf.scheduler.errors import ClusterError

SLOW = "The current node timed out during startup. This could happen because ..."


@pytest.fixture
def start(monkeypatch):
    """Starts a Ray that fails so many times; returns what was left running, and the attempts."""

    def start(failures: int, text: str = SLOW) -> tuple[list[psutil.Process], int]:
        started: list[subprocess.Popen] = []

        def init(**_):
            started.append(subprocess.Popen(["sleep", "600"]))
            if len(started) <= failures:
                raise Exception(text)

        monkeypatch.setattr("ray.init", init)
        try:
            ray_session._start({})
        finally:
            alive = [process for process in started if process.poll() is None]
            for process in alive:
                process.kill()
                process.wait()
        return alive, len(started)

    return start


def test_a_busy_machine_gets_another_attempt_and_keeps_nothing_of_the_first(start, capfd):
    assert [len(start(failures)[0]) for failures in (0, 1, 2)] == [1, 1, 1]
    assert start(2)[1] == 3
    assert "Ray did not start in time" in capfd.readouterr().err


def test_at_last_it_gives_up_and_says_where_to_look(start):
    with pytest.raises(ClusterError, match=r"in 4 attempts: The current node timed out.*/tmp/ray"):
        start(4)


def test_other_errors_are_not_tried_again(start):
    with pytest.raises(Exception, match="no such option"):
        start(1, "no such option")


@pytest.fixture
def refused(monkeypatch, listening):
    """Joins a Ray that answers with an error; returns what is raised."""

    def refused(text: str) -> str:
        def init(**_):
            raise ConnectionError("Failed to connect to Ray cluster") from RuntimeError(text)

        monkeypatch.setattr("ray.init", init)
        monkeypatch.setattr("ray.is_initialized", lambda: False)
        with pytest.raises(ClusterError) as raised:
            ray_session.RaySession(listening, dashboard=False, num_cpus=None, namespace="x")
        return str(raised.value)

    return refused


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_wrong_token_is_told_from_other_reasons(refused, listening, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    said = refused("RPC error: InvalidAuthToken: ...")
    assert f"{listening!r} does not accept the token" in said and "RAY_AUTH_TOKEN" in said
    said = refused("no raylet here")
    assert "cannot be joined: Failed to connect" in said and "one of its nodes" in said


def test_the_token_of_this_machine_is_used_to_join(refused, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setattr("rlinf.utils.ray_token._is_open", lambda address, environ: False)
    refused("no")
    assert os.environ["RAY_AUTH_MODE"] == "token"
