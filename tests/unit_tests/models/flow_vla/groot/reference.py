"""GR00T's network once more, one sample at a time, in plain loops over heads and blocks."""

from __future__ import annotations

import math

import torch
import transformers

EAGLE, HEAD = "backbone.eagle_model.", "action_head."
ROBOT = 31


def linear(weights, name, x):
    """Return `x W^T + b`."""
    return torch.einsum("ti,oi->to", x, weights[f"{name}.weight"]) + weights[f"{name}.bias"]


def robot_linear(weights, name, x):
    """Return `x W + b` of one robot."""
    return torch.einsum("ti,io->to", x, weights[f"{name}.W"][ROBOT]) + weights[f"{name}.b"][ROBOT]


def norm(x, eps):
    """Return rows with mean 0 and variance 1."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + eps).sqrt()


def silu(x):
    """Return `x / (1 + e^-x)`."""
    return x * torch.sigmoid(x)


def attention(weights, name, x, memory, heads):
    """Return multi-head attention, a head at a time."""
    q, k, v = (
        linear(weights, f"{name}.to_{which}", source)
        for which, source in (("q", x), ("k", memory), ("v", memory))
    )
    size, found = q.shape[-1] // heads, []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        scores = torch.einsum("te,se->ts", q[:, own], k[:, own]) / math.sqrt(size)
        found.append(torch.softmax(scores, -1) @ v[:, own])
    return linear(weights, f"{name}.to_out.0", torch.cat(found, -1))


def feed_forward(weights, name, x):
    """Return two layers with the tanh form of GELU between them."""
    x = linear(weights, f"{name}.net.0.proj", x)
    x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return linear(weights, f"{name}.net.2", x)


def features(network, pictures, ids, heads):
    """Return the refined features of Eagle for pictures `[3, size, size]` and ids `[L]`."""
    weights, sizes = network.state_dict(), network.sizes
    text = f"{EAGLE}language_model.model."
    config = transformers.Qwen3Config(
        hidden_size=sizes.text.hidden_size,
        intermediate_size=sizes.text.intermediate_size,
        num_hidden_layers=sizes.text.num_hidden_layers,
        num_attention_heads=sizes.text.num_attention_heads,
        num_key_value_heads=sizes.text.num_key_value_heads,
        head_dim=sizes.text.head_dim,
        vocab_size=sizes.vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        attn_implementation="eager",
    )
    qwen = transformers.Qwen3Model(config).eval()
    own = {k.removeprefix(text): v for k, v in weights.items() if k.startswith(text)}
    qwen.load_state_dict(own)
    embeds = qwen.embed_tokens(ids)
    tower = network.get_submodule(f"{EAGLE}vision_model.vision_model")
    places = [linear(weights, f"{EAGLE}mlp1.0", tower(p[None])[0][0]) for p in pictures]
    where = [n for n, token in enumerate(ids.tolist()) if token == sizes.image_token]
    for n, place in zip(where, torch.cat(places), strict=True):
        embeds[n] = place
    x = qwen(inputs_embeds=embeds[None]).last_hidden_state[0]
    x = norm(x, 1e-5) * weights[f"{HEAD}vlln.weight"] + weights[f"{HEAD}vlln.bias"]
    for number in range(sizes.features.num_layers):
        name = f"{HEAD}vl_self_attention.transformer_blocks.{number}"
        one, three = (
            lambda y, n=n: norm(y, 1e-5) * weights[f"{n}.weight"] + weights[f"{n}.bias"]
            for n in (f"{name}.norm1", f"{name}.norm3")
        )
        x = x + attention(weights, f"{name}.attn1", one(x), one(x), heads)
        x = x + feed_forward(weights, f"{name}.ff", three(x))
    return x


def sines(number, count, over):
    """Return the sine and the cosine of each of so many angles."""
    angles = torch.tensor([number / 10_000 ** (i / over) for i in range(count)])
    return angles.sin(), angles.cos()


def actions_minus_noise(network, memory, state, x, bucket):
    """Return GR00T's velocity at a time in thousandths, from 0 (noise) on, `[T, D]`.

    Args:
        network: Has the weights.
        memory: Refined features, `[P, H]`.
        state: Normalised and padded, `[S]`.
        x: Noisy actions, `[T, D]`.
        bucket: The time, a whole number.
    """
    weights, sizes = network.state_dict(), network.sizes
    width, heads = sizes.diffusion.width, sizes.diffusion.num_attention_heads
    encoder, decoder = f"{HEAD}state_encoder", f"{HEAD}action_decoder"
    state = robot_linear(weights, f"{encoder}.layer1", state[None]).relu()
    state = robot_linear(weights, f"{encoder}.layer2", state)
    encoder = f"{HEAD}action_encoder"
    actions = robot_linear(weights, f"{encoder}.W1", x)
    when = torch.cat(sines(bucket, width // 2, width // 2)).expand(len(x), -1)
    actions = silu(robot_linear(weights, f"{encoder}.W2", torch.cat([actions, when], -1)))
    actions = robot_linear(weights, f"{encoder}.W3", actions)
    actions = actions + weights[f"{HEAD}position_embedding.weight"][: len(x)]
    tokens = torch.cat([state, weights[f"{HEAD}future_tokens.weight"], actions])

    embedder = f"{HEAD}model.timestep_encoder.timestep_embedder"
    sine, cosine = sines(bucket, 128, 127)
    cond = linear(weights, f"{embedder}.linear_1", torch.cat([cosine, sine])[None])
    cond = linear(weights, f"{embedder}.linear_2", silu(cond))
    for number in range(sizes.diffusion.num_layers):
        name = f"{HEAD}model.transformer_blocks.{number}"
        scale, shift = linear(weights, f"{name}.norm1.linear", silu(cond)).chunk(2, -1)
        normed = norm(tokens, 1e-5) * (1 + scale) + shift
        seen = normed if number % 2 else memory
        tokens = tokens + attention(weights, f"{name}.attn1", normed, seen, heads)
        tokens = tokens + feed_forward(weights, f"{name}.ff", norm(tokens, 1e-5))
    shift, scale = linear(weights, f"{HEAD}model.proj_out_1", silu(cond)).chunk(2, -1)
    tokens = norm(tokens, 1e-6) * (1 + scale) + shift
    tokens = linear(weights, f"{HEAD}model.proj_out_2", tokens)
    hidden = robot_linear(weights, f"{decoder}.layer1", tokens).relu()
    return robot_linear(weights, f"{decoder}.layer2", hidden)[-len(x) :]
