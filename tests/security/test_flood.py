"""A local user who holds unfinished handshakes on every listener of a run, from many addresses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlinf.scheduler.net import newcomers
from tests.unit_tests.scheduler.small_run import SmallRun

PATIENCE = 60.0

FLOOD = """
import contextlib, errno, json, os, random, resource, select, socket, sys

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
dice, poll, held = random.Random(0), select.epoll(), {}
poll.register(0, select.EPOLLIN)

def begin(target):
    sock = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
    sock.setblocking(False)
    try:
        if sock.family == socket.AF_INET:
            sock.bind(("127." + ".".join(str(dice.randint(1, 254)) for _ in range(3)), 0))
        sock.connect(target)
    except BlockingIOError as error:
        if error.errno != errno.EINPROGRESS:
            return sock.close()
    except OSError:
        return sock.close()
    held[sock.fileno()] = sock, target
    poll.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

while True:
    for fd, event in poll.poll():
        if fd == 0:
            line = sys.stdin.readline()
            if not line:
                sys.exit()
            kind, *target = json.loads(line)
            target = chr(0) + target[0] if kind == "unix" else tuple(target)
            for _ in range(int(sys.argv[1])):
                begin(target)
            print("begun", flush=True)
            continue
        sock, target = held[fd]
        try:
            # Some of a proof, which never ends.
            if event & select.EPOLLOUT and not event & select.EPOLLIN:
                sock.send(b"x")
            gone = event & select.EPOLLIN and not sock.recv(100)
        except BlockingIOError:
            gone = False
        except OSError:
            gone = True
        if gone or event & (select.EPOLLHUP | select.EPOLLERR):
            # Sent away: it comes back, from elsewhere.
            del held[fd]
            poll.unregister(fd)
            sock.close()
            begin(target)
"""


class Flood:
    """A process of another user, if that is possible."""

    def __init__(self, count: int):
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-u", "-c", FLOOD, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def fill(self, addresses) -> None:
        """Begin many handshakes at each address, and come back whenever one is sent away."""
        for address in addresses:
            print(json.dumps(address), file=self._process.stdin, flush=True)
            assert self._process.stdout.readline() == "begun\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.parametrize("encryption", [False, True], ids=["plain", "encrypted"])
def test_a_run_starts_while_every_listener_is_full(tmp_path, monkeypatch, encryption):
    """Members come from loopback, too: to the listeners they are of the flood's own origin."""
    # No deadline makes room: whoever holds a place gives it up for others, or keeps them out.
    monkeypatch.setattr(newcomers, "FIRST_PROOF_SECONDS", 3600.0)
    run, flood = SmallRun(tmp_path, 2, encryption=encryption), Flood(2 * newcomers.MOST)
    try:
        flood.fill(run.server.addresses)
        here, there = run.join("here:0"), run.join("there:0", node_rank=1)
        for member in (here, there):
            flood.fill(member.endpoint.addresses)
        here.mailbox.send("there:0", "hello").wait()
        assert there.mailbox.recv("here:0").wait(timeout=PATIENCE) == "hello"
        there.mailbox.send("here:0", "good day").wait()
        assert here.mailbox.recv("there:0").wait(timeout=PATIENCE) == "good day"
        # One that is known by now, and one that is new.
        late = run.join("late:0", node_rank=1)
        late.mailbox.send("here:0", "late").wait()
        assert here.mailbox.recv("late:0").wait(timeout=PATIENCE) == "late"
    finally:
        flood.close()
        run.close()
