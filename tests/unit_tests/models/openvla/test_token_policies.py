"""Token policies: likelihoods against slow references, masks, temperature, caches, learning."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig

from rlinf.models.embodiment.check_policy import check_policy
from tests.unit_tests.models.openvla.policies import SPEC, TEXTS, TOWERS, make, observe

KINDS = ["openvla_oft", "openvla"]


def with_pictures(kind, **keys):
    return make(kind, vision_towers=TOWERS, num_images_in_input=2, **keys)


def slow_logits(policy, inputs, row, action):
    """Logits of all tokens of the vocabulary, of one sequence without padding.

    Only embeddings and decoder layers are the policy's: mask and positions are made here.
    """
    network, prompts = policy.network, policy.prompts
    llama = network.language_model.model
    ids = [token for token in inputs["input_ids"][row].tolist() if token != prompts.pad]
    embed = lambda token: llama.embed_tokens(torch.tensor([token]))  # noqa: E731
    parts = [embed(prompts.bos)]
    if "images" in inputs:
        parts.append(network.projector(network.vision_backbone(inputs["images"][row : row + 1]))[0])
    parts.append(network.proprio_projector(policy.normalizer(inputs["states"][row : row + 1])))
    parts += [embed(token) for token in ids]
    first = sum(map(len, parts)) - 1
    parallel = type(policy).__name__ == "OpenVLAOFTPolicy"
    if parallel:
        planned = policy.settings.action_horizon or policy.num_action_chunks
        parts += [torch.zeros(1, network.hidden_size)] * (planned * policy.action_dim)
    else:
        parts += [embed(policy.vocabulary - 1 - index) for index in action[row].tolist()]
    parts.append(embed(prompts.eos))
    x = torch.cat(parts)[None]
    mask = torch.zeros(x.shape[1], x.shape[1])
    if not parallel:
        mask = torch.full_like(mask, -torch.inf).triu(1)
    where = llama.rotary_emb(x, torch.arange(x.shape[1])[None])
    for layer in llama.layers:
        x = layer(x, attention_mask=mask[None, None], position_embeddings=where)
    x = llama.norm(x)[0, first : first + action.shape[1]]
    return network.language_model.lm_head(x)


@pytest.mark.parametrize("horizon", [None, 4])
@pytest.mark.parametrize("pictures", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_a_masked_softmax_with_temperature(kind, pictures, horizon):
    policy = (with_pictures if pictures else make)(kind, temperature=0.7, action_horizon=horizon)
    _, result = policy.predict_action_batch(observe(cameras=2 * pictures))
    inputs = result["forward_inputs"]
    out = policy(forward_inputs=inputs, compute_entropy=True)
    action = inputs["action"]
    assert action.shape == (4, 6), "two actions of three numbers are carried out"
    for row in range(4):
        logits = slow_logits(policy, inputs, row, action)
        bins = range(policy.vocabulary - 16, policy.vocabulary)
        masked = torch.full_like(logits, -torch.inf)
        masked[:, bins] = logits[:, bins] / 0.7
        log_probs = masked.log_softmax(-1)
        chosen = log_probs.gather(1, (policy.vocabulary - 1 - action[row])[:, None])[:, 0]
        torch.testing.assert_close(out["logprobs"][row], chosen, atol=2e-5, rtol=1e-4)
        entropy = -(log_probs.exp() * log_probs.nan_to_num(neginf=0.0)).sum(-1)
        torch.testing.assert_close(out["entropy"][row], entropy, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value_type", ["chunk_level", "action_level"])
@pytest.mark.parametrize("horizon", [None, 3])
def test_what_a_rollout_computes_is_computed_again(kind, value_type, horizon):
    keys = {"add_value_head": True, "value_type": value_type, "action_horizon": horizon}
    policy = with_pictures(kind, **keys)
    assert check_policy(policy, observe(cameras=2)) == []
    for mode in ("random", "train", "eval"):
        actions, result = policy.predict_action_batch(observe(cameras=2), mode=mode)
        assert actions.shape == (4, 2, 3)
        out = policy(forward_inputs=result["forward_inputs"], compute_values=True)
        torch.testing.assert_close(out["logprobs"], result["prev_logprobs"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(out["values"], result["prev_values"], atol=1e-5, rtol=1e-5)
        assert out["values"].shape == (4, 1 if value_type == "chunk_level" else 2)
    torch.testing.assert_close(policy.predict_values(observe(cameras=2)), result["prev_values"])


@pytest.mark.parametrize("kind", KINDS)
def test_supervised_training_learns_whole_plans(kind):
    policy = make(kind, action_horizon=4)
    assert policy.action_horizon == 4 and policy.noise_width == 6
    obs, actions = observe(), torch.rand(4, 4, 3)
    out = policy("sft", observations=obs, actions=actions)
    assert out["logprobs"].shape == out["errors"].shape == (4, 12)
    inputs, index = policy.policy_inputs(obs), policy.bins.encode(actions)
    for row in range(4):
        logits = slow_logits(policy, inputs, row, index)[:, : policy.vocabulary]
        # The last token of the vocabulary is the first bin.
        chosen = logits[:, -16:].flip(-1).log_softmax(-1).gather(1, index[row][:, None])[:, 0]
        torch.testing.assert_close(out["logprobs"][row], chosen, atol=2e-5, rtol=1e-4)
    # What is carried out begins a plan: its tokens are the first ones.
    part = policy("sft", observations=obs, actions=actions[:, :2])
    torch.testing.assert_close(part["logprobs"], out["logprobs"][:, :6], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="5 actions follow .* set model.action_horizon to 5"):
        policy("sft", observations=obs, actions=torch.rand(4, 5, 3))


@pytest.mark.parametrize(("kind", "sees"), [("openvla_oft", True), ("openvla", False)])
def test_what_is_carried_out_sees_the_places_of_a_parallel_plan_alone(kind, sees):
    obs, noise = observe(), torch.randn(4, 6)
    plain, longer = make(kind), make(kind, action_horizon=4)
    one, two = (p.predict_action_batch(obs, noise=noise)[1] for p in (plain, longer))
    assert two["prev_logprobs"].shape == (4, 6)
    assert (not torch.allclose(one["prev_logprobs"], two["prev_logprobs"], atol=1e-5)) is sees


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_do_not_depend_on_padding_or_on_the_rest_of_the_batch(kind):
    short, long = make(kind, max_prompt_length=3), make(kind, max_prompt_length=6)
    noise = torch.randn(4, 6)
    one, two = (p.predict_action_batch(observe(), noise=noise)[1] for p in (short, long))
    assert torch.equal(one["forward_inputs"]["action"], two["forward_inputs"]["action"])
    torch.testing.assert_close(one["prev_logprobs"], two["prev_logprobs"], atol=1e-5, rtol=1e-5)
    rows = {key: value[1:2] for key, value in observe().items()}
    alone = short.predict_action_batch(rows, noise=noise[1:2])[1]
    torch.testing.assert_close(
        alone["prev_logprobs"], one["prev_logprobs"][1:2], atol=1e-5, rtol=1e-5
    )


def test_tokens_of_a_parallel_policy_do_not_see_each_other_and_those_of_the_other_do():
    for kind, sees in (("openvla_oft", False), ("openvla", True)):
        policy = make(kind)
        inputs = policy.policy_inputs(observe())
        action = torch.zeros(4, 6, dtype=torch.long)
        other = action.clone()
        other[:, 2] = 9
        one, two = (policy.teacher_forced(inputs, a).logits for a in (action, other))
        assert torch.equal(one[:, :3], two[:, :3])
        assert (one[:, 3:] != two[:, 3:]).any().item() is sees


def test_the_policy_reads_instruction_state_and_pictures():
    policy = with_pictures("openvla_oft", use_film=True)
    obs = observe(cameras=2)
    before = policy.tokens(policy.policy_inputs(obs)).logits
    for change in (
        {"task_descriptions": TEXTS[::-1] * 2},
        {"states": obs["states"] + 1},
        {"main_images": 255 - obs["main_images"]},
        {"wrist_images": 255 - obs["wrist_images"]},
    ):
        after = policy.tokens(policy.policy_inputs(obs | change)).logits
        assert (after - before).abs().amax((1, 2)).min() > 1e-4, change.keys()


def test_only_token_ids_travel_and_pictures_are_uint8():
    policy = with_pictures("openvla_oft")
    _, result = policy.predict_action_batch(observe(cameras=2, size=16))
    inputs = result["forward_inputs"]
    assert {key: (x.dtype, tuple(x.shape)) for key, x in inputs.items()} == {
        "input_ids": (torch.int64, (4, 6)),
        "states": (torch.float32, (4, 5)),
        "images": (torch.uint8, (4, 2, 8, 8, 3)),
        "action": (torch.int64, (4, 6)),
    }


def test_actions_are_drawn_in_proportion_to_their_probability():
    policy = make("openvla", temperature=2.0)
    obs = {key: value[:1] for key, value in observe().items()}
    many = {"states": obs["states"].expand(4000, -1), "task_descriptions": TEXTS[:1] * 4000}
    policy.set_generator(torch.Generator().manual_seed(0))
    _, result = policy.predict_action_batch(many)
    first = result["forward_inputs"]["action"][:, 0]
    inputs = policy.policy_inputs(obs)
    logits = policy.teacher_forced(inputs, torch.zeros(1, 6, dtype=torch.long)).logits[0, 0]
    share = torch.bincount(first, minlength=16) / 4000
    torch.testing.assert_close(share, (logits / 2.0).softmax(-1), atol=0.03, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_take_the_likeliest_bins_or_the_medians(kind):
    policy = make(kind, temperature=1.5)
    _, result = policy.predict_action_batch(observe(), mode="eval")
    inputs = result["forward_inputs"]
    logits = policy.teacher_forced(inputs, inputs["action"]).logits
    torch.testing.assert_close(inputs["action"], logits.argmax(-1))

    policy = make(kind, temperature=1.5, eval_tokens="median")
    _, result = policy.predict_action_batch(observe(), mode="eval")
    inputs, index = result["forward_inputs"], result["forward_inputs"]["action"].unsqueeze(-1)
    chances = (policy.teacher_forced(inputs, inputs["action"]).logits / 1.5).softmax(-1)
    up_to = chances.cumsum(-1).gather(-1, index)
    assert (up_to > 0.5 - 1e-4).all(), "half of the probability lies up to the bin"
    assert (up_to - chances.gather(-1, index) < 0.5 + 1e-4).all(), "and not below it"
    assert (index.squeeze(-1) != chances.argmax(-1)).any()
    again = policy.predict_action_batch(observe(), mode="eval")[1]["forward_inputs"]["action"]
    torch.testing.assert_close(again, inputs["action"])


@pytest.mark.parametrize("kind", KINDS)
def test_supervised_training_makes_the_policy_do_as_it_is_told(kind):
    policy = make(kind)
    rng = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    targets = torch.tensor([[0.9, -1.0, 1.0], [-0.5, 1.5, 3.0]])
    for _ in range(80):
        obs = {
            "states": torch.randn(16, 5, generator=rng),
            "task_descriptions": [TEXTS[i % 2] for i in range(16)],
        }
        wanted = targets[torch.arange(16) % 2][:, None].expand(-1, 2, -1)
        out = policy(forward_type="sft", observations=obs, actions=wanted)
        assert not out["errors"].requires_grad
        optimizer.zero_grad()
        (-out["logprobs"].mean()).backward()
        optimizer.step()
    actions, _ = policy.predict_action_batch(observe(), mode="eval")
    half = torch.tensor([2.0, 4.0, 4.0]) / 15 / 2 + 1e-5
    assert ((actions - targets[torch.arange(4) % 2][:, None]).abs() <= half).all()
    assert out["logprobs"].exp().mean() > 0.9


def test_states_are_normalised_by_what_was_learned_from_first():
    policy = make()
    policy.update_normalizer({"states": torch.randn(100, 5) * 3 + 2})
    kept = policy.normalizer.shift.clone()
    policy.update_normalizer({"states": torch.zeros(100, 5)})
    policy.commit_normalizer()
    assert torch.equal(policy.normalizer.shift, kept) and (kept - 2).abs().max() < 2


def test_actions_are_clipped_to_what_the_env_takes(tmp_path):
    statistics = '{"toy": {"action": {"q01": [-9, -9, -9], "q99": [9, 9, 9]}}}'
    (tmp_path / "dataset_statistics.json").write_text(statistics)
    policy = make(statistics_path=str(tmp_path))
    actions, _ = policy.predict_action_batch(observe(64), mode="random")
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    assert (actions >= low).all() and (actions <= high).all()
    assert (actions == low).any() and (actions == high).any()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hf_config": {}}, "neither model_path nor hf_config"),
        ({"words": []}, "model.words is empty"),
        ({"action_horizon": 1}, "action_horizon 1 is below num_action_chunks 2"),
        ({"num_images_in_input": 1}, "cameras and towers come together"),
        ({"vision_towers": [{"embed_dims": 4}]}, "no size 'embed_dims'.*embed_dim"),
    ],
)
def test_a_section_that_does_not_go_together_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        make(**keys)


def test_instructions_of_the_env_that_cannot_be_read_are_told_when_the_policy_is_built():
    make(spec=replace(SPEC, instructions=tuple(TEXTS)))
    with pytest.raises(ValueError, match="'shut the faucet' has a word that model.words"):
        make(spec=replace(SPEC, instructions=(*TEXTS, "shut the faucet")))


def test_observations_that_lack_something_are_refused():
    with pytest.raises(ValueError, match="pictures of 1 camera"):
        with_pictures("openvla_oft").policy_inputs(observe(cameras=1))
    with pytest.raises(ValueError, match="built for 5 numbers"):
        make().policy_inputs({"task_descriptions": TEXTS})
    with pytest.raises(ValueError, match="uint8"):
        obs = observe(cameras=2)
        with_pictures("openvla_oft").policy_inputs(obs | {"main_images": obs["main_images"] / 255})


def test_transformers_is_asked_for_a_llama_of_the_given_sizes():
    config = make().network.language_model.config
    assert isinstance(config, LlamaConfig) and config.num_key_value_heads == 2
    assert config.vocab_size == 3 + 5 + 16 + 64 and not config.tie_word_embeddings
