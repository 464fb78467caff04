"""Programs that want to reach others: data, descriptors and signals that must not get out."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.utils.sandbox.confine import LAYERS
from rlinf.utils.sandbox.sandbox import RunResult, Sandbox
from tests.security.conftest import PATIENT

pytestmark = pytest.mark.usefixtures("enforced")

WITHOUT_NAMESPACES = ("user", "landlock", "seccomp")
AS_THE_SAME_USER = ("landlock", "seccomp")
FILTER_ALONE = ("seccomp",)
EACH = pytest.mark.parametrize(
    "layers", [LAYERS, WITHOUT_NAMESPACES, AS_THE_SAME_USER, FILTER_ALONE], ids="+".join
)

CTYPES = """
import ctypes, errno, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
"""


ATTACKER = CTYPES + "def attack(code): exec(code, globals())"


def run(code: str, layers) -> RunResult:
    return run_all([code], layers)[code]


def run_all(attacks, layers) -> dict[str, RunResult]:
    """Run each attack in a process of its own."""
    with Sandbox(ATTACKER, PATIENT, layers=layers, require=()) as sandbox:
        return {code: sandbox.run(call="attack", arguments=[code]) for code in attacks}


DATAGRAM = """
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.sendto(b"data", {address!r})
"""
CONNECTED = """
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.connect({address!r})
one.send(b"data")
"""
STREAM = """
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
for way in (lambda: one.connect({address!r}), lambda: one.sendto(b"data", {address!r})):
    try: way()
    except OSError as error: print(errno.errorcode[error.errno])
    else: print("sent")
raise PermissionError
"""
MESSAGE = """
one, other = socket.socketpair(socket.AF_UNIX, {kind})
rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))
one.sendmsg([b"data"], [rights], 0, {address!r})
"""
UNTYPED = """
pair = (ctypes.c_int * 2)()
call("socketpair", 1, {kind}, 0, pair)
address = struct.pack("H", 1) + {address!r}.encode()
call("sendto", pair[0], b"data", 4, 0, address, len(address))
"""


@EACH
@pytest.mark.parametrize("abstract", [True, False], ids=["abstract", "in a folder"])
def test_nothing_is_sent_to_a_socket_outside(tmp_path, layers, abstract):
    address = f"\0rlinf-victim-{os.getpid()}" if abstract else str(tmp_path / "socket")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    attacks = [code.format(address=address) for code in (DATAGRAM, CONNECTED, STREAM)]
    attacks += [UNTYPED.format(address=address, kind=kind) for kind in (2, 3, 5, 0x80002, 1)]
    attacks += [MESSAGE.format(address=address, kind=kind) for kind in (1, 2, 5)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as victim:
        victim.bind(address)
        if not abstract:
            os.chmod(address, 0o777)
        victim.setblocking(False)
        for code, result in run_all(attacks, layers).items():
            assert result.status == "error" and "sent" not in result.stdout, (code, result)
            assert "PermissionError" in result.stderr or "OSError" in result.stderr, result
        with pytest.raises(BlockingIOError):
            victim.recv(100)


def test_programs_can_use_asyncio():
    code = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\n"
    result = run(code + "print(asyncio.run(f()))", LAYERS)
    assert result.stdout == "3\n", result


SIGNALS = {
    "F_SETOWN": """
import fcntl, signal
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, {pid})
fcntl.fcntl(r, 10, signal.SIGKILL)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b"x")
""",
    "F_SETSIG": "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, 10, 9)",
    "O_ASYNC": "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)",
    "F_SETOWN_EX": """
r, w = os.pipe()
call("fcntl", r, 15, struct.pack("ii", 1, {pid}))
""",
    "FIOASYNC": "r, w = os.pipe()\ncall('ioctl', r, 0x5452, struct.pack('i', 1))",
    "FIOSETOWN": "a, b = socket.socketpair()\n"
    "call('ioctl', a.fileno(), 0x8901, struct.pack('i', {pid}))",
    "SIOCSPGRP": "a, b = socket.socketpair()\n"
    "call('ioctl', a.fileno(), 0x8902, struct.pack('i', {pid}))",
    "kill": "os.kill({pid}, 9)",
    "sigqueue": "call('sigqueue', {pid}, 9, 0)",
    "tgkill": "call('syscall', ctypes.c_long({tgkill}), {pid}, {pid}, 9)",
    "pidfd": "os.pidfd_open({pid})",
    "setpriority": "call('setpriority', 0, {pid}, 19)",
    "setpriority of the user": "call('setpriority', 2, 0, 19)",
    "affinity": "os.sched_setaffinity({pid}, [0])",
    "prlimit": "import resource; resource.prlimit({pid}, resource.RLIMIT_CPU, (1, 1))",
    "process_vm_readv": """
data = ctypes.create_string_buffer(8)
vector = struct.pack("PQ", ctypes.addressof(data), 8)
call("process_vm_readv", {pid}, vector, 1, vector, 1, 0)
""",
    "ptrace": "call('ptrace', 16, {pid}, 0, 0)",
    "message queue": "call('mq_open', b'/rlinf', os.O_CREAT | os.O_RDWR, 0o666, 0)",
}


VICTIM = """
import sys
sys.path.insert(0, {root!r})
from rlinf.utils.sandbox.confine import drop_capabilities
drop_capabilities()
print("ready", flush=True)
input()
"""


def start_victim() -> subprocess.Popen:
    """Start a process that has no more rights than a program of the same user."""
    root = str(Path(__file__).resolve().parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM.format(root=root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "SECRET": "hunter2"},
    )
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture
def victim():
    process = start_victim()
    before = os.getpriority(os.PRIO_PROCESS, process.pid)
    yield process
    assert process.poll() is None
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == before
    process.kill()
    process.communicate()


@EACH
def test_other_processes_are_neither_signalled_nor_changed(victim, layers):
    tgkill = 234 if os.uname().machine == "x86_64" else 131
    attacks = [code.format(pid=victim.pid, tgkill=tgkill) for code in SIGNALS.values()]
    for code, result in run_all(attacks, layers).items():
        assert result.status == "error" and "Error" in result.stderr, (code, result)


@pytest.mark.parametrize("layers", [LAYERS, WITHOUT_NAMESPACES, AS_THE_SAME_USER], ids="+".join)
def test_memory_and_environment_of_others_cannot_be_read(victim, layers):
    files = [f"{victim.pid}/fd/0", f"{os.getpid()}/fd/0"]
    for file in ("environ", "mem", "maps", "cmdline"):
        files += [f"{pid}/{file}" for pid in (victim.pid, os.getpid(), "self", 1)]
    attacks = [f"print(open('/proc/{file}', 'rb').read(10))" for file in files]
    for code, result in run_all(attacks, layers).items():
        assert result.status == "error" and not result.stdout, (code, result)


def test_the_attacks_work_where_nothing_is_enforced(victim):
    """Otherwise the tests above would prove nothing."""
    address = f"\0rlinf-victim-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(30)
        assert run(DATAGRAM.format(address=address), ()).status == "ok"
        assert receiver.recv(100) == b"data"
        code = MESSAGE.format(address=address, kind=2)
        assert run(code, ()).status == "ok"
        data, ancillary, *_ = receiver.recvmsg(100, 100)
        assert data == b"data"
        for _, _, descriptors in ancillary:
            for fd in array.array("i", descriptors[:4]):
                os.close(fd)
    result = run(f"print(open('/proc/{victim.pid}/environ', 'rb').read(10))", ())
    assert result.status == "ok" and result.stdout, result
    doomed = start_victim()
    assert run(SIGNALS["F_SETOWN"].format(pid=doomed.pid), ()).status == "ok"
    assert doomed.wait(30) == -9
    doomed.communicate()
