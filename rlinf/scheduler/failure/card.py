"""The failure card: who failed first, where, when, doing what, the evidence, and what to change."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

_FRAMES = 3
"""Frames of a traceback that a card shows; its file has all."""


@dataclass
class FailureCard:
    """One failure, told once.

    Attributes:
        who: the worker (or the driver) that failed first.
        where: node, address and process.
        when: time of the failure.
        doing: what it was doing.
        what: the failure in one sentence.
        evidence: lines that show it: traceback, signal, last log lines.
        cause: likely cause.
        change: what to change.
        followers: workers that stopped because of it.
        traceback: file with the whole traceback.
        logs: folder with the logs and stacks.
    """

    who: str
    where: str
    when: str
    doing: str
    what: str
    evidence: list[str] = field(default_factory=list)
    cause: str = ""
    change: str = ""
    followers: list[str] = field(default_factory=list)
    traceback: str = ""
    logs: str = ""

    def save(self, folder: Path) -> Path:
        """Write the card as `failure.json` and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "failure.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(part, path)
        return path

    def render(self, width: int = 100) -> str:
        """Return the card as text in a frame."""
        rows = [
            ("failed first", self.who),
            ("where", self.where),
            ("when", self.when),
            ("doing", self.doing),
            ("what", self.what),
            ("likely cause", self.cause),
            ("what to change", self.change),
        ]
        if self.followers:
            count = len(self.followers)
            noun = "worker" if count == 1 else "workers"
            rows.append(("also", f"{count} {noun} stopped because of this"))
        rows += [("traceback", self.traceback), ("logs", self.logs)]
        inner = width - 4
        lines = []
        for label, text in rows:
            if text:
                lines += _wrap(f"{label + ':':<16}", text, inner)
        if self.evidence:
            lines.append("evidence:")
            for line in self.evidence:
                lines += _wrap("  ", line, inner)
        bar = "─" * (width - 2)
        title = " RUN FAILED "
        top = "┌─" + title + "─" * (width - 3 - len(title)) + "┐"
        body = [f"│ {line:<{inner}} │" for line in lines]
        return "\n".join([top, *body, f"└{bar}┘"])


def _wrap(prefix: str, text: str, width: int) -> list[str]:
    indent = " " * len(prefix)
    room = width - len(prefix)
    out = []
    for line in text.splitlines() or [""]:
        while len(line) > room:
            cut = line.rfind(" ", room // 2, room)
            cut = cut if cut > 0 else room
            out.append(line[:cut])
            line = line[cut:].lstrip()
        out.append(line)
    return [(prefix if i == 0 else indent) + line for i, line in enumerate(out)]


def innermost(traceback: str, frames: int = _FRAMES) -> list[str]:
    """Return the end of a traceback: the innermost frames, and what was raised.

    Args:
        traceback: the text that Python prints.
        frames: how many frames to keep.
    """
    lines = traceback.rstrip().splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    return lines[begins[-frames] :] if len(begins) > frames else lines


def timestamp(seconds: float) -> str:
    """Local time with milliseconds."""
    moment = datetime.datetime.fromtimestamp(seconds)
    return moment.isoformat(sep=" ", timespec="milliseconds")


def advice(exception_type: str, message: str) -> tuple[str, str]:
    """Likely cause and change for an exception that a worker raised, when there is more to say."""
    text = f"{exception_type}: {message}".lower()
    for keys, cause, change in _ADVICE:
        if any(key in text for key in keys):
            return cause, change
    return "", "look at the lines below; the whole traceback and the worker's log are in files"


_ADVICE: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("connectionbroken",),
        "something between two nodes ended a connection: a network device, a firewall, a driver",
        "look at the network between the nodes (RLINF_COMM_NET_DEVICES chooses the interface); "
        "runner.max_restarts lets a run go on from its last checkpoint",
    ),
    (
        ("cuda out of memory", "outofmemoryerror"),
        "the GPU ran out of memory",
        "lower actor.micro_batch_size, turn on enable_offload, or place the components on more "
        "devices",
    ),
    (
        ("address already in use", "eaddrinuse"),
        "another process uses the port",
        "take ports from acquire_free_port() instead of fixed numbers",
    ),
    (
        ("no module named",),
        "a package is missing in the worker's environment",
        "install it on every node, or point env_configs.python_interpreter_path at the right "
        "interpreter",
    ),
    (
        ("no space left on device",),
        "a disk or /dev/shm is full",
        "free space there, or move runner.logger.log_path",
    ),
)
