"""Each layer alone gives what it claims: the attack works without it, and not with it."""

from __future__ import annotations

import os
import socket

import pytest

from rlinf.utils.sandbox.confine import GUARANTEES, LAYERS
from rlinf.utils.sandbox.sandbox import Sandbox
from tests.security.conftest import PATIENT
from tests.security.test_reach import start_victim

pytestmark = pytest.mark.usefixtures("enforced")

ATTACKS = """
import os, socket
def network(address, pid, folder):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"data", address)
def processes(address, pid, folder):
    if os.fork() == 0: os._exit(0)
def signals(address, pid, folder): os.kill(pid, 9)
def files(address, pid, folder): os.rename(folder + "/mine", folder + "/theirs")
def reading(address, pid, folder): open(folder + "/" + os.listdir(folder)[0]).read()
def privileges(address, pid, folder): os.setuid(0)
"""


@pytest.fixture
def target(tmp_path):
    """What an attack is aimed at; opened to all, so that only a layer can stop it."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    tmp_path.chmod(0o777)
    (tmp_path / "mine").write_text("mine")
    address = f"\0rlinf-layers-{os.getpid()}"
    victim = start_victim()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        yield [address, victim.pid, str(tmp_path)]
    victim.kill()
    victim.communicate()


@pytest.mark.parametrize("layer", LAYERS)
def test_what_a_layer_claims_it_gives_alone(target, layer):
    with Sandbox(ATTACKS, PATIENT, layers=(), require=()) as sandbox:
        held = sandbox.enforced.by
    # Root's Python may be one that nobody else reaches but by a mount of its own.
    layers = (layer, "namespaces") if layer == "user" else (layer,)
    with Sandbox(ATTACKS, PATIENT, layers=layers, require=()) as sandbox:
        claimed = [name for name in GUARANTEES if layer in sandbox.enforced.by.get(name, ())]
        if layer in sandbox.enforced.problems:
            pytest.skip(sandbox.enforced.problems[layer])
        assert claimed or layer in held.get("privileges", ()), sandbox.enforced
        for name in claimed:
            result = sandbox.run(call=name, arguments=target)
            assert result.status == "error" and "Error" in result.stderr, (name, result)


@pytest.mark.skipif(os.geteuid() != 0, reason="a user has not the rights that are taken")
def test_each_attack_works_where_nothing_is_enforced(target):
    """Otherwise the test above would prove nothing."""
    with Sandbox(ATTACKS, PATIENT, layers=(), require=()) as sandbox:
        assert list(sandbox.enforced.missing) == list(GUARANTEES)
        for name in GUARANTEES:
            result = sandbox.run(call=name, arguments=target)
            assert result.status == "ok", (name, result)
