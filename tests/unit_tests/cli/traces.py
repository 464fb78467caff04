"""The traces of a made-up run, for tests that explain where its time went."""

from __future__ import annotations

from pathlib import Path

from rlinf.scheduler.trace import BLOCK, CALL, STEP, WAIT, Recorder

STEP_OF_TEN_SECONDS = {
    "driver.trace": [
        ("EnvGroup.interact()", WAIT, 0.01, 7.01),
        ("ActorGroup.run_training()", WAIT, 7.02, 10.0),
        ("step 1", STEP, 0.0, 10.0),
    ],
    "EnvGroup/rank_0.trace": [
        ("interact", CALL, 0.0, 7.0),
        ("env_step", BLOCK, 0.0, 3.0),
        ("a message from RolloutGroup:0 (actions)", WAIT, 3.0, 4.0),
        ("env_step", BLOCK, 4.0, 7.0),
    ],
    "RolloutGroup/rank_0.trace": [
        ("generate", CALL, 0.0, 7.0),
        ("a message from EnvGroup:0 (obs)", WAIT, 0.0, 3.0),
        ("predict", BLOCK, 3.0, 4.0),
        ("a message from EnvGroup:0 (obs)", WAIT, 4.0, 7.0),
    ],
    "ActorGroup/rank_0.trace": [
        ("run_training", CALL, 7.03, 9.99),
        ("training", BLOCK, 7.03, 9.99),
    ],
}
"""Env steps for 6 s, asks the policy for 1 s; then 3 s of training."""


def write_traces(folder: Path, steps: int = 1, begin: float = 0.0, first: int = 1) -> None:
    """Writes some such steps, one after the other, as one start of the run."""
    for name, spans in STEP_OF_TEN_SECONDS.items():
        recorder = Recorder(str(folder / "workers" / name))
        for step in range(steps):
            shift = begin + 10.0 * step
            for what, kind, since, until in spans:
                what = f"step {first + step}" if kind == STEP else what
                recorder.add(what, kind, since + shift, until + shift)
        recorder.close()
