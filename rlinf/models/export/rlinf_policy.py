"""A policy that was trained with RLinf, as plain PyTorch: needs torch and safetensors alone.

Shapes: B observations, C actions in a chunk, A numbers in an action, H actions that a flow plans.
"""

import json
import math
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

TIME_DIM, PERIODS = 16, (0.1, 4.0)
"""Numbers that the time of a flow becomes; shortest and longest period of its sines."""
ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
}


class MLP(nn.Module):
    """Linear layers with activations between them."""

    def __init__(self, in_dim, hidden_sizes, out_dim, activation):
        """Make the layers; without `out_dim` the last one is activated, too."""
        super().__init__()
        sizes = [in_dim, *hidden_sizes]
        self.activation = ACTIVATIONS[activation]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = None if out_dim is None else nn.Linear(sizes[-1], out_dim)

    def forward(self, x):
        """Return [B, out_dim] for x [B, in_dim]."""
        for layer in self.hidden:
            x = self.activation(layer(x))
        return x if self.head is None else self.head(x)


class Normalizer(nn.Module):
    """Shifts and scales states by the mean and deviation that were seen in training."""

    def __init__(self, dim, clip):
        """Make the buffers; `mean`, `var` and `count` are kept for training to go on."""
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def forward(self, states):
        """Return states in units of their deviation, clipped, [B, S]."""
        return ((states - self.shift) * self.scale).clamp(-self.clip, self.clip)


class SpatialSoftmax(nn.Module):
    """Where each channel of a feature map is strongest, as coordinates in [-1, 1]."""

    def __init__(self):
        """Make the temperature."""
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        """Return [B, 2*K] for a feature map [B, K, H, W]."""
        height, width = x.shape[-2:]
        rows, columns = torch.meshgrid(
            torch.linspace(-1, 1, height, device=x.device),
            torch.linspace(-1, 1, width, device=x.device),
            indexing="ij",
        )
        weights = (x.flatten(2) * torch.exp(-self.log_temperature)).float().softmax(-1)
        return torch.cat([weights @ rows.reshape(-1), weights @ columns.reshape(-1)], 1).to(x.dtype)


class Encoder(nn.Module):
    """Convolutions, then a projection to a few numbers."""

    def __init__(self, in_channels, settings):
        """Make the layers."""
        super().__init__()
        layers, size, before = [], settings["image_size"], in_channels
        for index, width in enumerate(settings["channels"]):
            kernel, stride = (8, 4) if index == 0 else (4, 2)
            padding = (kernel - stride) // 2
            layers += [
                nn.Conv2d(before, width, kernel, stride, padding, bias=False),
                nn.GroupNorm(math.gcd(width, 8), width),
                nn.ReLU(),
            ]
            size, before = size // stride, width
        self.convolutions = nn.Sequential(*layers)
        flat = settings["pooling"] == "flatten"
        self.pool = nn.Flatten() if flat else SpatialSoftmax()
        pooled = before * size * size if flat else 2 * before
        self.projection = nn.Linear(pooled, settings["feature_dim"])
        self.norm = nn.LayerNorm(settings["feature_dim"])
        self.activation = ACTIVATIONS[settings["activation"]]

    def forward(self, images):
        """Return [B, F] for images [B, H, W, channels] uint8."""
        pixels = images.permute(0, 3, 1, 2).to(self.projection.weight.dtype)
        x = self.convolutions(pixels * (2.0 / 255.0) - 1.0)
        return self.activation(self.norm(self.projection(self.pool(x))))


class VelocityNet(nn.Module):
    """Velocities of a flow from features, its state, and time."""

    def __init__(self, feature_dim, width, hidden_sizes, activation):
        """Make the layers; `width` is H*A."""
        super().__init__()
        self.layers = MLP(feature_dim + width + TIME_DIM, hidden_sizes, width, activation)

    def forward(self, features, x, time):
        """Return [B, H*A] for features [B, F], x [B, H*A] and times [B]."""
        share = torch.linspace(0.0, 1.0, TIME_DIM // 2, device=time.device, dtype=torch.float64)
        angles = 2.0 * math.pi * time[:, None] / (PERIODS[0] * (PERIODS[1] / PERIODS[0]) ** share)
        embedded = torch.cat([angles.sin(), angles.cos()], dim=1).float().to(features.dtype)
        return self.layers(torch.cat([features, x.to(features.dtype), embedded], 1))


class NoiseNet(nn.Module):
    """Learned noise of a flow: it is kept for training to go on, and nobody acts with it."""

    def __init__(self, inputs, width, hidden_sizes, activation):
        """Make the layers."""
        super().__init__()
        self.layers = MLP(inputs, hidden_sizes, width, activation)


class PolicyLayers:
    """The layers of a policy and what they compute; to be mixed with a module class."""

    def build(self, config):
        """Make the layers that `config.json` describes."""
        own = config["settings"]
        self.settings, self.action_dim = own, config["action_dim"]
        self.chunk = own["num_action_chunks"]
        self.bounds = [config["action_low"], config["action_high"]]
        self.choices, self.distribution = config["action_choices"], config["distribution"]
        self.is_flow = config["architecture"] == "flow_policy"
        looks = config["architecture"] == "cnn_policy" or own.get("use_images", False)
        self.obs_dim = config["obs_dim"] if own.get("use_states", True) else None
        self.normalizer = None
        if own["normalize_obs"] and self.obs_dim is not None:
            self.normalizer = Normalizer(self.obs_dim, own["obs_clip"])
        self.views = {}
        if looks:
            views = {"main_images": 1, "wrist_images": own["wrist_views"]}
            views["extra_view_images"] = own["extra_views"]
            self.views = {key: count for key, count in views.items() if count}
            channels = config["image_channels"]
            self.encoders = nn.ModuleDict({key: Encoder(channels, own) for key in self.views})
        width = sum(self.views.values()) * own.get("feature_dim", 0) + (self.obs_dim or 0)
        self.trunk = self.value_head = None
        (self._build_flow if self.is_flow else self._build_heads)(width)

    def _build_flow(self, width):
        own, hidden = self.settings, list(self.settings["hidden_sizes"])
        numbers = (own["action_horizon"] or self.chunk) * self.action_dim
        self.velocity = VelocityNet(width, numbers, hidden, own["activation"])
        if own["noise_method"] in ("flow_noise", "reinflow"):
            inputs = width + TIME_DIM + (numbers if own["noise_method"] == "flow_noise" else 0)
            self.noise_net = NoiseNet(inputs, numbers, hidden, own["activation"])
        if own["use_dsrl"]:
            chosen, units = 2 * self.action_dim, list(own["steering_hidden_sizes"])
            self.steering = MLP(width, units, chosen, own["activation"])
        self._build_values(width, hidden)

    def _build_values(self, width, hidden):
        own = self.settings
        if own["add_value_head"]:
            values = 1 if own["value_type"] == "chunk_level" else self.chunk
            self.value_head = MLP(width, hidden, values, own["activation"])

    def _build_heads(self, width):
        own, hidden = self.settings, list(self.settings["hidden_sizes"])
        numbers = self.chunk * self.action_dim
        self.log_std = None
        if own["share_trunk"]:
            self.trunk = MLP(width, hidden, None, own["activation"])
            width, hidden = [width, *hidden][-1], []
        outputs = 2 * numbers if own["state_dependent_std"] else numbers
        if self.choices is not None:
            outputs = self.chunk * sum(self.choices)
        self.policy_head = MLP(width, hidden, outputs, own["activation"])
        self._build_values(width, hidden)
        if self.choices is None and not own["state_dependent_std"]:
            self.log_std = nn.Parameter(torch.zeros(numbers))

    def forward(self, states=None, **images):
        """Return the most likely actions, in the units of the env, [B, C, A]; choices are int64.

        Args:
            states: [B, S], as the env gives them; None if the policy does not use them.
            **images: `main_images`, `wrist_images`, `extra_view_images` that the policy uses,
                [B, H, W, channels] or [B, views, H, W, channels] uint8.
        """
        features = self.features(states, **images)
        if self.is_flow:
            return self._denoised(features)
        mean = self.policy_head(features).float()
        if self.choices is not None:
            return self._likeliest(mean.unflatten(-1, (self.chunk, -1)))
        if self.log_std is None:
            mean = mean.chunk(2, dim=-1)[0]
        return self._in_range(mean.view(-1, self.chunk, self.action_dim))

    def values(self, states=None, **images):
        """Return the values of observations, [B, 1] or [B, C]; None without a value function."""
        if self.value_head is None:
            return None
        return self.value_head(self.features(states, **images)).float()

    def features(self, states=None, **images):
        """Return what the heads see, [B, F]."""
        parts = []
        for key, views in self.views.items():
            if images.get(key) is None:
                raise ValueError(f"the policy needs '{key}'")
            shown = _scaled(_with_views(images[key], views, key), self.settings["image_size"])
            parts.append(self.encoders[key](shown.flatten(0, 1)).view(len(shown), -1))
        if self.obs_dim is not None:
            if states is None or states.shape[-1] != self.obs_dim:
                raise ValueError(f"the policy needs 'states' of {self.obs_dim} numbers")
            states = states.float()
            states = states if self.normalizer is None else self.normalizer(states)
            parts.append(states.to(next(self.parameters()).dtype))
        features = torch.cat(parts, dim=1)
        return features if self.trunk is None else self.trunk(features)

    def _denoised(self, features):
        """Return the first C actions of the plan that denoising without added noise leads to."""
        steps = self.settings["num_steps"]
        horizon = self.settings["action_horizon"] or self.chunk
        x = torch.zeros(len(features), horizon * self.action_dim, device=features.device)
        if self.settings["use_dsrl"]:
            mean = self.steering(features).float().chunk(2, dim=-1)[0]
            x = (self.settings["noise_bound"] * mean.tanh()).repeat(1, horizon)
        times = 1.0 - torch.arange(steps + 1, device=features.device) / steps
        for time in times[:-1]:
            velocity = self.velocity(features, x, time.expand(len(x))).float()
            x = torch.add(x, velocity, alpha=-1.0 / steps)
        plan = x.unflatten(-1, (horizon, self.action_dim))
        if None in self.bounds:
            return plan[:, : self.chunk]
        low, high = self._limits(plan.device)
        if None not in self.bounds[0] and None not in self.bounds[1]:
            plan = torch.addcmul(low, plan + 1.0, (high - low) / 2)
        return plan.clamp(low, high)[:, : self.chunk]

    def _likeliest(self, logits):
        choices = [part.argmax(-1) for part in logits.split(self.choices, dim=-1)]
        first = torch.tensor(self.bounds[0], device=logits.device).long()
        return torch.stack(choices, dim=-1) + first

    def _in_range(self, actions):
        if None in self.bounds:
            return actions
        low, high = self._limits(actions.device)
        if self.distribution == "squashed_gaussian":
            return torch.addcmul(low, actions.tanh() + 1.0, (high - low) / 2)
        return actions.clamp(low, high) if self.settings["clip_actions"] else actions

    def _limits(self, device):
        """Return the smallest and the greatest action, [A] each."""
        low = [-math.inf if bound is None else bound for bound in self.bounds[0]]
        high = [math.inf if bound is None else bound for bound in self.bounds[1]]
        low = torch.tensor(low, dtype=torch.float32, device=device)
        return low, torch.tensor(high, dtype=torch.float32, device=device)


class RLinfPolicy(PolicyLayers, nn.Module):
    """A policy."""

    def __init__(self, config):
        """Make the layers that `config.json` describes."""
        super().__init__()
        self.build(config)


def load_policy(folder="."):
    """Return the policy of a folder with `config.json` and `model.safetensors`."""
    from safetensors.torch import load_file

    policy = RLinfPolicy(json.loads((Path(folder) / "config.json").read_text()))
    policy.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    return policy.eval().requires_grad_(False)


def _with_views(images, views, key):
    images = images.unsqueeze(1) if images.dim() == 4 else images
    if images.dtype != torch.uint8 or images.shape[1] != views:
        raise ValueError(f"'{key}' must be uint8 from {views} camera(s)")
    return images


def _scaled(images, size):
    count, views, height, width, channels = images.shape
    if (height, width) == (size, size):
        return images
    flat = images.reshape(-1, height, width, channels).permute(0, 3, 1, 2).float()
    flat = functional.interpolate(flat, (size, size), mode="bilinear", antialias=True)
    flat = flat.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return flat.reshape(count, views, size, size, channels)
