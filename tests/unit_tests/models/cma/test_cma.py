"""The recurrent cross-modal policy: what it remembers, and what it computes again."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from rlinf.models import get_model
from rlinf.models.embodiment.check_policy import check_policy
from rlinf.models.embodiment.cma.network import Attention, unroll
from rlinf.models.embodiment.cma.words import WordEncoder
from rlinf.utils.env_spec import EnvSpec

SPEC = EnvSpec(action_choices=(4,), image_shape=(16, 16, 3))
WORDS = ["go", "to", "the", "red", "blue", "ball", "box"]
KEYS = {
    "model_type": "cma",
    "words": WORDS,
    "max_words": 6,
    "word_dim": 8,
    "image_size": 16,
    "channels": [8, 8],
    "rnn_size": 12,
    "attention_dim": 10,
    "hidden_sizes": [16],
    "sequence_length": 4,
    "add_value_head": True,
}
STEPS, ENVS = 6, 5


@pytest.fixture
def policy():
    torch.manual_seed(0)
    policy = get_model(KEYS, SPEC)
    # Larger than at the start, so that what is remembered makes a difference.
    nn.init.normal_(policy.policy_head.head.weight, std=1.0)
    return policy


def observe(seed, envs=ENVS):
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randint(0, 256, (envs, 16, 16, 3), generator=generator, dtype=torch.uint8)
    texts = [f"go to the {['red', 'blue'][env % 2]} ball" for env in range(envs)]
    return {"main_images": pictures, "task_descriptions": texts}


def play(policy, begins, memory):
    """Act step by step; return what the policy gave in each."""
    results = []
    for step, begin in enumerate(begins):
        _, result = policy.predict_action_batch(observe(step), memory=memory, begins=begin)
        memory = result["memory"]
        results.append(result)
    return results


def joined(results):
    names = results[0]["forward_inputs"]
    return {name: torch.cat([r["forward_inputs"][name] for r in results]) for name in names}


def test_the_contract_is_kept(policy):
    assert policy.memory_width == 24 and policy.sequence_length == 4
    assert check_policy(policy, observe(0)) == []


def test_a_sequence_computed_again_is_what_was_done_step_by_step(policy):
    begins = torch.rand(STEPS, ENVS, generator=torch.Generator().manual_seed(2)) < 0.3
    results = play(policy, begins, torch.randn(ENVS, 24))
    inputs = joined(results)
    # Only the memory before the first step counts: the rest is computed again.
    inputs["memory"][ENVS:] = math.nan
    out = policy(forward_inputs=inputs, compute_entropy=True, compute_values=True, steps=STEPS)
    for name, before in (("logprobs", "prev_logprobs"), ("values", "prev_values")):
        expected = torch.cat([r[before] for r in results])
        torch.testing.assert_close(out[name], expected, rtol=1e-5, atol=1e-6)
    assert out["entropy"].shape == (STEPS * ENVS, 1)


def test_nothing_is_remembered_where_an_episode_begins(policy):
    obs, old = observe(0), torch.randn(ENVS, 24)
    begins = torch.tensor([True, False, True, False, False])
    fresh = policy.predict_action_batch(obs)[1]
    mixed = policy.predict_action_batch(obs, memory=old, begins=begins)[1]
    kept = policy.predict_action_batch(obs, memory=old, begins=torch.zeros_like(begins))[1]
    for name in ("memory", "prev_values"):
        torch.testing.assert_close(mixed[name][begins], fresh[name][begins])
        torch.testing.assert_close(mixed[name][~begins], kept[name][~begins])
        assert not torch.allclose(fresh[name], kept[name], atol=1e-3)
    values = policy.predict_values(obs, memory=old, begins=begins)
    torch.testing.assert_close(values, mixed["prev_values"])


def test_a_gradient_goes_back_through_steps_but_not_into_another_episode(policy):
    begins = torch.zeros(3, 2, dtype=torch.bool)
    begins[2, 1] = True
    inputs = {
        "words": policy.words(["go to the red ball"] * 2).repeat(3, 1),
        "memory": torch.zeros(6, 24, requires_grad=True),
        "begins": begins.flatten(),
        "main_images": torch.cat([observe(step, 2)["main_images"] for step in range(3)]),
        "action": torch.zeros(6, 1, dtype=torch.long),
    }
    values = policy(forward_inputs=inputs, compute_values=True, steps=3)["values"]
    (gradient,) = torch.autograd.grad(values.view(3, 2)[2].sum(), inputs["memory"])
    assert gradient[0].abs().max() > 0 and not gradient[1:].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-6), (torch.bfloat16, 3e-2)])
def test_a_sharded_policy_recomputes_the_same(policy, dtype, tolerance):
    results = play(policy, torch.zeros(STEPS, ENVS, dtype=torch.bool), torch.zeros(ENVS, 24))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        precision = MixedPrecisionPolicy(param_dtype=dtype, cast_forward_inputs=False)
        for module in policy.modules():
            if type(module).__name__ in policy._no_split_modules:
                fully_shard(module, mesh=mesh, mp_policy=precision)
        fully_shard(policy, mesh=mesh, mp_policy=precision)
        out = policy(forward_inputs=joined(results), compute_values=True, steps=STEPS)
        expected = torch.cat([r["prev_values"] for r in results])
        torch.testing.assert_close(out["values"], expected, atol=tolerance, rtol=0)
        (out["logprobs"].sum() + out["values"].sum()).backward()
        assert all(parameter.grad is not None for parameter in policy.parameters())
    finally:
        dist.destroy_process_group()


def test_the_instruction_decides(policy):
    obs = observe(0)
    other = {**obs, "task_descriptions": ["go to the red box"] * ENVS}
    one, two = (policy.predict_action_batch(o, mode="eval")[1]["prev_values"] for o in (obs, other))
    assert not torch.allclose(one, two, atol=1e-5)


def test_padding_does_not_count(policy):
    longer = get_model({**KEYS, "max_words": 11}, SPEC)
    longer.load_state_dict(policy.state_dict())
    one, two = (p.predict_action_batch(observe(0), mode="eval")[1] for p in (policy, longer))
    torch.testing.assert_close(one["memory"], two["memory"])


@torch.no_grad()
def test_attention_is_a_weighted_mean():
    torch.manual_seed(0)
    attention = Attention(3, 4, 5)
    asking, content = torch.randn(2, 3), torch.randn(2, 6, 4)
    mask = torch.tensor([[True] * 6, [True, True, False, True, False, False]])
    found = attention(asking, content, mask)
    for row in range(2):
        query = attention.query(asking[row])
        scores = {k: float(attention.key(content[row, k]) @ query) / math.sqrt(5) for k in range(6)}
        total = sum(math.exp(s) for k, s in scores.items() if mask[row, k])
        expected = sum(
            math.exp(s) / total * attention.value(content[row, k])
            for k, s in scores.items()
            if mask[row, k]
        )
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-6)


def test_sequences_go_through_a_gru_as_single_steps_do():
    torch.manual_seed(0)
    cell, inputs, first = nn.GRUCell(3, 4), torch.randn(5 * 2, 3), torch.randn(2, 4)
    begins = torch.rand(5, 2, 1) < 0.4
    found = unroll(cell, inputs, first, begins).view(5, 2, 4)
    for env in range(2):
        state = first[env]
        for step in range(5):
            state = torch.zeros(4) if begins[step, env] else state
            state = cell(inputs.view(5, 2, 3)[step, env], state)
            torch.testing.assert_close(found[step, env], state)


def test_words_are_numbered_and_padded():
    encode = WordEncoder(WORDS, 6)
    assert encode(["Go to the red ball.", "box"]).tolist() == [
        [1, 2, 3, 4, 6, 0],
        [7, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["go to the green ball"], "the word(s) green, which model.words does not list"),
        (["go to the red ball to the red ball"], "has 9 words; it must have 1 to 6"),
        ([""], "has 0 words"),
        (None, "reads 'task_descriptions', which the observations do not have"),
    ],
)
def test_instructions_that_cannot_be_read(texts, said):
    with pytest.raises(ValueError) as error:
        WordEncoder(WORDS, 6)(texts)
    assert said in str(error.value)


def test_words_are_listed_once():
    with pytest.raises(ValueError, match="has go more than once"):
        WordEncoder(["go", "Go"], 3)
