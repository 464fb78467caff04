"""Sessions that have their reward, one JSON object a line: exact tokens, turns, reward."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlinf.agents.serving.sessions import RewardedSession


class SessionFile:
    """Appends sessions to a file that only its user can read.

    Args:
        path: The file; it is made with the first session.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, session: RewardedSession) -> None:
        """Append a session."""
        line = json.dumps(facts_of(session), separators=(",", ":")) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(self._path, flags, 0o600), "w") as file:
            file.write(line)


def facts_of(session: RewardedSession) -> dict[str, Any]:
    """Return a session as plain data."""
    trajectory = session.trajectory
    return {
        "session": session.name,
        "reward": session.reward,
        "answer": trajectory.answer,
        "turns": [asdict(turn) for turn in trajectory.turns],
        "drawn": [{"turn": call.turn, **(call.drawn or {})} for call in trajectory.calls],
        "sequences": [asdict(sequence) for sequence in trajectory.sequences()],
    }
