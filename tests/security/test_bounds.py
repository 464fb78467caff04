"""Programs and texts that want to take all of something: threads, time, shared memory, files."""

from __future__ import annotations

import ctypes
import os
import struct

import pytest

from rlinf.algorithms.rewards.code import extract_program, same_value
from rlinf.utils.sandbox import inside, values
from rlinf.utils.sandbox.confine import LAYERS
from rlinf.utils.sandbox.sandbox import Limits, Sandbox
from tests.security.conftest import PATIENT

WITHOUT_NAMESPACES = ("user", "landlock", "seccomp")
EACH = pytest.mark.parametrize("layers", [LAYERS, WITHOUT_NAMESPACES], ids="+".join)

THREADS = """
import threading
threading.stack_size(1 << 17)
stop = threading.Event()
count = 0
try:
    while count < 6000:
        threading.Thread(target=stop.wait, daemon=True).start()
        count += 1
except RuntimeError:
    pass
print(count)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit of programs that root runs as nobody")
def test_threads_are_bounded(enforced):
    with Sandbox(THREADS, Limits(seconds=60.0, memory_mb=16384)) as sandbox:
        result = sandbox.run()
    assert 0 < int(result.stdout) < inside.MOST_THREADS, result


CALLS = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_ssize_t
def attack(name, *arguments):
    parts = [part.encode() if isinstance(part, str) else part for part in arguments]
    if getattr(libc, name)(*parts) == -1:
        raise OSError(ctypes.get_errno(), name)
def set_attribute(path):
    value = ctypes.create_string_buffer(b"v")
    what = struct.pack("QII", ctypes.addressof(value), 1, 0)
    attack("syscall", 463, -100, path, 0, "user.mark", what, len(what))
def set_flags(path):
    attack("ioctl", os.open(path, os.O_RDONLY), 0x40086602, struct.pack("q", 0x40))
"""


@pytest.fixture
def shared():
    """Shared memory, a queue of messages and semaphores that every user may use."""
    libc = ctypes.CDLL(None, use_errno=True)
    memory, queue = libc.shmget(0, 4096, 0o1666), libc.msgget(0, 0o1666)
    semaphores = libc.semget(0, 1, 0o1666)
    if min(memory, queue, semaphores) < 0:
        pytest.skip("this machine has no shared memory of System V")
    yield memory, queue, semaphores
    libc.shmctl(memory, 0, None)
    libc.msgctl(queue, 0, None)
    libc.semctl(semaphores, 0, 0)


@EACH
def test_shared_memory_and_queues_of_others_are_out_of_reach(enforced, shared, layers):
    memory, queue, semaphores = shared
    attacks = {
        "shmat": [memory, None, 0],
        "shmctl": [memory, 0, None],
        "msgsnd": [queue, struct.pack("q", 1) + b"data", 4, 0],
        "msgrcv": [queue, bytes(16), 8, 0, 0o4000],
        "msgctl": [queue, 0, None],
        "semop": [semaphores, struct.pack("Hhh", 0, 1, 0), 1],
        "semctl": [semaphores, 0, 0],
    }
    with Sandbox(CALLS, PATIENT, layers=layers, require=()) as sandbox:
        for name, arguments in attacks.items():
            result = sandbox.run(call="attack", arguments=[name, *arguments])
            assert "PermissionError" in result.stderr, (name, result)


@EACH
def test_attributes_and_flags_of_files_stay(enforced, tmp_path, layers):
    file = tmp_path / "open to all"
    file.touch()
    file.chmod(0o666)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    with Sandbox(CALLS, PATIENT, layers=layers, require=(), folder=str(tmp_path)) as sandbox:
        for attack in ("set_attribute", "set_flags"):
            result = sandbox.run(call=attack, arguments=[str(file)])
            assert "PermissionError" in result.stderr, (attack, result)
    assert os.listxattr(file) == []


@pytest.mark.timeout(20)
@pytest.mark.parametrize("message", ['"' + '\\"' * 500_000, '"' + '\\"' * 500_000 + "\\"])
def test_quotes_without_end_are_read_once(message):
    with pytest.raises(values.BadValue):
        values.decode(message.encode())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["set", "frozenset", "dict"])
def test_keys_of_the_same_hash_are_refused(kind):
    keys = [k * (2**61 - 1) for k in range(40_000)]
    made = dict.fromkeys(keys[:1]) if kind == "dict" else {keys[0]}
    assert values.decode(values.encode(made)) == made
    content = [f"[{key}, 1]" if kind == "dict" else str(key) for key in keys]
    with pytest.raises(values.BadValue, match="same hash"):
        values.decode(f'{{"{kind}": [{", ".join(content)}]}}'.encode())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["```" + "a" * 400_000, "```" + " " * 400_000, "`" * 400_000])
def test_fences_without_end_are_read_once(text):
    assert extract_program(text) is None


def test_large_numbers_have_to_be_right():
    assert not same_value(10**400, 2.5) and not same_value(2.5, 10**400)
    assert not same_value(10**9 + 8, 10**9 + 7)
    assert same_value(10**400, 10**400) and same_value(0.1 + 0.2, 0.3) and same_value(3.0, 3)
