"""What rewards were given and what went wrong: sums that add up over workers and calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf.data.reasoning import Sample
from rlinf.utils.processes.pool import Outcome

FAILURES = {"timeout": "timeouts", "crash": "crashes", "error": "errors", "output": "floods"}
"""How a sample can fail to be scored, and the metric that counts it."""


@dataclass
class RewardTally:
    """Counts of some scored samples.

    Attributes:
        groups: groups that were scored.
        counts: failures by metric name.
        means: sum and number of values, by metric name.
        longest: seconds of the sample that took longest.
        complaints: the first message of each kind of failure.
    """

    groups: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES.values(), 0))
    means: dict[str, tuple[float, int]] = field(default_factory=dict)
    longest: float = 0.0
    complaints: dict[str, str] = field(default_factory=dict)

    def add(self, task: str, sample: Sample, outcome: Outcome) -> None:
        """Count one sample; `sample` has its reward already."""
        self._mean("reward", sample.reward or 0.0)
        self._mean("score", sample.reward_info["score"])
        self._mean(f"score/{task}", sample.reward_info["score"])
        self._mean("seconds", outcome.seconds)
        self.longest = max(self.longest, outcome.seconds)
        if "overlong" in sample.reward_info:
            self._mean("overlong", sample.reward_info["overlong"])
        if outcome.status == "ok":
            for name, value in outcome.value["info"].items():
                self._mean(name, value)
        else:
            name = FAILURES[outcome.status]
            self.counts[name] += 1
            self.complaints.setdefault(name, outcome.message)

    def metrics(self) -> dict[str, float]:
        """Return numbers to log, each under `reward/`."""
        values: dict[str, float] = dict(self.counts)
        values |= {name: total / count for name, (total, count) in self.means.items()}
        values |= {"groups": self.groups, "seconds_max": self.longest}
        return {f"reward/{name}": float(value) for name, value in values.items()}

    def _mean(self, name: str, value: float) -> None:
        total, count = self.means.get(name, (0.0, 0))
        self.means[name] = total + value, count + 1
