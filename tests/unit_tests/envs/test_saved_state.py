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


@pytest.mark.parametrize("auto_reset", [True, False])
def test_without_the_simulator_new_episodes_begin_where_the_plan_was(walk, push, auto_reset):
    """Of an env that can neither repeat actions nor save its simulators."""
    one, whole, two = (walk(2, max_episode_steps=4, auto_reset=auto_reset) for _ in range(3))
    one.replays = two.replays = False
    for env in (one, whole):
        env.reset()
        env.chunk_step(push(chunk=4))
    one.chunk_step(push(chunk=2))
    state = one.get_state()
    assert state["not_saved"] == "walk cannot save the state of its simulators"
    assert two.set_state(pickle.loads(pickle.dumps(state))) == state["not_saved"]
    assert two.is_start and not two.has_work
    if auto_reset:
        # The uninterrupted env would have begun its third episode then.
        expected = whole.chunk_step(push(chunk=4))[0][-1]["states"]
    else:
        expected = whole.reset()[0]["states"]
    assert torch.equal(two.reset()[0]["states"], expected)
    assert two.has_work and not torch.equal(two.chunk_step(push())[1], torch.zeros(2, 1))


def test_an_env_that_does_not_do_the_same_again_begins_new_episodes(walk, push):
    one, two = walk(2), walk(2)
    one.reset()
    one.chunk_step(push(chunk=3))
    step = two.step_slot
    two.step_slot = lambda slot, action: step(slot, action * (1 + slot))
    said = two.set_state(one.get_state())
    assert said == (
        "walk does not do the same when actions are repeated ('states' differs in slots [1])"
    )
    assert two.is_start


def test_a_state_of_something_else_is_refused(walk):
    env = walk(2)
    env.reset()
    with pytest.raises(ValueError, match="has num_envs 2, this env has 3"):
        walk(3).set_state(env.get_state())
