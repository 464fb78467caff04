"""What git knows of the code in a folder: its commit, and a patch of all that is not committed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MAX_FILE = 1 << 20
"""Bytes of a file, or of its part of a patch, above which it is left out."""
MAX_PATCH = 8 << 20
"""Bytes of a patch."""
CODE = ("*.py", "*.yaml", "*.yml")
"""Files that are recorded although nobody has told git of them."""
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_NAMESPACE")
_SECTION = re.compile(rb"^(?=diff --git )", re.MULTILINE)
# What a user's settings may change, and `git apply` would not take.
_PLAIN = (
    *("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--unified=3"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "--ignore-submodules=dirty"),
)


class GitUnknown(RuntimeError):
    """Git has no answer; says why."""


@dataclass
class GitState:
    """The code in a repository.

    Attributes:
        folder: top of the repository.
        commit: what is checked out; None before the first commit.
        branch: None if a commit is checked out instead of a branch.
        changed: files that differ from the commit.
        untracked: files of `CODE` that git does not know and does not ignore.
        left_out: files that are not in the patch, or what else it lacks, with the reason.
        patch: what `git apply` makes this code with, of the commit.
    """

    folder: Path
    commit: str | None = None
    branch: str | None = None
    changed: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    patch: bytes = b""

    @property
    def dirty(self) -> bool:
        """Whether the code differs from the commit."""
        return bool(self.changed or self.untracked)


class Git:
    """Asks git, and gives up when the time is over.

    Args:
        seconds: for all questions together.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def tracks(self, file: Path) -> bool:
        """Return whether a file is one of a repository's.

        Raises:
            GitUnknown: there is no git, or it does not answer in time.
        """
        try:
            self._ask(file.parent, "ls-files", "--error-unmatch", "--", file.name)
        except _Refused:
            return False
        return True

    def top(self, folder: Path) -> Path:
        """Return the top of the repository that a folder is in.

        Raises:
            GitUnknown: it is in none, or git does not answer.
        """
        found = self._ask(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")
        return Path(os.fsdecode(found))

    def state(self, top: Path) -> GitState:
        """Return commit, branch and uncommitted changes of a repository.

        Args:
            top: its top folder.

        Raises:
            GitUnknown: git does not answer in time; what it says too late is in `left_out`.
        """
        state = GitState(top)
        status = ("--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--no-renames")
        _read_status(state, self._ask(top, "status", *status, "--ignore-submodules=dirty"))
        if state.changed and state.commit is None:
            state.left_out |= dict.fromkeys(state.changed, "there is no commit yet")
        elif state.changed:
            self._add_changes(state)
        self._add_untracked(state)
        return state

    def _add_changes(self, state: GitState) -> None:
        large = [name for name in state.changed if _size(state.folder / name) > MAX_FILE]
        state.left_out |= dict.fromkeys(large, f"larger than {MAX_FILE:,} bytes")
        others = [":/", *(f":(top,literal,exclude){name}" for name in large)]
        # Git would write what it learns of times into the index, and others may wait for that.
        diff = ("-c", "diff.autoRefreshIndex=false", "diff", *_PLAIN, "HEAD", "--")
        try:
            patch = self._ask(state.folder, *diff, *others)
        except GitUnknown as error:
            state.left_out["the changes of tracked files"] = str(error)
            return
        for section in _SECTION.split(patch):
            # A single line is a file that was touched and not changed.
            if section.count(b"\n") > 1:
                _add_section(state, _name_of(section), section)

    def _add_untracked(self, state: GitState) -> None:
        try:
            arguments = ("ls-files", "--others", "--exclude-standard", "-z", "--", *CODE)
            listed = self._ask(state.folder, *arguments)
        except GitUnknown as error:
            state.left_out["files that git does not know"] = str(error)
            return
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        state.untracked = sorted(_outside_of_runs(state.folder, names))
        for name in state.untracked:
            path = state.folder / name
            try:
                reason, content = _why_not(path), b""
                if not reason:
                    content = path.read_bytes()
                    reason = "not text" if b"\0" in content else ""
                if reason:
                    state.left_out[name] = reason
                    continue
                executable = bool(path.stat().st_mode & stat.S_IXUSR)
            except OSError as error:
                state.left_out[name] = str(error.strerror)
                continue
            _add_section(state, name, new_file(name, content, executable))

    def _ask(self, folder: Path, *arguments: str) -> bytes:
        """Run git in a folder and return what it prints."""
        try:
            process = subprocess.Popen(
                ["git", "-C", str(folder), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            why = "there is no git on this machine" if missing else f"git cannot be run: {error}"
            raise GitUnknown(why) from None
        try:
            left = max(0.0, self._deadline - time.monotonic())
            out, said = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise GitUnknown(f"git did not answer within {self._seconds:g} s") from None
        if process.returncode:
            words = said.decode(errors="replace").strip().splitlines()
            raise _Refused(words[0] if words else f"git {arguments[0]} failed")
        return out


class _Refused(GitUnknown):
    """Git has answered that it cannot."""


def new_file(name: str, content: bytes, executable: bool = False) -> bytes:
    r"""Return the part of a patch that makes a new text file.

    Args:
        name: path from the top of the repository.
        content: of the file, without `\0`.
        executable: whether it may be run.
    """
    old, new = _quoted(f"a/{name}"), _quoted(f"b/{name}")
    head = b"diff --git %s %s\nnew file mode %s\n" % (old, new, _MODES[executable])
    if not content:
        # Without this line `git apply` sees nothing to do.
        return head + b"index 0000000..e69de29\n"
    lines = content.split(b"\n")
    ends = lines[-1] == b""
    lines = lines[:-1] if ends else lines
    # A name with a space would otherwise end there.
    tab = b"\t" if " " in name else b""
    count = b"" if len(lines) == 1 else b",%d" % len(lines)
    body = b"".join(b"+%s\n" % line for line in lines)
    rest = b"" if ends else b"\\ No newline at end of file\n"
    return head + b"--- /dev/null\n+++ %s%s\n@@ -0,0 +1%s @@\n" % (new, tab, count) + body + rest


_MODES = {False: b"100644", True: b"100755"}


def _read_status(state: GitState, status: bytes) -> None:
    """Read what `git status --porcelain=v2 --branch -z` prints."""
    for entry in filter(None, status.split(b"\0")):
        kind, _, rest = os.fsdecode(entry).partition(" ")
        if kind == "#":
            key, _, value = rest.partition(" ")
            if key == "branch.oid" and value != "(initial)":
                state.commit = value
            elif key == "branch.head" and value != "(detached)":
                state.branch = value
        elif kind in _FIELDS:
            state.changed.append(rest.split(" ", _FIELDS[kind])[-1])


_FIELDS = {"1": 7, "u": 9}
"""For changed and unmerged files: fields between kind and path."""


def _add_section(state: GitState, name: str, section: bytes) -> None:
    """Add a file's part of the patch if it is not too large."""
    if len(section) > MAX_FILE:
        state.left_out[name] = f"its changes are larger than {MAX_FILE:,} bytes"
    elif len(state.patch) + len(section) > MAX_PATCH:
        state.left_out[name] = f"the patch would be larger than {MAX_PATCH:,} bytes"
    else:
        state.patch += section


def _name_of(section: bytes) -> str:
    """Return the path in `diff --git a/PATH b/PATH`, which is the same twice."""
    both = section.partition(b"\n")[0].removeprefix(b"diff --git ")
    return os.fsdecode(both[: len(both) // 2].strip(b'"').removeprefix(b"a/"))


def _outside_of_runs(top: Path, names: Iterable[str]) -> list[str]:
    """Return the files that no run has written."""
    written: dict[Path, bool] = {}

    def in_run(folder: Path) -> bool:
        if folder not in written:
            own = (folder / "summary.json").is_file()
            written[folder] = own or (folder != top and in_run(folder.parent))
        return written[folder]

    return [name for name in names if not in_run((top / name).parent)]


def _why_not(path: Path) -> str:
    """Say why a file is not recorded; empty if it is."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return "not a plain file"
    return f"larger than {MAX_FILE:,} bytes" if found.st_size > MAX_FILE else ""


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _quoted(name: str) -> bytes:
    """Return a path as patches have it: in quotes if it has characters that end or change it."""
    raw = os.fsencode(name)
    if not any(byte < 32 or byte == 127 or byte in b'"\\' for byte in raw):
        return raw
    escape = {ord('"'): b'\\"', ord("\\"): b"\\\\"}
    plain = (
        escape.get(byte) or (b"\\%03o" % byte if byte < 32 or byte == 127 else bytes([byte]))
        for byte in raw
    )
    return b'"' + b"".join(plain) + b'"'


def _environment() -> dict[str, str]:
    """Return an environment in which git looks where it is told, and neither asks nor changes."""
    kept = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    own = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    return kept | own | {"LC_ALL": "C"}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End git and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process that waits for a disk is gone when the disk answers; nobody waits for it here.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
