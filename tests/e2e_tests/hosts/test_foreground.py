"""A command on a host behaves as one that a shell has started here."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.testbed import HostBed

ROOT = Path(__file__).resolve().parents[3]
OWNER = """
import os, sys
from rlinf.testbed import Host, HostBed
from rlinf.testbed.foreground import run_in_foreground

class Bed(HostBed):
    def __init__(self): pass

host = Host(Bed(), 0, int(sys.argv[1]))
sys.exit(run_in_foreground(host, sys.argv[2:], {"GIVEN": "yes", "TAKEN": None}, "/tmp"))
"""
SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")
SECONDS = 30
LISTENS = """
import os, signal, sys, time
def hear(number, _):
    os.write(1, f"heard {signal.Signals(number).name}\\n".encode())
    if number != signal.SIGCONT:
        sys.exit(5)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
    signal.signal(number, hear)
print("ready", flush=True)
while True:
    time.sleep(1000)
"""


@pytest.fixture(scope="module")
def bed(hosts):
    """One host without Ray."""
    with HostBed(1) as bed:
        (bed.shared / "owner.py").write_text(OWNER)
        (bed.shared / "listens.py").write_text(LISTENS)
        yield bed


class Terminal:
    """A program that owns a terminal, as a shell that was opened in a window does."""

    def __init__(self, *command: str):
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)
        self.said = ""

    @classmethod
    def with_shell(cls) -> Terminal:
        """One in which a shell says when it waits for a command."""
        terminal = cls("env", "TERM=dumb", "PS1=here> ", *SHELL)
        terminal.read_until("here> ")
        return terminal

    def read_until(self, text: str) -> None:
        while text not in self.said:
            assert select.select([self.screen], [], [], SECONDS)[0], f"no {text!r} in {self.said!r}"
            self.said += os.read(self.screen, 4096).decode()
        self.said = self.said.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.screen)
        return os.waitstatus_to_exitcode(status)


def owner(bed: HostBed, *command: str) -> list[str]:
    """The command that starts a command on the host."""
    script = bed.shared / "owner.py"
    python = ["env", f"PYTHONPATH={ROOT}", sys.executable]
    return [*python, str(script), str(bed.hosts[0].pid), *command]


def listener(bed: HostBed) -> list[str]:
    """A command that says which signals reach it."""
    return [sys.executable, str(bed.shared / "listens.py")]


def run(bed: HostBed, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TAKEN": "here"}
    return subprocess.run(owner(bed, *command), env=env, capture_output=True, text=True)


def test_output_environment_and_exit_code_are_those_of_the_command(bed):
    done = run(bed, "sh", "-c", "hostname; pwd; echo ${GIVEN}${TAKEN-}; exit 7")
    assert (done.returncode, done.stdout) == (7, "host0\n/tmp\nyes\n"), done.stderr
    assert run(bed, "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL
    missing = run(bed, "no-such-program")
    assert missing.returncode == 127 and "no-such-program: No such file" in missing.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command_once(bed, number):
    command = owner(bed, *listener(bed))
    here = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert here.stdout.readline() == "ready\n"
    here.send_signal(number)
    assert here.communicate()[0] == f"heard {number.name}\n"
    assert here.returncode == 5


def test_ctrl_c_of_a_terminal_is_for_the_command(bed):
    terminal = Terminal(*owner(bed, *listener(bed)))
    terminal.read_until("ready")
    terminal.type("\x03")
    terminal.read_until("heard SIGINT")
    assert terminal.end() == 5


def test_a_shell_there_has_job_control(bed):
    terminal = Terminal.with_shell()
    terminal.type(shlex.join(owner(bed, "env", "PS1=$(hostname)> ", *SHELL)) + "\n")
    terminal.read_until("\nhost0> ")
    terminal.type(shlex.join(listener(bed)) + "\n")
    terminal.read_until("ready")
    terminal.type("\x1a")
    terminal.read_until("\nhost0> ")
    terminal.type("fg\n")
    terminal.read_until("heard SIGCONT")
    terminal.type("\x03")
    terminal.read_until("heard SIGINT")
    terminal.read_until("\nhost0> ")
    terminal.type("exit 9\n")
    terminal.read_until("\nhere> ")
    terminal.type("echo left with $?; exit 0\n")
    terminal.read_until("\nleft with 9")
    assert terminal.end() == 0


def test_ctrl_z_stops_the_command_until_it_goes_on(bed):
    terminal = Terminal.with_shell()
    terminal.type(shlex.join(owner(bed, *listener(bed))) + "\n")
    terminal.read_until("ready")
    terminal.type("\x1a")
    terminal.read_until("Stopped")
    terminal.read_until("here> ")
    terminal.type("fg\n")
    terminal.read_until("heard SIGCONT")
    terminal.type("\x03")
    terminal.read_until("heard SIGINT")
    terminal.read_until("here> ")
    terminal.type("echo left with $?; exit 0\n")
    terminal.read_until("\nleft with 5")
    assert terminal.end() == 0
