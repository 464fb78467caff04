"""Vision towers: those of timm, where it is installed, several cameras, and FiLM."""

from functools import partial

import pytest
import torch
from torch import nn

from rlinf.models.embodiment.openvla.vision import Block, Tower, VisionBackbone, VisionTransformer
from tests.unit_tests.models.openvla.policies import TOWERS

DINO, SIGLIP = (Tower(**sizes) for sizes in TOWERS)


@pytest.mark.parametrize("tower", [DINO, SIGLIP], ids=["dino", "siglip"])
def test_names_and_numbers_are_those_of_timm(tower):
    timm = pytest.importorskip("timm")
    sizes = {
        "img_size": tower.image_size,
        "patch_size": tower.patch_size,
        "embed_dim": tower.embed_dim,
        "depth": tower.depth,
        "num_heads": tower.num_heads,
        "mlp_ratio": tower.mlp_dim / tower.embed_dim,
        "num_classes": 0,
        "norm_layer": partial(nn.LayerNorm, eps=1e-6),
        "class_token": tower.class_token,
        "reg_tokens": tower.reg_tokens,
    }
    kind = {"init_values": 1.0, "no_embed_class": True} if tower is DINO else {"global_pool": "map"}
    stock = timm.models.vision_transformer.VisionTransformer(**sizes, **kind).eval()
    for parameter in stock.parameters():
        nn.init.normal_(parameter, std=0.2)
    own = VisionTransformer(tower)
    named = {key.replace("gamma", "scale_factor"): t for key, t in stock.state_dict().items()}
    own.load_state_dict(named)
    pictures = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        scaled = (pictures - own.mean) / own.std
        expected = stock.get_intermediate_layers(scaled, n={tower.depth - 2})[0]
        torch.testing.assert_close(own(pictures), expected)


def test_features_of_towers_stand_side_by_side_and_cameras_follow_each_other():
    torch.manual_seed(0)
    backbone = VisionBackbone([DINO, SIGLIP])
    images = torch.randint(0, 256, (2, 3, 8, 8, 3), dtype=torch.uint8)
    features = backbone(images)
    assert features.shape == (2, 3 * 4, 16 + 12)
    one = images[1:, 2].permute(0, 3, 1, 2).float() / 255
    for tower, part in (
        (backbone.featurizer, features[1:, 8:, :16]),
        (backbone.fused_featurizer, features[1:, 8:, 16:]),
    ):
        torch.testing.assert_close(tower(one), part)


def test_film_scales_and_shifts_between_attention_and_layers():
    torch.manual_seed(0)
    block = Block(SIGLIP, film_dim=6)
    x, film = torch.randn(2, 5, 12), torch.randn(2, 6)
    y = x + block.attn(block.norm1(x))
    y = y * (1 + block.scale(film)[:, None]) + block.shift(film)[:, None]
    torch.testing.assert_close(block(x, film), y + block.mlp(block.norm2(y)))


def test_towers_that_do_not_go_together_are_refused():
    other = Tower(**TOWERS[1] | {"image_size": 16})
    with pytest.raises(ValueError, match=r"with \[4, 16\] patches"):
        VisionBackbone([DINO, other])


def test_what_is_never_run_is_not_trained():
    tower = VisionTransformer(SIGLIP)
    tower(torch.rand(1, 3, 8, 8)).sum().backward()
    for name, parameter in tower.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
