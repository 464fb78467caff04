"""Networks computed as one against the same networks one by one."""

import pytest
import torch
from torch import nn

from rlinf.models.embodiment.q_heads import QEnsemble
from rlinf.models.embodiment.q_heads.ensemble import EnsembleLinear

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "silu": nn.SiLU}


def separate(ensemble, act):
    """The networks of an ensemble, as torch's own modules."""
    networks = []
    for head in range(ensemble.heads):
        layers = []
        for index, layer in enumerate([*ensemble.hidden, ensemble.head]):
            linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[2]).double()
            linear.weight = nn.Parameter(layer.weight[head].detach().t().clone())
            linear.bias = nn.Parameter(layer.bias[head, 0].detach().clone())
            layers.append(linear)
            if index == len(ensemble.hidden):
                break
            if ensemble.norms is not None:
                own = ensemble.norms[index]
                norm = nn.LayerNorm(own.dim).double()
                norm.weight = nn.Parameter(own.weight[head, 0].detach().clone())
                norm.bias = nn.Parameter(own.bias[head, 0].detach().clone())
                layers.append(norm)
            layers.append(ACTIVATIONS[act]())
        networks.append(nn.Sequential(*layers))
    return networks


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("act", "hidden"), [("relu", [8, 5]), ("silu", [7]), ("tanh", [])])
def test_values_and_gradients_are_those_of_separate_networks(act, hidden, layer_norm):
    torch.manual_seed(0)
    ensemble = QEnsemble(6, hidden, 4, act=act, layer_norm=layer_norm).double()
    for parameter in ensemble.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    networks = separate(ensemble, act)
    x = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 9, dtype=torch.float64)
    ours = ensemble(x)
    expected = torch.stack([network(x).squeeze(-1) for network in networks])
    torch.testing.assert_close(ours, expected.float())
    of_inputs = torch.autograd.grad((expected * weights).sum(), x, retain_graph=True)[0]
    of_networks = torch.autograd.grad(
        (expected * weights).sum(), [p for n in networks for p in n.parameters()]
    )
    grads = torch.autograd.grad((ours * weights).sum(), [x, *ensemble.parameters()])
    torch.testing.assert_close(grads[0], of_inputs, rtol=1e-5, atol=1e-6)
    # Every weight of every network has its own gradient: their sums of squares agree.
    ours_total = sum(float(g.square().sum()) for g in grads[1:])
    total = sum(float(g.square().sum()) for g in of_networks)
    assert ours_total == pytest.approx(total, rel=1e-4)


def test_frozen_networks_give_gradients_to_their_inputs_alone():
    ensemble = QEnsemble(6, [8], 2, layer_norm=True)
    x = torch.randn(5, 6, requires_grad=True)
    free = torch.autograd.grad(ensemble(x).sum(), x)[0]
    ensemble(x, frozen=True).sum().backward()
    torch.testing.assert_close(x.grad, free)
    assert all(parameter.grad is None for parameter in ensemble.parameters())


def test_several_outputs_keep_their_dimension():
    assert QEnsemble(6, [8], 3, out_dim=4)(torch.randn(5, 6)).shape == (3, 5, 4)
    assert QEnsemble(6, [8], 3)(torch.randn(5, 6)).shape == (3, 5)


def test_networks_begin_as_linear_layers_do_and_differ():
    torch.manual_seed(3)
    ensemble = QEnsemble(6, [8], 2)
    torch.manual_seed(3)
    first, second = nn.Linear(6, 8), nn.Linear(6, 8)
    torch.testing.assert_close(ensemble.hidden[0].weight[0], first.weight.t())
    torch.testing.assert_close(ensemble.hidden[0].weight[1], second.weight.t())
    torch.testing.assert_close(ensemble.hidden[0].bias[1, 0], second.bias)
    orthogonal = QEnsemble(6, [8], 2, orthogonal_init=True)
    product = orthogonal.hidden[0].weight[1] @ orthogonal.hidden[0].weight[1].t()
    torch.testing.assert_close(product, 2 * torch.eye(6), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gain", [None, 1.5])
def test_layers_begin_as_those_of_torch_would(gain):
    torch.manual_seed(0)
    ensemble = EnsembleLinear(3, 7, 5, gain)
    then = torch.rand(2)
    torch.manual_seed(0)
    layers = [nn.Linear(7, 5) for _ in range(3)]
    if gain is not None:
        for layer in layers:
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
    assert torch.equal(torch.rand(2), then), "whoever draws next gets the same numbers"
    for head, layer in enumerate(layers):
        assert torch.equal(ensemble.weight[head], layer.weight.t())
        assert torch.equal(ensemble.bias[head, 0], layer.bias)
