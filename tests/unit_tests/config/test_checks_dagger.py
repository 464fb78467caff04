"""What a user of experts sees when a name is not registered, or keys do not fit one another."""

import copy

import pytest

from rlinf.config import env_plugins, validate_cfg

DAGGER = {
    "algorithm": {"adv_type": "embodied_sac", "loss_type": "embodied_dagger"},
    "actor.global_batch_size": 256,
    "actor.micro_batch_size": ...,
    "actor.model": {"model_type": "mlp_policy"},
}
# Changes to a valid config, and what the message must contain.
WRONG = {
    "a gate that does not exist": (
        {"algorithm.dagger": {"gate": "deviatoin"}},
        'algorithm.dagger.gate = "deviatoin"',
        "no gate is registered under this name; known: deviation, expert",
        "did you mean 'deviation'?",
        "register_gate in a module that",
    ),
    "an expert that does not exist": (
        {"algorithm.dagger": {"expert": "oracle"}},
        'algorithm.dagger.expert = "oracle"',
        "no expert is registered for env type metaworld under this name; known: random, scripted",
        "register_expert in a module that",
    ),
    "an expert of another env type": (
        {"env.train": {"env_type": "gymnasium", "id": "Pendulum-v1"}},
        'algorithm.dagger.expert = "scripted"',
        "no expert is registered for env type gymnasium under this name; known: random",
    ),
    "nobody to collect with": (
        {"collect": {"policy": "scriptd", "save_dir": "demos"}},
        'collect.policy = "scriptd"',
        "did you mean 'scripted'?",
    ),
    "a gate with nobody behind it": (
        {"algorithm.dagger": {"expert": None, "gate": "deviation", "only_save_expert": True}},
        "has nobody to hand over to: algorithm.dagger.expert is null",
    ),
    "handing back further away than taking over": (
        {"algorithm.dagger": {"gate_threshold": 0.2, "gate_release": 0.3}},
        "must not exceed gate_threshold, 0.2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(embodied, change, complaint, name):
    changes, *expected = WRONG[name]
    said = complaint(change(change(embodied, copy.deepcopy(DAGGER)), changes))
    for text in expected:
        assert text in said


def test_names_that_are_registered_and_folders_are_accepted(embodied, change, monkeypatch):
    monkeypatch.setattr(env_plugins, "_names", {k: set(v) for k, v in env_plugins._names.items()})
    env_plugins.register_name("expert", "Joystick", env_type="MetaWorld")
    env_plugins.register_name("gate", "edge")
    own = {"algorithm.dagger": {"expert": "joystick", "gate": "Edge"}}
    change(embodied, copy.deepcopy(DAGGER))
    validate_cfg(change(embodied, own))
    folder = {"algorithm.dagger": {"expert": "logs/teacher"}, "collect": {"policy": "logs/teacher"}}
    cfg = validate_cfg(change(embodied, folder))
    assert cfg.algorithm.dagger.expert == "logs/teacher"
