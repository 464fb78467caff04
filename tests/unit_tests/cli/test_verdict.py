"""The sentence on the critical path names the phase with the largest share, if there is one."""

from __future__ import annotations

import pytest

from rlinf.cli.timeline.critical_path import critical_path
from rlinf.cli.timeline.lanes import load_timeline
from rlinf.cli.timeline.summary import summarise
from rlinf.cli.timeline.verdict import sentence, shares
from rlinf.scheduler.trace import BLOCK, CALL, STEP, WAIT, Recorder

PROCESSES = {"Env": 4, "Rollout": 1, "Actor": 2, "Mine": 1, "driver": 1}


def test_a_phase_is_more_than_its_largest_block():
    """The update is the largest block, but most of the time goes into rollouts."""
    path = {
        ("Actor", "training"): 35.0,
        ("Env", "env_step"): 30.0,
        ("Rollout", "predict"): 20.0,
        ("Env", "hand-over"): 5.0,
        ("Actor", "sync_weights"): 8.0,
        ("driver", "between calls"): 2.0,
    }
    assert shares(path) == {
        "rollout": pytest.approx(0.55),
        "update": pytest.approx(0.35),
        "weight sync": pytest.approx(0.08),
        "the driver": pytest.approx(0.02),
    }
    said = sentence(path, PROCESSES)
    assert said.startswith(
        "rollout is the limit: 55% of the critical path, mostly env_step of Env (4 processes) with "
        "30%: give env more processes"
    )


def test_no_phase_is_the_limit_unless_it_has_more_than_half():
    path = {
        ("Env", "env_step"): 40.0,
        ("Actor", "training"): 35.0,
        ("Actor", "sync_weights"): 24.5,
        ("driver", "between calls"): 0.5,
    }
    said = sentence(path, PROCESSES)
    assert said.startswith(
        "no single limit: rollout 40%, update 35%, weight sync 24% of the critical path; its "
        "largest part is env_step of Env (4 processes), 40%: "
    )
    assert "is the limit" not in said


def test_what_workers_of_ones_own_do_is_named_after_them():
    said = sentence({("Mine", "think"): 9.0, ("Actor", "training"): 1.0}, PROCESSES)
    assert said.startswith("Mine is the limit: 90% of the critical path, all of it think of Mine")


def test_the_path_goes_through_channels(tmp_path):
    """A step of ten seconds: the actor waits 6 s for what the rollout generates, then trains."""
    spans = {
        "driver.trace": [
            ("an item of channel 'verdicts'", WAIT, 0.01, 6.02),
            ("ActorGroup.run_training()", WAIT, 6.02, 10.0),
            ("step 1", STEP, 0.0, 10.0),
        ],
        "RolloutGroup/rank_0.trace": [("generate", BLOCK, 0.01, 6.0)],
        "RewardGroup/rank_0.trace": [("score", BLOCK, 6.0, 6.01)],
        "ActorGroup/rank_0.trace": [
            ("run_training", CALL, 0.01, 9.99),
            ("an item of channel 'rewarded'", WAIT, 0.02, 6.02),
            ("training", BLOCK, 6.02, 9.99),
        ],
    }
    for name, of_file in spans.items():
        recorder = Recorder(str(tmp_path / "workers" / name))
        for span in of_file:
            recorder.add(*span)
        recorder.close()
    timeline = load_timeline(tmp_path)
    path = critical_path(timeline, timeline.steps[0])
    long = [(link.lane, link.name, round(link.seconds)) for link in path if link.seconds > 0.1]
    assert long == [("RolloutGroup:0", "generate", 6), ("ActorGroup:0", "training", 4)]
    assert summarise(timeline).sentence.startswith("rollout is the limit: 60%")
