"""Prompts of each model, their tokens and padding, and states in bins."""

import numpy as np
import pytest
import torch

from rlinf.models.embodiment.flow_vla.prompts import (
    PI05_WORDS,
    Prompts,
    pi0_prompt,
    pi05_prompt,
    smolvla_prompt,
    state_bins,
)
from rlinf.models.embodiment.openvla.prompts import word_tokenizer
from tests.unit_tests.models.flow_vla.policies import make
from tests.unit_tests.models.openvla.policies import observe


def test_how_prompts_are_written():
    assert smolvla_prompt("open it") == smolvla_prompt("open it\n") == "open it\n"
    assert pi0_prompt(" open_the\ndoor ") == pi05_prompt(" open_the\ndoor ") == "open the door\n"
    told = "Task: open the door, State: 0 255 -1;\nAction: "
    assert pi05_prompt("open_the door", [0, 255, -1]) == told


def test_bins_of_a_state_are_those_of_numpy():
    edges = np.linspace(-1, 1, 257)
    states = np.concatenate([edges, np.random.RandomState(0).uniform(-1.5, 1.5, 500)])
    states = states.astype(np.float32)
    expected = np.digitize(states, edges[:-1]) - 1
    assert np.array_equal(state_bins(torch.tensor(states)).numpy(), expected)
    assert expected.min() == -1 and expected.max() == 255


def test_tokens_are_padded_on_the_right():
    tokenizer = word_tokenizer(["open", "it"])
    assert Prompts(tokenizer, smolvla_prompt, 4)(["open it", "it"]).tolist() == [
        [3, 4, 0, 0],
        [4, 0, 0, 0],
    ]
    assert Prompts(tokenizer, pi0_prompt, 4, begins=True)(["open it"]).tolist() == [[1, 3, 4, 0]]


def test_a_state_is_written_into_the_prompt():
    words = ["open", "it", *PI05_WORDS]
    prompts = Prompts(word_tokenizer(words), pi05_prompt, 16, begins=True)
    ids = prompts(["open it"], torch.tensor([[-1.0, 1.0, -2.0]]))[0]
    read = prompts.tokenizer.convert_ids_to_tokens(ids)
    said = "<s> task : open it , state : 0 255 - 1 ; action : <pad>"
    assert read == said.split()


@pytest.mark.parametrize("told", [True, False])
def test_pi05_sees_the_normalised_state_in_its_prompt_or_not_at_all(told):
    policy = make("pi05", discrete_state_input=told)
    obs = observe(cameras=2)
    policy.update_normalizer({"states": torch.randn(100, 5) * 4 + 2})
    ids = policy.policy_inputs(obs)["input_ids"]
    other = policy.policy_inputs(obs | {"states": obs["states"] + 3})["input_ids"]
    assert torch.equal(ids, other) is not told
    noise = torch.randn(4, policy.noise_width)
    one, two = (
        policy.predict_action_batch(obs | {"states": states}, noise=noise)[0]
        for states in (obs["states"], obs["states"] + 3)
    )
    assert torch.equal(one, two) is not told
