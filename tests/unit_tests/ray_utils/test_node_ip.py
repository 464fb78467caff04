from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "ray_utils" / "node_ip.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("node_ip", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_interface_counts(script):
    assert script.node_ip("lo") == "127.0.0.1"
    assert script.node_ip("lo,other") == "127.0.0.1"


def test_an_unknown_interface_is_named_with_those_that_are_there(script):
    with pytest.raises(ValueError, match=r"'none9' is no interface of this node.*\blo\b"):
        script.node_ip("none9,lo")


def test_the_address_is_that_from_which_the_head_is_reached(script):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert script.node_ip(toward=server.getsockname()[:2]) == "127.0.0.1"


def test_a_head_that_only_it_can_reach_is_refused(script, monkeypatch):
    monkeypatch.setattr(script, "address_toward", lambda *_: None)
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    with pytest.raises(ValueError, match="127.0.1.1.*Set RLINF_NODE_IP"):
        script.node_ip()
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.1.2.3")
    assert script.node_ip() == "10.1.2.3"
