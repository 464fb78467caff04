"""Which learner a run has."""

import pytest

from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.registry import learner_of, learner_registry, register_learner
from rlinf.workers.actor.rollout_learner import RolloutLearner
from tests.unit_tests.workers.actor.learning import make_cfg


class Own(RolloutLearner):
    def __init__(self, cfg, model, place):
        super().__init__(cfg, place)

    def prepare(self, batch, env_ids):
        return {}

    def update(self):
        return {}


def test_a_policy_loss_has_the_learner_of_its_task():
    assert learner_of(make_cfg()) is EmbodiedLearner
    assert not EmbodiedLearner.rollout_needs(make_cfg()).final_observations


def test_a_registered_learner_is_found_by_loss_type_and_known_to_the_config():
    register_learner("own_learner")(Own)
    assert learner_of(make_cfg({"algorithm.loss_type": "own_learner"})) is Own
    with pytest.raises(ValueError, match="registered already"):
        register_learner("own_learner")(type("Other", (Own,), {}))
    assert "own_learner" in learner_registry


def test_a_checkpoint_of_another_learner_is_refused():
    with pytest.raises(ValueError, match="return_scale of another learner, which Own"):
        Own.load_own_state(object.__new__(Own), {"return_scale": 1}, True)
