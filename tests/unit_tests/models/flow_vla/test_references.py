"""Networks against lerobot: `make_lerobot_references.py` made the numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow.matching import matching_losses
from rlinf.models.embodiment.flow.steps import FlowSettings
from rlinf.models.embodiment.flow_vla.layouts import LAYOUTS
from rlinf.models.embodiment.flow_vla.pictures import padded_pictures
from rlinf.models.embodiment.flow_vla.sizes import changed
from tests.unit_tests.models.flow_vla.policies import (
    LEROBOT_KINDS,
    SECTIONS,
    fill,
    names_and_shapes,
)

FOLDER = Path(__file__).parent / "references"
CAMERAS = ("observation.images.main", "observation.images.wrist")


@pytest.fixture(params=LEROBOT_KINDS)
def reference(request):
    """A network with the weights of the reference, and its inputs and outputs."""
    layout = LAYOUTS[request.param]
    network = layout.network(
        changed(layout.sizes(vocab_size=40), SECTIONS[request.param]["hf_config"], "sizes")
    )
    fill(network)
    file = np.load(FOLDER / f"{request.param}.npz")
    shapes = json.loads(bytes(file["layout"]))
    arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "layout"}
    return network, shapes, arrays


def test_names_and_shapes_are_those_of_lerobot(reference):
    network, shapes, _ = reference
    assert names_and_shapes(network) == shapes


def prefix_of(network, arrays):
    pictures = [
        padded_pictures(arrays[key], network.image_size, network.centred) for key in CAMERAS
    ]
    for number, picture in enumerate(pictures):
        torch.testing.assert_close(picture, arrays[f"pixels_{number}"], atol=1e-6, rtol=0)
    states = functional.pad(arrays["state"], (0, network.state_dim - arrays["state"].shape[1]))
    return network.encode(pictures, arrays["ids"], arrays["valid"], states)


@torch.no_grad()
def test_velocities_and_losses_are_those_of_lerobot(reference):
    network, _, arrays = reference
    prefix = prefix_of(network, arrays)
    actions = functional.pad(arrays["actions"], (0, network.action_dim - 3))

    def velocity(x, time):
        return network.velocity(prefix, x, time)[0], None

    losses = matching_losses(velocity, actions, arrays["noise"], arrays["time"])
    torch.testing.assert_close(losses, arrays["losses"], atol=5e-5, rtol=1e-4)
    settings = FlowSettings(num_steps=4, noise_method="flow_ode")
    chain = sample_chain(velocity, settings, arrays["noise"])
    torch.testing.assert_close(chain.states[:, -1], arrays["sampled"], atol=5e-5, rtol=1e-4)


@torch.no_grad()
def test_the_prefix_does_not_depend_on_padding(reference):
    network, _, arrays = reference
    row = {name: tensor[1:2] for name, tensor in arrays.items()}
    padded = prefix_of(network, row)
    short = {"ids": row["ids"][:, :4], "valid": row["valid"][:, :4]}
    alone = prefix_of(network, row | short)
    one, two = (network.velocity(p, row["noise"], row["time"]) for p in (padded, alone))
    torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(padded.pooled, alone.pooled, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", LEROBOT_KINDS)
def test_the_published_sizes_have_the_published_number_of_tensors(kind):
    layout = LAYOUTS[kind]
    sizes = layout.sizes()
    with torch.device("meta"):
        network = layout.network(sizes)
    count = len(network.state_dict()) + len(network.unused)
    assert count == {"smolvla": 500, "pi0": 777, "pi05": 812}[kind]
    assert layout.sizes.of_config({}) == sizes
