"""Gates: when the expert takes over, and their registry."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlinf.config import env_plugins
from rlinf.envs import ActionSpec, Device, DeviceReading, Expert, gates
from rlinf.envs.device import DeviceExpert
from rlinf.envs.gates import DeviationGate, ExpertGate, Gate, make_gate, register_gate

BOX = ActionSpec.box([-1, -1], [1, 3])
CFG = SimpleNamespace(gate_threshold=0.5, gate_release=0.2)


class Still(Expert):
    def act(self, obs, slots):
        return np.zeros((len(slots), self.action_spec.dim))


@pytest.fixture(autouse=True)
def fresh_gates(monkeypatch):
    monkeypatch.setattr(gates._gates, "_targets", dict(gates._gates._targets))
    monkeypatch.setitem(env_plugins._names, "gate", set(env_plugins._names["gate"]))


def test_the_expert_takes_over_from_a_far_policy_until_it_is_near():
    gate = make_gate("Deviation", CFG, BOX, expert=Still({}, BOX))
    assert type(gate) is DeviationGate
    label = np.zeros((5, 2))
    # Half of the second range is 2.
    own = np.array([[0.4, 0.0], [0.6, 0.0], [0.0, 0.9], [0.0, 1.1], [0.1, 0.1]])
    none = np.zeros(5, bool)
    assert gate.takes_over({}, own, label, none).tolist() == [False, True, False, True, False]
    assert gate.takes_over({}, own, label, ~none).tolist() == [True, True, True, True, False]


def test_another_choice_is_far():
    gate = DeviationGate(CFG, ActionSpec.choice([4, 4]), expert=Still({}, BOX))
    found = gate.takes_over({}, np.array([[1, 2], [1, 3]]), np.array([[1, 2], [1, 2]]), np.zeros(2))
    assert found.tolist() == [False, True]


def test_a_person_takes_over_by_touching_the_device():
    class Prepared(Device):
        def __init__(self):
            self.readings = [DeviceReading(), DeviceReading(np.ones(2))]

        def read(self):
            return self.readings.pop(0)

    person = DeviceExpert(Prepared(), {}, BOX)
    gate = make_gate("expert", CFG, BOX, expert=person)
    assert type(gate) is ExpertGate
    for expected in (False, True):
        label = person.act({}, [0])
        assert gate.takes_over({}, label, label, np.zeros(1, bool)).tolist() == [expected]


def test_a_project_registers_its_own():
    @register_gate("never")
    class Never(Gate):
        def takes_over(self, obs, own, label, active):
            return np.zeros(len(own), bool)

    assert type(make_gate("NEVER", CFG, BOX, expert=Still({}, BOX))) is Never
    with pytest.raises(ValueError, match="gate 'never' is already"):
        register_gate("never", ExpertGate)
    with pytest.raises(ValueError, match="known: deviation, expert, never"):
        make_gate("nevr", CFG, BOX, expert=Still({}, BOX))
    with pytest.raises(ValueError, match="takes_over"):
        register_gate("bad", type("Bad", (Gate,), {"takes_over": lambda self, obs: None}))
