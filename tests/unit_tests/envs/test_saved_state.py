"""A saved state goes on exactly, in another env and another process."""

import pickle

import pytest
import torch


@pytest.mark.parametrize("auto_reset", [True, False])
def test_a_saved_state_goes_on_exactly(walk, as_saved, auto_reset):
    cfg = {"seed": 3, "terminates": True, "max_episode_steps": 9, "auto_reset": auto_reset}
    one, two = walk(4, group_size=2, **cfg), walk(4, group_size=2, **cfg)
    generator = torch.Generator().manual_seed(0)
    draws = [torch.rand(4, 3, 2, generator=generator) * 2 - 0.5 for _ in range(20)]
    one.reset()
    for actions in draws[:7]:
        one.chunk_step(actions)
    state = pickle.loads(pickle.dumps(one.get_state()))
    two.set_state(state)
    assert torch.equal(one.last_obs["states"], two.last_obs["states"])
    for rounds, actions in enumerate(draws[7:]):
        if not auto_reset and rounds == 6:
            assert torch.equal(one.reset()[0]["states"], two.reset()[0]["states"])
        a, b = one.chunk_step(actions), two.chunk_step(actions)
        assert all(torch.equal(a[index], b[index]) for index in (1, 2, 3))
        assert torch.equal(a[0][-1]["states"], b[0][-1]["states"])
        assert a[0][-1]["task_descriptions"] == b[0][-1]["task_descriptions"]
        assert ("episode" in a[-1][-1]) == ("episode" in b[-1][-1])
        if "episode" in a[-1][-1]:
            for key, value in a[-1][-1]["episode"].items():
                assert torch.equal(value, b[-1][-1]["episode"][key])
        assert as_saved(one) == as_saved(two), "all of it, not only what is seen"


def test_a_state_can_be_saved_twice_in_a_row(walk, push):
    one, two, three = walk(2), walk(2), walk(2)
    one.reset()
    one.chunk_step(push(chunk=4, amount=0.5))
    two.set_state(one.get_state())
    two.chunk_step(push(chunk=3, amount=0.25))
    three.set_state(two.get_state())
    assert torch.equal(three.last_obs["states"], two.last_obs["states"])
    actions = push(chunk=2)
    assert torch.equal(
        two.chunk_step(actions)[0][-1]["states"], three.chunk_step(actions)[0][-1]["states"]
    )


def test_a_long_run_keeps_only_what_it_needs(walk, push):
    env = walk(2, max_episode_steps=100)
    env.reset()
    for _ in range(40):
        env.chunk_step(push(chunk=50, amount=0.0))
    assert len(env._history) < 1000


def test_a_state_of_something_else_is_refused(walk):
    env = walk(2)
    env.reset()
    with pytest.raises(ValueError, match="has num_envs 2, this env has 3"):
        walk(3).set_state(env.get_state())
