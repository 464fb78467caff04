"""Vision transformers with the names and numbers of timm, as OpenVLA's files have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

IMAGENET = ((0.484375, 0.455078125, 0.40625), (0.228515625, 0.2236328125, 0.224609375))
"""Mean and deviation of DINOv2's pictures, as OpenVLA's files have them (rounded to bfloat16)."""
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Those of SigLIP's."""


@dataclass(frozen=True)
class Tower:
    """Sizes of one vision transformer.

    Attributes:
        embed_dim: Hidden units.
        depth: Blocks; features come from the last but one.
        num_heads: Attention heads of each.
        mlp_dim: Hidden units of each block's two layers.
        patch_size: Height and width of a patch (pixels).
        image_size: Height and width of a picture (pixels).
        class_token: Has a token besides the patches, as DINOv2.
        reg_tokens: Further such tokens.
        layer_scale: Scales what blocks add, as DINOv2.
        attn_pool: Has a pooling that is not used, but is part of the file, as SigLIP.
        norm_eps: Of layer norms.
        imagenet: Pictures are normalised by ImageNet's mean and deviation; else to [-1, 1].
    """

    embed_dim: int
    depth: int
    num_heads: int
    mlp_dim: int
    patch_size: int = 14
    image_size: int = 224
    class_token: bool = False
    reg_tokens: int = 0
    layer_scale: bool = False
    attn_pool: bool = False
    norm_eps: float = 1e-6
    imagenet: bool = False

    @property
    def patches(self) -> int:
        """Patches of a picture."""
        return (self.image_size // self.patch_size) ** 2


DINOV2 = Tower(1024, 24, 16, 4096, class_token=True, reg_tokens=4, layer_scale=True, imagenet=True)
"""`vit_large_patch14_reg4_dinov2.lvd142m` of timm at 224 pixels."""
SIGLIP = Tower(1152, 27, 16, 4304, attn_pool=True)
"""`vit_so400m_patch14_siglip_224` of timm."""
TOWERS = {
    "vit_large_patch14_reg4_dinov2.lvd142m": DINOV2,
    "vit_so400m_patch14_siglip_224": SIGLIP,
}
"""By timm's names."""


class Attention(nn.Module):
    """Self-attention of a block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[n, T, D]` for x of the same shape."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(*qkv)
        return self.proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[n, T, D]` for x of the same shape."""
        return self.fc2(functional.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """A factor per hidden unit; timm calls it gamma, and OpenVLA's files `scale_factor`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((dim,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        """Return x scaled."""
        return x * self.scale_factor


class Block(nn.Module):
    """Attention, then two layers; with FiLM, an instruction scales and shifts what is between."""

    def __init__(self, tower: Tower, film_dim: int | None) -> None:
        super().__init__()
        dim = tower.embed_dim
        self.norm1, self.norm2 = (nn.LayerNorm(dim, tower.norm_eps) for _ in range(2))
        self.attn = Attention(dim, tower.num_heads)
        self.mlp = Mlp(dim, tower.mlp_dim)
        self.ls1, self.ls2 = (
            LayerScale(dim) if tower.layer_scale else nn.Identity() for _ in range(2)
        )
        self.scale = self.shift = None
        if film_dim is not None:
            self.scale, self.shift = nn.Linear(film_dim, dim), nn.Linear(film_dim, dim)

    def forward(self, x: Tensor, film: Tensor | None = None) -> Tensor:
        """Return `[n, T, D]` for x of the same shape and the mean of an instruction, `[n, H]`."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        if self.scale is not None:
            x = x * (1.0 + self.scale(film).unsqueeze(1)) + self.shift(film).unsqueeze(1)
        return x + self.ls2(self.mlp(self.norm2(x)))


def is_film(name: str) -> bool:
    """Return whether a weight, named as in `named_parameters`, is one of FiLM."""
    return ".blocks." in name and name.split(".")[-2] in ("scale", "shift")


class PatchEmbed(nn.Module):
    """Cuts a picture into patches."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, size, size)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return `[n, P, D]` for pictures `[n, 3, H, W]`."""
        return self.proj(pictures).flatten(2).transpose(1, 2)


class AttentionPool(nn.Module):
    """SigLIP's pooling: part of the file, never run."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        dim = tower.embed_dim
        self.latent = nn.Parameter(torch.zeros(1, 1, dim))
        self.q, self.kv, self.proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )
        self.norm, self.mlp = nn.LayerNorm(dim, tower.norm_eps), Mlp(dim, tower.mlp_dim)


class VisionTransformer(nn.Module):
    """Patch features of one tower: those of the last but one block, without a norm after it."""

    def __init__(self, tower: Tower, film_dim: int | None = None) -> None:
        super().__init__()
        dim = tower.embed_dim
        self.tower = tower
        self.patch_embed = PatchEmbed(dim, tower.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if tower.class_token else None
        self.reg_token = None
        if tower.reg_tokens:
            self.reg_token = nn.Parameter(torch.zeros(1, tower.reg_tokens, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, tower.patches, dim))
        nn.init.normal_(self.pos_embed, std=0.02)
        self.blocks = nn.ModuleList(Block(tower, film_dim) for _ in range(tower.depth))
        self.norm = nn.LayerNorm(dim, tower.norm_eps)
        self.attn_pool = AttentionPool(tower) if tower.attn_pool else None
        for unused in (self.blocks[-1], self.norm, self.attn_pool):
            if unused is not None:
                unused.requires_grad_(False)
        mean, std = IMAGENET if tower.imagenet else HALVES
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def forward(self, pictures: Tensor, film: Tensor | None = None) -> Tensor:
        """Return `[n, P, D]`.

        Args:
            pictures: From 0 to 1, `[n, 3, H, W]`.
            film: Mean of the instruction, `[n, H]`.
        """
        x = self.patch_embed(((pictures - self.mean) / self.std).to(self.pos_embed.dtype))
        x = x + self.pos_embed
        before = [
            t.expand(len(x), -1, -1) for t in (self.cls_token, self.reg_token) if t is not None
        ]
        x = torch.cat([*before, x], 1)
        for block in self.blocks[:-1]:
            x = block(x, film)
        return x[:, sum(t.shape[1] for t in before) :]


class VisionBackbone(nn.Module):
    """One or two towers that see the same pictures; their features stand side by side."""

    def __init__(self, towers: Sequence[Tower], film_dim: int | None = None) -> None:
        super().__init__()
        if len(towers) > 2 or len({tower.patches for tower in towers}) != 1:
            raise ValueError(
                f"model.vision_towers has {len(towers)} towers with "
                f"{[tower.patches for tower in towers]} patches: there may be one or two, with "
                "equally many patches"
            )
        self.has_film = film_dim is not None
        self.featurizer = VisionTransformer(towers[0], film_dim)
        self.fused_featurizer = None
        if len(towers) == 2:
            self.fused_featurizer = VisionTransformer(towers[1], film_dim)

    def forward(self, images: Tensor, film: Tensor | None = None) -> Tensor:
        """Return features of the patches of all cameras, one after the other, `[n, P, F]`.

        Args:
            images: `[n, V, H, W, 3]` uint8.
            film: Mean of the instruction, `[n, H]`.
        """
        count, views = images.shape[:2]
        pictures = images.flatten(0, 1).permute(0, 3, 1, 2).float() / 255.0
        film = None if film is None else film.repeat_interleave(views, 0)
        towers = [t for t in (self.featurizer, self.fused_featurizer) if t is not None]
        features = torch.cat([tower(pictures, film) for tower in towers], -1)
        return features.reshape(count, -1, features.shape[-1])
