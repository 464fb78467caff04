"""What only the policy on images does."""

import pytest
import torch

from rlinf.models.embodiment.cnn_policy.images import scaled, shifted
from rlinf.utils.env_spec import EnvSpec


def squares(count, seed):
    """Images with one bright square, and where it is in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.randint(0, 20, (count, 2), generator=generator)
    images = torch.randint(0, 60, (count, 24, 24, 3), generator=generator, dtype=torch.uint8)
    for image, (row, column) in zip(images, corners.tolist(), strict=True):
        image[row : row + 4, column : column + 4] = 255
    return images, corners / 9.5 - 1.0


@pytest.mark.parametrize("pooling", ["flatten", "spatial_softmax"])
def test_it_learns_where_a_square_is(make_policy, pooling):
    spec = EnvSpec(action_dim=2, action_low=-1.0, action_high=1.0)
    policy = make_policy(
        "cnn_policy", spec=spec, use_states=False, pooling=pooling, init_log_std=-1.0
    )
    images, targets = squares(512, seed=0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(120):
        rows = torch.randint(0, 512, (64,), generator=generator)
        inputs = {"main_images": images[rows].unsqueeze(1), "action": targets[rows]}
        loss = -policy(forward_inputs=inputs)["logprobs"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh, expected = squares(100, seed=2)
    actions, _ = policy.predict_action_batch({"main_images": fresh}, mode="eval")
    assert (actions.squeeze(1) - expected).abs().mean() < 0.15  # 0.5 for one that sees nothing


def test_several_cameras(make_policy, make_obs):
    policy = make_policy("cnn_policy", wrist_views=2, extra_views=1)
    obs = make_obs()
    obs["wrist_images"] = torch.stack([obs["main_images"], obs["main_images"].flip(1)], 1)
    obs["extra_view_images"] = obs["main_images"]
    actions, result = policy.predict_action_batch(obs, mode="eval")
    assert result["forward_inputs"]["wrist_images"].shape == (8, 2, 24, 24, 3)
    obs["wrist_images"] = obs["wrist_images"].flip(1)
    assert not torch.allclose(policy.predict_action_batch(obs, mode="eval")[0], actions)
    obs["wrist_images"] = obs["wrist_images"][:, :1]
    with pytest.raises(ValueError, match=r"2 camera\(s\) in 'wrist_images', there are 1"):
        policy.predict_action_batch(obs)
    del obs["extra_view_images"]
    obs["wrist_images"] = obs["wrist_images"].expand(8, 2, 24, 24, 3)
    with pytest.raises(ValueError, match="needs 'extra_view_images'"):
        policy.predict_action_batch(obs)


def test_images_are_checked_and_scaled(make_policy, make_obs):
    policy, obs = make_policy("cnn_policy"), make_obs()
    big = obs["main_images"].repeat_interleave(2, 1).repeat_interleave(2, 2)
    inputs = policy.policy_inputs({**obs, "main_images": big}, augment=False)
    assert inputs["main_images"].shape == (8, 1, 24, 24, 3)
    assert inputs["main_images"].dtype == torch.uint8
    flat = torch.full((2, 1, 31, 17, 3), 77, dtype=torch.uint8)
    assert torch.equal(scaled(flat, 24), torch.full((2, 1, 24, 24, 3), 77, dtype=torch.uint8))
    channel_first = {**obs, "main_images": obs["main_images"].permute(0, 3, 1, 2)}
    with pytest.raises(ValueError, match=r"\[B, H, W, 3\] .* not \[8, 3, 24, 24\] of uint8"):
        policy.predict_action_batch(channel_first)
    with pytest.raises(ValueError, match="of uint8, not .* of float32"):
        policy.predict_action_batch({**obs, "main_images": obs["main_images"].float()})
    with pytest.raises(ValueError, match="images of 24 pixels are too small for 4 convolutions"):
        make_policy("cnn_policy", channels=[8, 8, 8, 8])


def test_a_shift_moves_images_and_repeats_the_border():
    images = torch.arange(2 * 2 * 5 * 5 * 3, dtype=torch.int32).view(2, 2, 5, 5, 3)
    moved = shifted(images, torch.tensor([[1, -2], [0, 0]]))
    assert torch.equal(moved[1], images[1])
    for view in range(2):
        for row in range(5):
            for column in range(5):
                source = images[0, view, min(row + 1, 4), max(column - 2, 0)]
                assert torch.equal(moved[0, view, row, column], source)


def test_shifts_are_drawn_only_when_collecting(make_policy, make_obs):
    policy = make_policy("cnn_policy", random_shift=3)
    drawn = policy.predict_action_batch(make_obs(200))[1]["forward_inputs"]["shift"]
    assert drawn.shape == (200, 2) and drawn.min() == -3 and drawn.max() == 3
    for inputs in (
        policy.predict_action_batch(make_obs(), mode="eval")[1]["forward_inputs"],
        policy.policy_inputs(make_obs(), augment=False),
    ):
        assert inputs["shift"].count_nonzero() == 0


def test_channels_come_from_the_env(make_policy, make_obs):
    spec = EnvSpec(6, 3, image_shape=(24, 24, 4))
    policy = make_policy("cnn_policy", spec=spec)
    obs = make_obs()
    obs["main_images"] = torch.cat([obs["main_images"], obs["main_images"][..., :1]], -1)
    assert policy.predict_action_batch(obs)[0].shape == (8, 1, 3)
