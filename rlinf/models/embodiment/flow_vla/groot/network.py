"""The network of GR00T N1.5: Eagle and an action head, under the names of its files.

GR00T counts time from 0 (noise) to 1 (action), in whole thousandths, and its velocities lead from
noise to action. The flow of `rlinf.models.embodiment.flow` goes from 1 (noise) to 0 (action) and
its velocities lead from action to noise: time and sign are turned round in `velocity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.flow_vla.decoder import Decoder
from rlinf.models.embodiment.flow_vla.groot.layers import (
    ActionEncoder,
    DiffusionTransformer,
    EmbodimentMLP,
    TransformerBlock,
)
from rlinf.models.embodiment.flow_vla.groot.sizes import BUCKETS, GrootSizes
from rlinf.models.embodiment.flow_vla.network import ExpertNetwork, positions_of
from rlinf.models.embodiment.flow_vla.pictures import cropped_pictures
from rlinf.models.embodiment.flow_vla.siglip import siglip_tower

EMBODIMENTS = {"new_embodiment": 31, "gr1": 24, "agibot_genie1": 26, "oxe_droid": 17}
"""Which layers belong to which robot, by its tag."""

_EAGLE = "backbone.eagle_model"
_POOLING = f"{_EAGLE}.vision_model.vision_model.head"
_ROUNDING = 1e-3
"""Of a bucket: times of a grid must not fall below their own because of float32."""


class Features(NamedTuple):
    """What an observation is to the diffusion transformer.

    Attributes:
        memory: Refined features of Eagle, `[n, P, H]`.
        valid: Which of the P places are no padding, bool `[n, P]`.
        pooled: Mean of the valid ones, `[n, H]`.
        state: The embedded state, `[n, 1, W]`.
    """

    memory: Tensor
    valid: Tensor
    pooled: Tensor
    state: Tensor


class ActionHead(nn.Module):
    """Everything after Eagle.

    Args:
        sizes: Of the network.
        own: Number of the robot at work.
    """

    def __init__(self, sizes: GrootSizes, own: int) -> None:
        super().__init__()
        count, width, hidden = sizes.num_embodiments, sizes.diffusion.width, sizes.hidden_size
        self.vlln = nn.LayerNorm(sizes.text.hidden_size)
        blocks = (TransformerBlock(sizes.features) for _ in range(sizes.features.num_layers))
        self.vl_self_attention = nn.ModuleDict({"transformer_blocks": nn.ModuleList(blocks)})
        self.state_encoder = EmbodimentMLP(count, sizes.max_state_dim, hidden, width, own)
        self.action_encoder = ActionEncoder(count, sizes.max_action_dim, width, own)
        self.model = DiffusionTransformer(sizes.diffusion, sizes.text.hidden_size, hidden)
        self.action_decoder = EmbodimentMLP(count, hidden, hidden, sizes.max_action_dim, own)
        self.future_tokens = nn.Embedding(sizes.future_tokens, width)
        self.position_embedding = nn.Embedding(sizes.max_seq_len, width)
        for embedding in (self.future_tokens, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def refine(self, features: Tensor, valid: Tensor) -> Tensor:
        """Return features of Eagle `[n, P, H]` after they have seen each other."""
        x, mask = self.vlln(features), valid[:, None, None, :]
        for block in self.vl_self_attention["transformer_blocks"]:
            x = block(x, mask=mask)
        return x

    def denoise(self, seen: Features, x: Tensor, bucket: Tensor) -> Tensor:
        """Return what the diffusion transformer gives for actions `[n, T, D]`."""
        steps = x.shape[1]
        actions = self.action_encoder(x, bucket) + self.position_embedding.weight[:steps]
        future = self.future_tokens.weight.expand(len(x), -1, -1)
        tokens = torch.cat([seen.state, future, actions], 1)
        return self.model(tokens, seen.memory, seen.valid, bucket)[:, -steps:]


class GrootNetwork(ExpertNetwork):
    """Eagle reads pictures and instruction; state and actions are places of another stack.

    Padding is masked wherever it could be seen. Isaac-GR00T lets the action head attend to it, so
    that what it computes for a sample depends on the batch; this is what it computes for a sample
    alone. Dropout is left out, so that log-probabilities can be computed again.

    Attributes:
        tag: Of the robot at work.
    """

    token_embedding = f"{_EAGLE}.language_model.model.embed_tokens.weight"
    vision_parts = (f"{_EAGLE}.vision_model", f"{_EAGLE}.mlp1")
    prefix_parts = ("backbone",)
    renamed: ClassVar[dict[str, str]] = {token_embedding: f"{_EAGLE}.language_model.lm_head.weight"}

    def __init__(self, sizes: GrootSizes, tag: str) -> None:
        """Make the parts, with random weights.

        Args:
            sizes: See `GrootSizes`.
            tag: One of `EMBODIMENTS`.

        Raises:
            ValueError: The parts do not fit, or there are no layers for the robot.
        """
        super().__init__()
        sizes.check()
        own = EMBODIMENTS[tag]
        if own >= sizes.num_embodiments:
            raise ValueError(
                f"model.embodiment_tag is '{tag}', robot number {own}, and the network has layers "
                f"for {sizes.num_embodiments}: raise num_embodiments above {own}"
            )
        self.sizes, self.tag, text = sizes, tag, sizes.text
        self.action_dim, self.state_dim = sizes.max_action_dim, sizes.max_state_dim
        self.image_size = sizes.vision["image_size"]
        self.prefix_size, self.expert_size = text.hidden_size, sizes.hidden_size
        self.unused = _pooling(sizes.vision["hidden_size"], sizes.vision["intermediate_size"])
        eagle = {
            "vision_model": nn.ModuleDict({"vision_model": siglip_tower(sizes.vision)}),
            "mlp1": nn.ModuleList([nn.Linear(sizes.vision["hidden_size"], text.hidden_size)]),
            "language_model": nn.ModuleDict({"model": Decoder(text, sizes.vocab_size)}),
        }
        self.backbone = nn.ModuleDict({"eagle_model": nn.ModuleDict(eagle)})
        self.action_head = ActionHead(sizes, own)

    def prepare(self, images: Tensor) -> Tensor:
        """See `ExpertNetwork.prepare`: the border is cut off, and the aspect not kept."""
        return cropped_pictures(images, self.image_size)

    def encode(
        self, pictures: Sequence[Tensor], ids: Tensor, valid: Tensor, states: Tensor
    ) -> Features:
        """See `ExpertNetwork.encode`: pictures are put in where the ids have their token."""
        decoder = self.backbone["eagle_model"]["language_model"]["model"]
        embeds = decoder.embed_tokens(ids)
        if pictures:
            places = torch.cat([self._look(picture) for picture in pictures], 1)
            there = (ids == self.sizes.image_token).unsqueeze(-1)
            embeds = embeds.masked_scatter(there, places.to(embeds.dtype))
        count = ids.shape[1]
        before = torch.ones(count, count, dtype=torch.bool, device=ids.device).tril()
        # A place of padding that sees nothing would be NaN.
        alone = torch.eye(count, dtype=torch.bool, device=ids.device)
        mask = (before & valid[:, None, :] | alone).unsqueeze(1)
        hidden, _ = decoder(embeds, positions_of(valid), mask)
        memory = self.action_head.refine(hidden, valid)
        counted = valid.unsqueeze(-1).to(memory.dtype)
        pooled = (memory * counted).sum(1) / counted.sum(1)
        state = self.action_head.state_encoder(states.unsqueeze(1))
        return Features(memory, valid, pooled, state)

    def velocity(self, prefix: Features, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """See `ExpertNetwork.velocity`, and the module for how time is turned round."""
        hidden = self.action_head.denoise(prefix, x, bucket_of(time))
        return -self.action_head.action_decoder(hidden), hidden

    def _look(self, picture: Tensor) -> Tensor:
        """Return the places of a picture, `[n, places, H]`."""
        eagle = self.backbone["eagle_model"]
        tower = eagle["vision_model"]["vision_model"]
        patches = tower(picture.to(tower.post_layernorm.weight.dtype)).last_hidden_state
        return eagle["mlp1"][0](patches)


def bucket_of(time: Tensor) -> Tensor:
    """Return GR00T's times, from 0 (noise) to 1000 (action), of times from 1 to 0; int64."""
    return ((1.0 - time) * BUCKETS + _ROUNDING).long()


def _pooling(width: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of SigLIP's pooling, which some files have."""
    shapes = {
        "probe": (1, 1, width),
        "attention.in_proj_weight": (3 * width, width),
        "attention.in_proj_bias": (3 * width,),
        "attention.out_proj.weight": (width, width),
        "attention.out_proj.bias": (width,),
        "layernorm.weight": (width,),
        "layernorm.bias": (width,),
        "mlp.fc1.weight": (inner, width),
        "mlp.fc1.bias": (inner,),
        "mlp.fc2.weight": (width, inner),
        "mlp.fc2.bias": (width,),
    }
    return {f"{_POOLING}.{name}": shape for name, shape in shapes.items()}
