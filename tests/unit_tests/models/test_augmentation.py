"""Pictures of supervised training: what is changed in them, how far, and where not."""

from __future__ import annotations

import pytest
import torch

from rlinf.models.embodiment.augmentation import CameraAugmentation, cropped
from rlinf.models.embodiment.cameras import camera_views
from tests.unit_tests.models.flow_vla.policies import KINDS as FLOWS
from tests.unit_tests.models.flow_vla.policies import make as make_flow
from tests.unit_tests.models.openvla.policies import TOWERS, make, observe

ALL = {
    "random_shift": 2,
    "random_crop": 0.7,
    "brightness_jitter": 0.3,
    "contrast_jitter": 0.4,
}
EACH = [{key: value} for key, value in ALL.items()]
CAMERAS = ("main_images", "wrist_images")


def see(count=4):
    """Observations with three cameras in two groups of different sizes."""
    rng = torch.Generator().manual_seed(1)
    wrist = torch.randint(0, 256, (count, 2, 9, 13, 3), generator=rng, dtype=torch.uint8)
    return observe(count, cameras=1, size=12) | {"wrist_images": wrist}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("keys", [*EACH, ALL], ids="-".join)
def test_pictures_change_and_stay_pictures(keys):
    augment, obs = CameraAugmentation(3, **keys), see()
    before = {key: obs[key].clone() for key in CAMERAS}
    changed = augment(obs, normal(4, augment.width))
    for key in CAMERAS:
        assert changed[key].dtype == torch.uint8
        assert changed[key].shape == obs[key].shape
        assert (changed[key].view_as(obs[key]) != obs[key]).flatten(1).any(1).all()
        assert torch.equal(obs[key], before[key]), "what was given is not written to"
    assert changed["states"] is obs["states"]


def test_noise_alone_decides_sample_by_sample():
    augment, obs = CameraAugmentation(3, **ALL), see()
    noise = normal(4, augment.width)
    whole, again = augment(obs, noise), augment(obs, noise)
    part = augment({key: value[1:3] for key, value in obs.items()}, noise[1:3])
    other = augment(obs, normal(4, augment.width, seed=1))
    for key in CAMERAS:
        assert torch.equal(whole[key], again[key])
        assert torch.equal(whole[key][1:3], part[key])
        assert not torch.equal(whole[key], other[key])
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    drawn = [augment(obs, generator=each)["main_images"] for each in generators]
    assert torch.equal(*drawn)


def test_each_camera_is_changed_by_itself():
    augment = CameraAugmentation(2, **ALL)
    same = see()["main_images"]
    changed = augment({"main_images": same, "wrist_images": same}, normal(4, augment.width))
    assert (changed["main_images"] != changed["wrist_images"]).flatten(1).any(1).all()
    # Cameras that are not looked at are left alone.
    one = CameraAugmentation(1, **ALL)
    obs = see()
    assert one(obs, normal(4, one.width))["wrist_images"] is obs["wrist_images"]


def test_nothing_is_done_unless_it_is_asked_for():
    off, obs = CameraAugmentation(3), see()
    assert off.width == 0 and off(obs) is obs


def test_shifts_are_whole_pixels_up_to_the_limit():
    count = 400
    ramp = torch.arange(12, dtype=torch.uint8)
    pictures = (16 * ramp[:, None] + ramp)[None, :, :, None].expand(count, 12, 12, 3)
    augment = CameraAugmentation(1, random_shift=2)
    noise = normal(count, 2)
    noise[0], noise[1] = 40.0, -40.0
    changed = augment({"main_images": pictures}, noise)["main_images"]
    centre = changed[:, 6, 6, 0].int()
    rows, columns = centre // 16 - 6, centre % 16 - 6
    assert set(rows.tolist()) == set(columns.tolist()) == {-2, -1, 0, 1, 2}
    assert (rows[0], columns[0], rows[1], columns[1]) == (2, 2, -2, -2)
    inner = changed[:, 2:10, 2:10, 0].int() - (16 * rows + columns)[:, None, None]
    assert torch.equal(inner, pictures[:, 2:10, 2:10, 0].int())


def test_a_crop_is_a_part_of_the_picture_scaled_to_its_size():
    places = torch.arange(0, 240, 20, dtype=torch.uint8)
    picture = torch.stack([places[:, None].expand(12, 12), places.expand(12, 12)], -1)
    picture = torch.cat([picture, torch.full((12, 12, 1), 7, dtype=torch.uint8)], -1)
    pictures = picture.expand(3, 12, 12, 3)
    share = torch.tensor([1.0, 0.5, 0.5])
    whole, first, last = cropped(pictures, share, torch.tensor([0.3, 0.0, 1.0]), share * 0)
    assert torch.equal(whole, picture)
    assert (first[..., 2] == 7).all() and (last[..., 2] == 7).all()
    # The middle of pixel i of the part is at (i + 1/2) / 2 of the whole, from where it begins.
    steps = 20 * (torch.arange(12) * 0.5 - 0.25)
    for part, begin in ((first, 0), (last, 120)):
        assert (part[:, 0, 0] - (steps + begin).clamp(0, 220)).abs().max() <= 0.5
        assert (part[0, :, 1] - steps.clamp(0, 220)).abs().max() <= 0.5


@pytest.mark.parametrize("size", [(9, 13), (8, 8)])
def test_crops_leave_at_least_their_share(size):
    height, width = size
    rows = torch.linspace(0, 255, height)[:, None].expand(height, width)
    pictures = rows.round().to(torch.uint8)[None, :, :, None].expand(300, height, width, 3)
    augment = CameraAugmentation(1, random_crop=0.6)
    changed = augment({"main_images": pictures}, normal(300, 3))["main_images"].float()
    # Between the middles of the first and the last row.
    spread = changed[:, -1, 0, 0] - changed[:, 0, 0, 0]
    assert 255 * 0.6 - 2 <= spread.min() < 255 * 0.65
    assert spread.max() > 255 * 0.95


def test_colours_stay_within_their_bounds():
    plain = torch.full((300, 4, 4, 3), 100, dtype=torch.uint8)
    bright = CameraAugmentation(1, brightness_jitter=0.3)
    levels = bright({"main_images": plain}, normal(300, 1))["main_images"][:, 0, 0, 0]
    assert 70 <= levels.min() < 75 and 125 < levels.max() <= 130
    white = bright({"main_images": plain + 150}, normal(300, 1))["main_images"]
    assert white.max() == 255 and white.min() >= 170
    contrast = CameraAugmentation(1, contrast_jitter=0.5)
    halves = plain.clone()
    halves[:, 2:] = 140
    changed = contrast({"main_images": halves}, normal(300, 1))["main_images"].float()
    apart = changed[:, 3, 0, 0] - changed[:, 0, 0, 0]
    assert 19 <= apart.min() < 24 and 56 < apart.max() <= 61
    assert (changed.mean((1, 2, 3)) - 120).abs().max() <= 1


def make_vla(kind, **keys):
    if kind in FLOWS:
        return make_flow(kind, **keys)
    return make(kind, vision_towers=TOWERS, num_images_in_input=2, **keys)


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft", *FLOWS])
def test_a_policy_learns_from_changed_pictures_and_acts_on_what_is_there(kind, monkeypatch):
    policy, plain = make_vla(kind, **ALL), make_vla(kind)
    obs = see() | {"main_images": torch.randint(0, 256, (4, 12, 12, 3)).byte()}
    actions = torch.zeros(4, 2, 3)
    seen = []

    def noted(env_obs):
        seen.append(env_obs)
        return type(policy).policy_inputs(policy, env_obs)

    monkeypatch.setattr(policy, "policy_inputs", noted)
    noise = normal(4, policy.sft_noise_width)
    own = plain.sft_noise_width

    def sft(who, augment, noise):
        drawn = {"noise": noise} if noise.shape[1] else {}
        out = who("sft", observations=obs, actions=actions, augment=augment, **drawn)
        return out["losses"] if "losses" in out else out["logprobs"]

    changed, again, kept = (sft(policy, on, noise) for on in (True, True, False))
    assert torch.equal(changed, again) and not torch.equal(changed, kept)
    # What is no augmentation is drawn from the same numbers as without any.
    assert torch.equal(kept, sft(plain, True, noise[:, :own]))
    with torch.no_grad():
        policy.predict_action_batch(obs, mode="train")
        policy.predict_action_batch(obs, mode="eval")
        policy.predict_values(obs)
        policy.replay_inputs(obs)
    for number, env_obs in enumerate(seen):
        views = zip(camera_views(env_obs, 2), camera_views(obs, 2), strict=True)
        assert [torch.equal(*pair) for pair in views] == [number > 1] * 2, number
    assert len(seen) >= 6
    with pytest.raises(ValueError, match=r"random_crop is 0.7, and model.num_images_in_input is 0"):
        keys = {"num_images_in_input": 0, "random_crop": 0.7}
        make_flow(kind, **keys) if kind in FLOWS else make(kind, **keys)
