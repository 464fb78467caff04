"""Runs one program after the other, each in a fork of a process that has imported large packages.

Nothing of rlinf is among them: a program that lacks an import fails as it does for a user.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import NoReturn

PACKAGES = ("torch", "ray", "pydantic", "omegaconf", "transformers")


class Programs:
    """A process that runs programs.

    Args:
        env: variables of all programs.
    """

    def __init__(self, env: dict[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path) -> tuple[int, str]:
        """Runs a program in its folder; returns its exit code and what it printed."""
        self._process.stdin.write(json.dumps(str(script)) + "\n")
        self._process.stdin.flush()
        code = self._process.stdout.readline()
        assert code, "the process that runs programs has ended; it says why above"
        return int(code), _output(script).read_text(encoding="utf-8")

    def close(self) -> None:
        """Ends it, and a program that still runs."""
        self._process.kill()
        self._process.communicate()


def _output(script: Path) -> Path:
    return script.with_suffix(".out")


def _become(script: Path) -> NoReturn:
    """Is from now on the process of a program."""
    code = 1
    try:
        with _output(script).open("wb") as output, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(script.parent)
        sys.argv = [str(script)]
        sys.path[0] = str(script.parent)
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Runs the programs that lines of the input name; prints their exit codes."""
    for name in PACKAGES:
        # A package may not be installed; pages that need it skip themselves.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(Path(json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
