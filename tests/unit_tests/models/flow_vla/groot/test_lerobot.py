"""The network against lerobot 0.4.4: `make_lerobot_reference.py` made the numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow.matching import matching_losses
from rlinf.models.embodiment.flow.steps import FlowSettings
from rlinf.models.embodiment.flow_vla.groot.network import GrootNetwork
from rlinf.models.embodiment.flow_vla.groot.sizes import GrootSizes
from rlinf.models.embodiment.flow_vla.sizes import changed
from tests.unit_tests.models.flow_vla.filling import drawn_robots
from tests.unit_tests.models.flow_vla.policies import GROOT_SIZES, names_and_shapes

FILE = Path(__file__).parent.parent / "references" / "gr00t.npz"
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.fixture(scope="module")
def reference():
    """A network with the weights of the reference, and its inputs and outputs."""
    tokens = {"vocab_size": 40, "image_token": 7}
    network = GrootNetwork(changed(GrootSizes(**tokens), GROOT_SIZES, "sizes"), "new_embodiment")
    state = network.state_dict()
    network.load_state_dict({n: drawn_robots(n, tuple(t.shape)) for n, t in state.items()})
    file = np.load(FILE)
    arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "layout"}
    return network, json.loads(bytes(file["layout"])), arrays


@pytest.fixture(scope="module")
def prefix(reference):
    """What the network makes of both observations together, the second one padded."""
    network, _, arrays = reference
    states = functional.pad(arrays["state"], (0, network.state_dim - arrays["state"].shape[1]))
    with torch.no_grad():
        return network.encode(arrays["pixels"].unbind(1), arrays["ids"], arrays["valid"], states)


def test_names_and_shapes_are_those_of_lerobot(reference):
    network, shapes, _ = reference
    assert names_and_shapes(network) == shapes


def test_features_of_eagle_are_those_of_lerobot(reference, prefix):
    _, _, arrays = reference
    valid = arrays["valid"]
    assert valid.sum(1).tolist() == [16, 13]
    torch.testing.assert_close(prefix.memory[valid], arrays["memory"][valid], **CLOSE)


@torch.no_grad()
def test_velocities_losses_and_samples_are_those_of_lerobot(reference, prefix):
    network, _, arrays = reference
    actions = functional.pad(arrays["actions"], (0, network.action_dim - 3))
    # The flow here goes from 1 (noise) to 0, and its velocities the other way.
    time, seen = 1.0 - arrays["time"], []

    def velocity(x, time):
        seen.append(network.velocity(prefix, x, time)[0])
        return seen[-1], None

    losses = matching_losses(velocity, actions, arrays["noise"], time)
    torch.testing.assert_close(-seen[0], arrays["velocity"], **CLOSE)
    # lerobot gives the mean over numbers that are no padding.
    torch.testing.assert_close(losses[..., :3].mean((1, 2)), arrays["loss"], **CLOSE)
    settings = FlowSettings(num_steps=4, noise_method="flow_ode")
    chain = sample_chain(velocity, settings, arrays["noise"])
    torch.testing.assert_close(chain.states[:, -1], arrays["sampled"], atol=5e-5, rtol=1e-4)
    assert arrays["velocity"].abs().mean() > 0.1
