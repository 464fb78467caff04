"""The network of GR00T against a slow one, and the names and shapes of its published files."""

import pytest
import torch

from rlinf.models.embodiment.flow.matching import drawn_times
from rlinf.models.embodiment.flow.steps import time_grid
from rlinf.models.embodiment.flow_vla.groot.network import GrootNetwork, bucket_of
from rlinf.models.embodiment.flow_vla.groot.sizes import GrootSizes
from tests.unit_tests.models.flow_vla.groot import reference
from tests.unit_tests.models.flow_vla.policies import make
from tests.unit_tests.models.openvla.policies import observe

HEAD, EAGLE = "action_head.", "backbone.eagle_model."


@pytest.fixture(scope="module")
def given():
    """A policy, inputs with left padding of different lengths, and a noisy chunk."""
    policy = make("gr00t", action_horizon=4)
    # Weights of several robots are drawn small: what they do must be seen.
    with torch.no_grad():
        for name, parameter in policy.network.named_parameters():
            if name.endswith((".W", ".b")):
                parameter.mul_(4.0)
    inputs = policy.policy_inputs(observe(3, cameras=2, size=20))
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(3))
    return policy, inputs, x


@torch.no_grad()
def test_velocities_are_those_of_the_slow_network(given):
    policy, inputs, x = given
    network, prefix = policy.network, policy.prefix(inputs)
    valid = inputs["input_ids"] != policy.prompts.pad
    assert sorted(set(valid.sum(1).tolist())) != [valid.shape[1]], "no prompt is padded"
    time = torch.tensor([1.0, 0.4, 0.0316])
    velocity, hidden = network.velocity(prefix, x, time)
    assert hidden.shape == (3, 4, 20)
    for row, bucket in enumerate((0, 600, 968)):
        pictures = [network.prepare(inputs[f"view_{n}"][row : row + 1])[0] for n in range(2)]
        ids = inputs["input_ids"][row, valid[row]]
        memory = reference.features(network, pictures, ids, heads=4)
        torch.testing.assert_close(prefix.memory[row, valid[row]], memory, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(prefix.pooled[row], memory.mean(0), atol=1e-5, rtol=1e-4)
        state = torch.nn.functional.pad(inputs["states"][row], (0, 3))
        expected = reference.actions_minus_noise(network, memory, state, x[row], bucket)
        # GR00T's velocities lead to the actions, those of our flow to the noise.
        assert expected.abs().mean() > 0.01
        torch.testing.assert_close(velocity[row], -expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_four_steps_are_those_of_isaac_groot(given):
    """Its Euler steps go from 0 to 1: `a + dt v`, at times rounded down to thousandths."""
    policy, inputs, x = given
    network, prefix = policy.network, policy.prefix(inputs)
    ours, theirs, steps = x.clone(), x.clone(), 4
    state = torch.nn.functional.pad(inputs["states"], (0, 3))
    for number in range(steps):
        time = time_grid(steps)[number].expand(3)
        ours -= network.velocity(prefix, ours, time)[0] / steps
        for row in range(3):
            memory = prefix.memory[row, prefix.valid[row]]
            bucket = int(number / steps * 1000)
            theirs[row] += (
                reference.actions_minus_noise(network, memory, state[row], theirs[row], bucket)
                / steps
            )
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("steps", [3, 4, 7, 10, 16])
def test_times_of_a_grid_have_the_buckets_of_isaac_groot(steps):
    expected = [int(n / steps * 1000) for n in range(steps)]
    assert bucket_of(time_grid(steps)[:-1]).tolist() == expected


def test_times_of_training_have_the_distribution_of_isaac_groot():
    """There, t = (0.999 - b) / 0.999 with b of Beta(1.5, 1), whose quantile of u is u^(2/3)."""
    uniform = torch.linspace(0, 1, 1001)
    theirs = 1 - (0.999 - uniform ** (2 / 3)) / 0.999
    assert (drawn_times(uniform, 1.5) - theirs).abs().max() < 0.0011


@torch.no_grad()
def test_only_layers_of_the_own_robot_are_used():
    one, two = make("gr00t"), make("gr00t", embodiment_tag="gr1")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    obs, noise = observe(cameras=2), torch.randn(4, one.noise_width)
    before = one.predict_action_batch(obs, noise=noise)[0]
    assert not torch.allclose(before, two.predict_action_batch(obs, noise=noise)[0])
    for name, parameter in one.network.named_parameters():
        if name.endswith((".W", ".b")):
            parameter[:31] = 7.0
    assert torch.equal(before, one.predict_action_batch(obs, noise=noise)[0])


@torch.no_grad()
def test_what_a_sample_gives_does_not_depend_on_padding(given):
    policy, inputs, x = given
    longer = dict(inputs)
    longer["input_ids"] = torch.nn.functional.pad(
        inputs["input_ids"], (5, 0), value=policy.prompts.pad
    )
    time = torch.full((3,), 0.5)
    one, two = (policy.network.velocity(policy.prefix(i), x, time) for i in (inputs, longer))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


LAYERS = {
    f"{EAGLE}vision_model.vision_model.embeddings.patch_embedding.weight": [1152, 3, 14, 14],
    f"{EAGLE}vision_model.vision_model.embeddings.position_embedding.weight": [256, 1152],
    f"{EAGLE}vision_model.vision_model.encoder.layers.26.mlp.fc1.weight": [4304, 1152],
    f"{EAGLE}mlp1.0.weight": [2048, 1152],
    f"{EAGLE}mlp1.0.bias": [2048],
    f"{EAGLE}language_model.model.embed_tokens.weight": [151680, 2048],
    f"{EAGLE}language_model.model.layers.11.self_attn.q_proj.weight": [2048, 2048],
    f"{EAGLE}language_model.model.layers.11.self_attn.k_proj.weight": [1024, 2048],
    f"{EAGLE}language_model.model.layers.11.self_attn.q_norm.weight": [128],
    f"{EAGLE}language_model.model.layers.11.self_attn.k_norm.weight": [128],
    f"{EAGLE}language_model.model.layers.11.mlp.gate_proj.weight": [6144, 2048],
    f"{EAGLE}language_model.model.norm.weight": [2048],
    f"{HEAD}vlln.weight": [2048],
    f"{HEAD}vl_self_attention.transformer_blocks.3.norm1.weight": [2048],
    f"{HEAD}vl_self_attention.transformer_blocks.3.norm3.bias": [2048],
    f"{HEAD}vl_self_attention.transformer_blocks.3.attn1.to_k.weight": [2048, 2048],
    f"{HEAD}vl_self_attention.transformer_blocks.3.ff.net.0.proj.weight": [8192, 2048],
    f"{HEAD}state_encoder.layer1.W": [32, 64, 1024],
    f"{HEAD}state_encoder.layer1.b": [32, 1024],
    f"{HEAD}state_encoder.layer2.W": [32, 1024, 1536],
    f"{HEAD}action_encoder.W1.W": [32, 32, 1536],
    f"{HEAD}action_encoder.W2.W": [32, 3072, 1536],
    f"{HEAD}action_encoder.W3.W": [32, 1536, 1536],
    f"{HEAD}action_decoder.layer1.W": [32, 1024, 1024],
    f"{HEAD}action_decoder.layer2.W": [32, 1024, 32],
    f"{HEAD}future_tokens.weight": [32, 1536],
    f"{HEAD}position_embedding.weight": [1024, 1536],
    f"{HEAD}model.timestep_encoder.timestep_embedder.linear_1.weight": [1536, 256],
    f"{HEAD}model.timestep_encoder.timestep_embedder.linear_2.weight": [1536, 1536],
    f"{HEAD}model.transformer_blocks.15.norm1.linear.weight": [3072, 1536],
    f"{HEAD}model.transformer_blocks.14.attn1.to_k.weight": [1536, 2048],
    f"{HEAD}model.transformer_blocks.14.attn1.to_v.weight": [1536, 2048],
    f"{HEAD}model.transformer_blocks.15.attn1.to_k.weight": [1536, 1536],
    f"{HEAD}model.transformer_blocks.15.attn1.to_out.0.weight": [1536, 1536],
    f"{HEAD}model.transformer_blocks.15.ff.net.0.proj.weight": [6144, 1536],
    f"{HEAD}model.transformer_blocks.15.ff.net.2.weight": [1536, 6144],
    f"{HEAD}model.proj_out_1.weight": [3072, 1536],
    f"{HEAD}model.proj_out_2.weight": [1024, 1536],
}
"""Names and shapes of the published files, of the last layer of each kind."""
COUNTS = {
    f"{EAGLE}vision_model.": 3 + 27 * 16 + 2,
    f"{EAGLE}mlp1.": 2,
    f"{EAGLE}language_model.": 1 + 12 * 11 + 1,
    f"{HEAD}vlln.": 2,
    f"{HEAD}vl_self_attention.": 4 * (2 + 8 + 2 + 4),
    f"{HEAD}state_encoder.": 4,
    f"{HEAD}action_encoder.": 6,
    f"{HEAD}action_decoder.": 4,
    f"{HEAD}future_tokens.": 1,
    f"{HEAD}position_embedding.": 1,
    f"{HEAD}model.": 4 + 16 * (2 + 8 + 4) + 4,
}


def test_the_published_sizes_have_the_published_names_and_shapes():
    with torch.device("meta"):
        network = GrootNetwork(GrootSizes(), "gr1")
    own = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    assert {name: own.get(name) for name in LAYERS} == LAYERS
    counts = {part: sum(name.startswith(part) for name in own) for part in COUNTS}
    assert counts == COUNTS and sum(counts.values()) == len(own)
    assert GrootSizes().image_places == 256
    assert GrootSizes.of_config({}) == GrootSizes.of_config(GrootSizes().config()) == GrootSizes()


def test_networks_of_another_kind_are_refused():
    with pytest.raises(ValueError, match=r"action_head_cfg.use_vlln: False; only True is known"):
        GrootSizes.of_config({"action_head_cfg": {"use_vlln": False}})
    with pytest.raises(ValueError, match=r"backbone_cfg.project_to_dim: 1536; only None"):
        GrootSizes.of_config({"backbone_cfg": {"project_to_dim": 1536}})
    with pytest.raises(ValueError, match=r"4 heads of 9, and text.hidden_size is 2048"):
        make("gr00t", hf_config={"features": {"num_attention_heads": 4, "attention_head_dim": 9}})
    with pytest.raises(ValueError, match=r"robot number 31, .* for 4: raise num_embodiments"):
        make("gr00t", hf_config={"num_embodiments": 4})
