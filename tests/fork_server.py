"""Processes that begin with everything imported, as forks of one that has done it.

To start Python and to import Ray, torch and transformers costs a Ray worker up to ten seconds of a
core; a fork costs a tenth of one. From then on nothing differs.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tests.forked import ADDRESS, REFUSED, WORKER, place_of, start

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 1 << 17
"""Bytes of a request."""
FIRST = (WORKER, "ray.util.scheduling_strategies", "rlinf.scheduler.worker.host")
"""Modules that are there before the first fork; others follow while nobody asks for one."""


class ForkServer:
    """Starts Python modules as programs, by fork.

    Args:
        modules: what its processes will import.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.address = f"rlinf-fork_server-{uuid.uuid4()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(place_of(self.address))
            listener.listen(128)
            number = listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(number), *modules],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                pass_fds=[number],
            )

    def start(self, argv: list[str], env: dict[str, str], output: int) -> int:
        """Starts `argv[0]`, the name of a module; returns the process id."""
        with open(os.devnull) as nothing:
            return start(self.address, argv, env, [nothing.fileno(), output, output])

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the fork_server; what it has started goes on."""
        leave(self._process)


def leave(process: subprocess.Popen) -> None:
    """Closes the input of a process, which ends it; one that does not end is killed, and told."""
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@contextlib.contextmanager
def serving_ray(address: str) -> Iterator[None]:
    """A Ray that is started within this has forks of a fork_server as workers."""
    from ray._private.parameter import RayParams

    make = RayParams.__init__
    entry = importlib.util.find_spec("tests.forked").origin
    os.environ[ADDRESS] = address
    RayParams.__init__ = functools.partialmethod(make, worker_path=entry)
    try:
        yield
    finally:
        RayParams.__init__ = make
        del os.environ[ADDRESS]


def serve(listener: socket.socket, modules: list[str]) -> None:
    """Forks whenever it is asked to, until its parent closes it or is gone."""
    own_kind = None
    grown = False
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        learning = grown and bool(modules)
        ready, _, _ = select.select([listener, sys.stdin], [], [], 0 if learning else None)
        if sys.stdin in ready:
            return
        if not ready:
            # A package may not be installed; tests that need it skip themselves.
            with contextlib.suppress(ImportError):
                importlib.import_module(modules.pop(0))
            continue
        asking, _ = listener.accept()
        with asking:
            request, files, _, _ = socket.recv_fds(asking, LARGEST, 3)
            argv, env, folder, wanted = pickle.loads(request)
            own_kind = own_kind or wanted
            pid = REFUSED
            if wanted in (None, own_kind):
                if not grown:
                    _grow_up(env)
                    grown = True
                gc.freeze()
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    asking.close()
                    _become(files, argv, env, folder)
            for file in files:
                os.close(file)
            asking.send(str(pid).encode())


def _grow_up(env: dict[str, str]) -> None:
    """Imports what every worker needs, with the variables of the first who asks.

    That is a worker of Ray, which reads its settings when it is imported. All workers get the same,
    but for the job that they are meant for; one that is meant for none serves any.
    """
    os.environ.update(env, RAY_JOB_ID="ffffffff")
    for name in FIRST:
        importlib.import_module(name)


def _become(files: list[int], argv: list[str], env: dict[str, str], folder: str) -> NoReturn:
    """Is from now on the process that runs this module."""
    code = 1
    try:
        # As Ray does with its workers; it ends the whole group of one that has ended.
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        script = importlib.util.find_spec(argv[0]).origin
        sys.argv = [script, *argv[1:]]
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
