"""What a policy remembers while it acts, in rollouts and in evaluations."""

import pytest
import torch

from rlinf.data.embodied_messages import BEGINS, EPISODES, pack_observations
from rlinf.workers.env.policy_expert import PolicyExpert
from rlinf.workers.rollout.policy_memory import PolicyMemory
from rlinf.workers.rollout.rollout_policy import RolloutPolicy
from tests.unit_tests.models.cma.test_cma import KEYS, SPEC, observe
from tests.unit_tests.models.cma.test_cma import policy as policy  # a fixture

CPU = torch.device("cpu")


class Forgetful:
    """A policy without memory."""

    memory_width = 0


def test_a_policy_without_memory_is_told_nothing():
    memory = PolicyMemory(Forgetful(), [3], CPU)
    memory.begin(0, torch.ones(3, dtype=torch.bool))
    memory.keep(0, {})
    memory.note([1, 2])
    assert memory.arguments(0) == memory.at_ends(0, torch.tensor([1])) == {}
    assert memory.recall([1, 2], None) == {} and memory.get_state() == []
    assert memory.set_state([])


def test_stages_remember_apart(policy):
    memory = PolicyMemory(policy, [2, 3], CPU)
    assert memory.arguments(1)["begins"].all() and not memory.arguments(1)["memory"].any()
    memory.keep(1, {"memory": torch.ones(3, policy.memory_width)})
    assert not memory.arguments(1)["begins"].any() and memory.arguments(0)["begins"].all()
    memory.begin(1, torch.tensor([False, True, False]))
    told = memory.arguments(1)
    assert told["begins"].tolist() == [False, True, False] and told["memory"].all()
    ended = memory.at_ends(1, torch.tensor([1]))
    assert ended["memory"].shape == (1, policy.memory_width) and not ended["begins"].any()


def test_an_evaluation_remembers_by_episode(policy):
    """Slots change, episodes end and begin, one is played again: each has its own memory."""
    acting = RolloutPolicy(policy, CPU, [], seed=0)
    plan = [
        ([3, 11, -1], [True, True, True]),
        ([3, 11, -1], [False, False, False]),
        ([-1, 3, 11], [False, False, False]),
        ([7, 3, 11], [True, False, True]),
        ([7, 3, 11], [False, False, False]),
    ]
    alone: dict[int, torch.Tensor] = {}
    with acting.evaluating():
        for step, (episodes, begins) in enumerate(plan):
            obs = observe(step, 3)
            message = pack_observations(obs, begins=torch.tensor(begins))
            message[EPISODES] = torch.tensor(episodes)
            actions = acting.evaluate(message, [0, 1, 2], step)
            for slot, number in enumerate(episodes):
                if number < 0:
                    assert not actions[slot].any()
                    continue
                own = {key: value[slot : slot + 1] for key, value in obs.items()}
                before = None if begins[slot] else alone[number]
                told = {} if before is None else {"begins": torch.zeros(1, dtype=torch.bool)}
                action, result = policy.predict_action_batch(own, "eval", memory=before, **told)
                alone[number] = result["memory"]
                assert torch.equal(action[0], actions[slot]), (step, number)
                found = acting.memory.recall([number], torch.tensor([False]))["memory"]
                torch.testing.assert_close(found, alone[number])
    with acting.evaluating():
        assert not acting.memory.recall([3, 7], torch.zeros(2))["memory"].any()


def test_the_first_message_of_an_epoch_says_where_episodes_begin(policy):
    acting = RolloutPolicy(policy, CPU, [range(2)], seed=0)
    acting.begin_rollout(1)
    for begins in ([True, True], [False, True]):
        acting.begin_epoch()
        message = pack_observations(observe(0, 2), begins=torch.tensor(begins))
        assert message[BEGINS].tolist() == begins
        acting.act(0, message, 0, 0, 0)
        record = acting.finish(0, pack_observations(observe(1, 2)), 1)
        assert record.forward_inputs["begins"].tolist() == [begins]


def test_a_policy_that_remembers_cannot_be_an_expert(monkeypatch, tmp_path):
    module = "rlinf.workers.env.policy_expert"
    monkeypatch.setattr(f"{module}._find_policy", lambda folder: (KEYS, tmp_path))
    monkeypatch.setattr(f"{module}.describe_envs", lambda *envs: SPEC)
    with pytest.raises(ValueError, match="it remembers what it saw, which experts cannot"):
        PolicyExpert.load(str(tmp_path), None, sample=False, seed=0)
