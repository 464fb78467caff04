"""Counts of what went wrong."""

from rlinf.utils.processes.pool import Outcome
from rlinf.workers.reward.tally import RewardTally


def test_every_failure_is_counted_and_the_first_message_kept():
    tally = RewardTally()
    for number, status in enumerate(["ok", "timeout", "crash", "timeout", "error", "output"]):
        tally.add(Outcome(status, message=f"message {number}"))
    assert tally.counts == {"timeouts": 2, "crashes": 1, "errors": 1, "floods": 1}
    assert tally.complaints["timeouts"] == "message 1" and len(tally.complaints) == 4
