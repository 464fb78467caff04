"""What went wrong while samples were scored, for the log of a reward worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf.utils.processes.pool import Outcome

FAILURES = {"timeout": "timeouts", "crash": "crashes", "error": "errors", "output": "floods"}
"""How a sample can fail to be scored, and what such samples are called."""


@dataclass
class RewardTally:
    """Counts of some scored samples.

    Attributes:
        groups: groups that were scored.
        counts: failures by what they are called.
        complaints: the first message of each kind of failure.
    """

    groups: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES.values(), 0))
    complaints: dict[str, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count one sample."""
        if outcome.status != "ok":
            name = FAILURES[outcome.status]
            self.counts[name] += 1
            self.complaints.setdefault(name, outcome.message)
