"""Replaces itself by a command that leads a process group of its own and has the terminal.

It runs on a host of a bed, as a plain script: only the standard library is there for it.
"""

import os
import signal
import sys

NOT_FOUND = 127


def main() -> int:
    """Become the command; return an exit code if there is none."""
    os.setpgid(0, 0)
    if os.isatty(0):
        # Who is not yet in the foreground would be stopped for taking it.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    # Python ignores it, and what is ignored stays so.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
