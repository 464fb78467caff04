"""An expert beside the policy: who acts, what is labelled, and what is remembered."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf.config import env_plugins
from rlinf.envs import ActionSpec, Expert, experts, make_expert, register_expert
from rlinf.workers.env.stage_experts import StageExperts
from rlinf.workers.env.supervision import Supervision
from rlinf.workers.env.trajectory_recorder import TrajectoryRecorder

BOX = ActionSpec.box([-1, -1], [1, 1])
BASE = {
    "expert": "doubling",
    "init_beta": 0.5,
    "beta_schedule": "constant",
    "beta_decay": 0.5,
    "beta_min": 0.0,
    "beta_unit": "step",
    "only_save_expert": False,
    "gate": None,
    "gate_threshold": 0.5,
    "gate_release": 0.2,
}
ENV = {"env_type": "walk", "total_num_envs": 64, "seed": None}


class Doubling(Expert):
    """Acts beyond the bounds."""

    begun: list

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.begun = []

    def begin(self, slots, episodes):
        self.begun += zip(slots, episodes, strict=True)

    def act(self, obs, slots):
        return 2.0 * np.asarray(obs["states"])[list(slots)]


class Section(SimpleNamespace):
    def __getitem__(self, key):
        return getattr(self, key)

    def __contains__(self, key):
        return hasattr(self, key)


@pytest.fixture(autouse=True)
def expert(monkeypatch):
    monkeypatch.setattr(experts._experts, "_targets", dict(experts._experts._targets))
    monkeypatch.setitem(env_plugins._names, "expert", set(env_plugins._names["expert"]))
    register_expert("doubling", Doubling)


def make(ids=range(64), **changes):
    dagger = Section(**{**BASE, **changes})
    expert = make_expert(dagger.expert, Section(**ENV), BOX, num_envs=len(ids))
    return Supervision(dagger, expert, BOX, list(ids), ENV["total_num_envs"], 7)


def play(supervision, steps, first=0, ends=None, count=64):
    """Return where the expert acted, `[T, B]`."""
    seen = []
    for step in range(first, first + steps):
        states = torch.linspace(-1, 1, 2 * count).reshape(count, 2)
        decision = supervision.decide({"states": states}, torch.zeros(count, 1, 2), step)
        seen.append(decision.by_expert)
        ended = torch.zeros(count, dtype=torch.bool) if ends is None else ends(step)
        supervision.note_ends(ended, True)
    return torch.stack(seen)


def test_labels_are_what_the_env_would_carry_out():
    own = make(init_beta=0.5)
    own.begin_rollout(0)
    states = torch.linspace(-1, 1, 128).reshape(64, 2)
    actions = torch.full((64, 1, 2), 0.25)
    decision = own.decide({"states": states}, actions, 0)
    expected = (2 * states).clamp(-1, 1)[:, None]
    assert torch.equal(decision.labels, expected)
    by = decision.by_expert
    assert torch.equal(decision.actions[by], expected[by])
    assert torch.equal(decision.actions[~by], actions[~by])
    assert 0 < int(by.sum()) < 64


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_expert_acts_with_probability_beta(beta):
    own = make(init_beta=beta)
    own.begin_rollout(0)
    share = float(play(own, 40).float().mean())
    assert share == (beta if beta in (0.0, 1.0) else pytest.approx(beta, abs=0.04))


def test_beta_follows_the_rollouts():
    own = make(init_beta=1.0, beta_schedule="exponential", beta_decay=0.0)
    for number, expected in ((0, 1.0), (1, 0.0)):
        own.begin_rollout(number)
        assert float(play(own, 3, 3 * number).float().mean()) == expected


def test_an_episode_has_one_that_acts():
    own = make(beta_unit="episode")
    own.begin_rollout(0)

    def ends(step):
        return torch.full((64,), step % 5 == 4)

    by = play(own, 10, ends=ends)
    for episode in (by[:5], by[5:]):
        assert bool((episode == episode[0]).all()) and 0 < int(episode[0].sum()) < 64
    assert not torch.equal(by[0], by[5])


def test_who_acts_does_not_depend_on_how_envs_are_spread():
    own = make()
    own.begin_rollout(0)
    whole = play(own, 6)
    parts = []
    for ids in (range(0, 32), range(32, 64)):
        part = make(ids)
        part.begin_rollout(0)
        parts.append(play(part, 6, count=32))
    assert torch.equal(torch.cat(parts, 1), whole)


def test_the_gate_lets_the_expert_take_over():
    own = make(init_beta=0.0, gate="deviation")
    own.begin_rollout(0)
    states = torch.zeros(64, 2)
    states[:3, 0] = torch.tensor([0.2, 0.15, 0.4])
    by = own.decide({"states": states}, torch.zeros(64, 1, 2), 0).by_expert
    assert by[:3].tolist() == [False, False, True]
    # It holds on where it acted, and not where an episode begins.
    states[:3, 0] = 0.15
    own.note_ends(torch.zeros(64, dtype=torch.bool), True)
    assert own.decide({"states": states}, torch.zeros(64, 1, 2), 1).by_expert[2]
    own.note_ends(torch.ones(64, dtype=torch.bool), True)
    assert not own.decide({"states": states}, torch.zeros(64, 1, 2), 2).by_expert.any()


def test_the_expert_is_told_of_episodes():
    own = make([4, 9])
    own.begin_rollout(0)
    play(own, 3, ends=lambda step: torch.tensor([step == 1, False]), count=2)
    assert own._expert.begun == [(0, 4), (1, 9), (0, 4 + 64)]


@pytest.mark.parametrize("unit", ["step", "episode"])
def test_it_goes_on_exactly(unit):
    def ends(step):
        return torch.arange(64) % 7 == step % 7

    changes = {"beta_unit": unit, "gate": "deviation"}
    whole, first, second = make(**changes), make(**changes), make(**changes)
    for each in (whole, first, second):
        each.begin_rollout(0)
    expected = play(whole, 12, ends=ends)[6:]
    play(first, 6, ends=ends)
    second.load_state(first.state())
    assert torch.equal(play(second, 6, 6, ends=ends), expected)
    assert second.state() == whole.state()


def make_stages(changes=None, envs=2):
    cfg = Section(
        algorithm=Section(dagger=Section(**{**BASE, **(changes or {})})),
        env=Section(train=Section(**ENV)),
        runner=Section(seed=7),
    )
    env = SimpleNamespace(cfg=ENV, action_spec=BOX, num_envs=16, expert_obs=lambda obs: obs)
    return StageExperts.of(cfg, [env] * envs, 1, 2)


def test_stages_have_an_expert_each_and_count_rollouts():
    stages = make_stages()
    obs, actions = {"states": torch.zeros(16, 2)}, torch.zeros(16, 1, 2)
    seen = {}
    for rollout in range(2):
        stages.begin_rollout(epochs=2, chunks=3)
        for epoch in range(2):
            for chunk in range(3):
                for stage in range(2):
                    key = rollout, epoch, chunk, stage
                    seen[key] = stages.decide(stage, obs, actions, epoch, chunk).by_expert
        stages.end_rollout()
    ids = [list(range(32, 48)), list(range(48, 64))]
    for (rollout, epoch, chunk, stage), by in seen.items():
        own = make(ids[stage])
        own.begin_rollout(0)
        step = (rollout * 2 + epoch) * 3 + chunk
        assert torch.equal(own.decide(obs, actions, step).by_expert, by)
    assert stages.state()["rollouts"] == 2
    # A rollout that is played again has the draws of its first try.
    stages.begin_rollout(2, 3)
    again = stages.decide(0, obs, actions, 0, 0).by_expert
    stages.begin_rollout(2, 3)
    assert torch.equal(stages.decide(0, obs, actions, 0, 0).by_expert, again)


def test_nobody_is_asked_where_nobody_needs_labels():
    for stages in (make_stages({"expert": None}), make_stages(envs=0)):
        stages.begin_rollout(1, 2)
        assert stages.decide(0, {}, torch.zeros(4, 1, 2), 0, 0) is None
        assert stages.state() == {"rollouts": 0, "stages": []}


def test_the_record_has_labels_and_interventions():
    own = make(range(3), init_beta=0.0)
    own.begin_rollout(0)
    states = torch.tensor([[0.1, 0.2], [0.3, -0.1], [0.4, 0.4]])
    decision = own.decide({"states": states}, torch.zeros(3, 1, 2), 0)
    never, info = torch.zeros(3, 1, dtype=torch.bool), {"_valid": torch.ones(3, dtype=torch.bool)}
    info |= {
        "intervene_flag": torch.tensor([False, True, False]),
        "intervene_action": torch.full((3, 2), -0.7),
    }
    recorder = TrajectoryRecorder(begins=True)
    recorder.add(decision.actions, torch.ones(3, 1), never, never, [info], True, decision)
    record = recorder.finish()
    assert record.intervened[0, :, 0].tolist() == [False, True, False]
    torch.testing.assert_close(record.labels[0, 0, 0], torch.tensor([0.2, 0.4]))
    # Whoever intervened in the env knew better than the expert.
    torch.testing.assert_close(record.labels[0, 1, 0], torch.tensor([-0.7, -0.7]))
    torch.testing.assert_close(record.actions[0, 2, 0], torch.zeros(2))
