"""The networks of pi0 and pi0.5: PaliGemma and an action expert, under the names of their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.embodiment.flow_vla.decoder import Decoder, DecoderSizes
from rlinf.models.embodiment.flow_vla.network import (
    ExpertNetwork,
    Prefix,
    embedded_time,
    extended,
    linear,
    prefix_of,
    suffix_of,
)
from rlinf.models.embodiment.flow_vla.siglip import siglip_tower

_GEMMAS = {"gemma_2b": (2048, 16384), "gemma_300m": (1024, 4096)}
"""Hidden units, and units between the layers of an MLP, by the names of `config.json`."""
_VARIANTS = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}


@dataclass(frozen=True)
class OpenPISizes:
    """Sizes of the network; the defaults are the published ones.

    Attributes:
        vision: Of the vision tower, as in the config of SigLIP's.
        text: Of the language model.
        vocab_size: Rows of the embedding.
        expert_hidden_size: Hidden units of the expert, which has as many layers and heads.
        expert_intermediate_size: Units between the two layers of its MLPs.
        max_state_dim: Numbers in a padded state.
        max_action_dim: Numbers in a padded action.
    """

    vision: Mapping[str, Any] = field(
        default_factory=lambda: {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 224,
            "patch_size": 14,
        }
    )
    text: DecoderSizes = DecoderSizes(2048, 16384, 18, 8, 1, 256, gemma=True)
    vocab_size: int = 257152
    expert_hidden_size: int = 1024
    expert_intermediate_size: int = 4096
    max_state_dim: int = 32
    max_action_dim: int = 32

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> OpenPISizes:
        """Return the sizes that a `config.json` in a public layout says.

        Raises:
            ValueError: One of its variants is not known.
        """
        found = []
        for key, default in _VARIANTS.items():
            variant = config.get(key, default)
            if variant not in _GEMMAS:
                raise ValueError(
                    f"config.json of the model has {key}: {variant!r}; known: {', '.join(_GEMMAS)}"
                )
            found.append(_GEMMAS[variant])
        sizes, (text, expert) = cls(), found
        dims = {"max_state_dim": 32, "max_action_dim": 32}
        return replace(
            sizes,
            text=replace(sizes.text, hidden_size=text[0], intermediate_size=text[1]),
            expert_hidden_size=expert[0],
            expert_intermediate_size=expert[1],
            # openpi's own files have one number for both.
            **{key: config.get(key, config.get("action_dim", n)) for key, n in dims.items()},
        )

    def config(self) -> dict[str, Any]:
        """Return what `config.json` says of them, as far as it can."""
        names = {sizes: name for name, sizes in _GEMMAS.items()}
        text = self.text.hidden_size, self.text.intermediate_size
        expert = self.expert_hidden_size, self.expert_intermediate_size
        size = self.vision["image_size"]
        return {
            "paligemma_variant": names.get(text, "gemma_2b"),
            "action_expert_variant": names.get(expert, "gemma_300m"),
            "image_resolution": [size, size],
        }


class OpenPINetwork(ExpertNetwork):
    """Pictures and instruction are the prefix; actions see each other.

    Attributes:
        adaptive: Norms of the expert depend on time, as in pi0.5, and it sees no state; else time
            is part of the actions and the state is a place before them, as in pi0.
    """

    adaptive: ClassVar[bool]
    centred = True
    token_embedding = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    vision_parts = ("paligemma_with_expert.paligemma.model.vision_tower",)
    prefix_parts = ("paligemma_with_expert.paligemma",)
    expert_parts = ("paligemma_with_expert.gemma_expert",)
    renamed: ClassVar[dict[str, str]] = {
        token_embedding: "paligemma_with_expert.paligemma.lm_head.weight"
    }

    def __init__(self, sizes: OpenPISizes) -> None:
        """Make the parts, with random weights."""
        super().__init__()
        self.sizes, text = sizes, sizes.text
        self.action_dim, self.state_dim = sizes.max_action_dim, sizes.max_state_dim
        self.image_size = sizes.vision["image_size"]
        self.prefix_size, self.expert_size = text.hidden_size, sizes.expert_hidden_size
        width = sizes.expert_hidden_size
        self.unused = {
            "paligemma_with_expert.gemma_expert.lm_head.weight": (sizes.vocab_size, width)
        }
        expert = replace(text, hidden_size=width, intermediate_size=sizes.expert_intermediate_size)
        projector = nn.Linear(sizes.vision["hidden_size"], text.hidden_size)
        inner = {
            "vision_tower": nn.ModuleDict({"vision_model": siglip_tower(sizes.vision)}),
            "multi_modal_projector": nn.ModuleDict({"linear": projector}),
            "language_model": Decoder(text, sizes.vocab_size),
        }
        cond = width if self.adaptive else None
        self.paligemma_with_expert = nn.ModuleDict(
            {
                "paligemma": nn.ModuleDict({"model": nn.ModuleDict(inner)}),
                "gemma_expert": nn.ModuleDict({"model": Decoder(expert, cond_dim=cond)}),
            }
        )
        self.action_in_proj = nn.Linear(self.action_dim, width)
        self.action_out_proj = nn.Linear(width, self.action_dim)

    def encode(
        self, pictures: Sequence[Tensor], ids: Tensor, valid: Tensor, states: Tensor
    ) -> Prefix:
        """See `ExpertNetwork.encode`."""
        decoder = self.paligemma_with_expert["paligemma"]["model"]["language_model"]
        embeds = torch.cat([*map(self._look, pictures), decoder.embed(ids)], 1)
        before = embeds.shape[1] - ids.shape[1]
        valid = functional.pad(valid, (before, 0), value=True)
        return prefix_of(decoder, embeds, valid, [0] * embeds.shape[1])

    @property
    def expert(self) -> Decoder:
        """The stack of the expert."""
        return self.paligemma_with_expert["gemma_expert"]["model"]

    def _look(self, picture: Tensor) -> Tensor:
        """Return the places of a picture, which are not scaled as those of words are."""
        model = self.paligemma_with_expert["paligemma"]["model"]
        tower, projector = model["vision_tower"]["vision_model"], model["multi_modal_projector"]
        patches = tower(picture.to(tower.post_layernorm.weight.dtype)).last_hidden_state
        return projector["linear"](patches)


class Pi0Network(OpenPINetwork):
    """pi0: the state is a place between prefix and actions."""

    adaptive = False

    def __init__(self, sizes: OpenPISizes) -> None:
        """Make the parts, with random weights."""
        super().__init__(sizes)
        width = self.expert_size
        self.state_proj = nn.Linear(self.state_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def encode(
        self, pictures: Sequence[Tensor], ids: Tensor, valid: Tensor, states: Tensor
    ) -> Prefix:
        """See `ExpertNetwork.encode`: the state sees no action, and is computed once, too."""
        prefix = super().encode(pictures, ids, valid, states)
        state = linear(self.state_proj, states).unsqueeze(1)
        _, memory = suffix_of(self.expert, prefix, state, causal=False)
        return extended(prefix, memory)

    def velocity(self, prefix: Prefix, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """See `ExpertNetwork.velocity`."""
        actions = linear(self.action_in_proj, x)
        when = embedded_time(time, self.action_in_proj).unsqueeze(1).expand_as(actions)
        inner = functional.silu(self.action_time_mlp_in(torch.cat([actions, when], -1)))
        embeds = self.action_time_mlp_out(inner)
        hidden, _ = suffix_of(self.expert, prefix, embeds, causal=False)
        return self.action_out_proj(hidden), hidden


class Pi05Network(OpenPINetwork):
    """pi0.5: norms of the expert depend on time, and the state is part of the prompt, if at all."""

    adaptive = True

    def __init__(self, sizes: OpenPISizes) -> None:
        """Make the parts, with random weights."""
        super().__init__(sizes)
        width = self.expert_size
        self.time_mlp_in, self.time_mlp_out = nn.Linear(width, width), nn.Linear(width, width)

    def velocity(self, prefix: Prefix, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """See `ExpertNetwork.velocity`."""
        inner = functional.silu(self.time_mlp_in(embedded_time(time, self.time_mlp_in)))
        cond = functional.silu(self.time_mlp_out(inner))
        embeds = linear(self.action_in_proj, x)
        hidden, _ = suffix_of(self.expert, prefix, embeds, causal=False, cond=cond)
        return self.action_out_proj(hidden), hidden
