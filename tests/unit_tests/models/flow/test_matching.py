"""Flow matching: the loss, the times, and that it learns to make what it was shown."""

from __future__ import annotations

import pytest
import torch

from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow.matching import drawn_times, matching_losses
from rlinf.models.embodiment.flow.network import NoiseNet, VelocityNet, time_embedding
from rlinf.models.embodiment.flow.steps import FlowSettings


def test_the_loss_is_the_square_of_the_distance_from_the_true_velocity():
    actions, noise, time = torch.randn(4, 3), torch.randn(4, 3), torch.rand(4)
    seen = {}

    def network(x, t):
        seen["x"], seen["t"] = x, t
        return torch.zeros_like(x), None

    losses = matching_losses(network, actions, noise, time)
    assert torch.equal(losses, (noise - actions).square())
    for row in range(4):
        t = time[row]
        torch.testing.assert_close(seen["x"][row], t * noise[row] + (1 - t) * actions[row])


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_times_are_drawn_from_a_beta_distribution(alpha):
    uniform = torch.rand(20000, generator=torch.Generator().manual_seed(0))
    times = drawn_times(uniform, alpha)
    assert float(times.min()) > 0 and float(times.max()) <= 1
    assert float(times.mean()) == pytest.approx(alpha / (alpha + 1), abs=0.01)
    expected = torch.distributions.Beta(alpha, 1.0).variance
    assert float(times.var()) == pytest.approx(float(expected), abs=0.005)


def test_it_comes_to_make_what_it_was_shown():
    """Two kinds of actions, of which the feature says which: their mean is neither."""
    torch.manual_seed(0)
    net = VelocityNet(1, 2, (32, 32), "silu")
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(400):
        kind = torch.randint(0, 2, (128, 1)) * 2.0 - 1.0
        actions = torch.cat([kind, -kind], 1) * 0.8
        time = drawn_times(torch.rand(128), 1.5)
        losses = matching_losses(
            lambda x, t, kind=kind: (net(kind, x, t), None), actions, torch.randn(128, 2), time
        )
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    kind = torch.tensor([[-1.0], [1.0]]).repeat(50, 1)
    settings = FlowSettings(4, "flow_ode")
    chain = sample_chain(lambda x, t: (net(kind, x, t), None), settings, torch.randn(100, 2))
    expected = torch.cat([kind, -kind], 1) * 0.8
    assert float((chain.states[:, -1] - expected).abs().mean()) < 0.15


def test_learned_noise_stays_between_its_bounds():
    torch.manual_seed(0)
    for sees_x in (True, False):
        net = NoiseNet(3, 2, (8,), "tanh", (0.08, 0.16), sees_x)
        features, x, time = torch.randn(50, 3), torch.randn(50, 2), torch.rand(50)
        std = net(features, x, time)
        assert float((std - (0.08 * 0.16) ** 0.5).abs().max()) < 0.01
        with torch.no_grad():
            net.layers.head.weight.mul_(1e5)
        wide = net(features, x, time)
        assert float(wide.min()) >= 0.0799 and float(wide.max()) <= 0.1601
        other = net(features, x + 1, time)
        assert torch.equal(other, wide) != sees_x


def test_times_are_told_apart():
    own = time_embedding(torch.tensor([1.0, 0.75, 0.5, 0.25]))
    distances = torch.cdist(own, own) + torch.eye(4)
    assert float(distances.min()) > 0.5
