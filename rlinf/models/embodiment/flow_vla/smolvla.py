"""The network of SmolVLA: SmolVLM and an action expert, under the names of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.causal_lm.load import transformers_module
from rlinf.models.embodiment.flow_vla.decoder import Decoder, DecoderSizes
from rlinf.models.embodiment.flow_vla.network import (
    ExpertNetwork,
    Prefix,
    embedded_time,
    linear,
    prefix_of,
    suffix_of,
)

VLM = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
"""The vision-language model whose sizes are the defaults."""


_KNOWN: dict[str, Any] = {
    "vlm_model_name": VLM,
    "attention_mode": "cross_attn",
    "add_image_special_tokens": False,
    "num_expert_layers": -1,
}
"""Keys of `config.json` that must have these values."""


@dataclass(frozen=True)
class SmolVLASizes:
    """Sizes of the network; the defaults are those of `smolvla_base`.

    Attributes:
        vision: Of the vision tower, as in the config of SmolVLM's.
        scale_factor: Patches of a row, and rows of patches, that are one place of the prefix.
        text: Of the language model; only its first layers are used.
        vocab_size: Rows of the embedding.
        expert_hidden_size: Hidden units of the expert, which has as many layers and heads.
        expert_intermediate_size: Units between the two layers of its MLPs.
        self_attn_every_n_layers: Every so many layers, from the first on, the expert attends to
            prefix and actions; the others attend to the prefix alone.
        max_state_dim: Numbers in a padded state.
        max_action_dim: Numbers in a padded action.
    """

    vision: Mapping[str, Any] = field(
        default_factory=lambda: {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 512,
            "patch_size": 16,
        }
    )
    scale_factor: int = 4
    text: DecoderSizes = DecoderSizes(960, 2560, 16, 15, 5, 64, 1e-5)
    vocab_size: int = 49280
    expert_hidden_size: int = 720
    expert_intermediate_size: int = 2048
    self_attn_every_n_layers: int = 2
    max_state_dim: int = 32
    max_action_dim: int = 32

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> SmolVLASizes:
        """Return the sizes that a `config.json` in the public layout says.

        Raises:
            ValueError: The network is of another kind, or of a model that is not known.
        """
        for key, known in _KNOWN.items():
            if config.get(key, known) != known:
                raise ValueError(
                    f"config.json of the model has {key}: {config[key]!r}; only {known!r} is known"
                )
        sizes = cls()
        width = int(sizes.text.hidden_size * config.get("expert_width_multiplier", 0.75))
        inner = 4 * int(2 * width / 3)
        return replace(
            sizes,
            text=replace(sizes.text, num_hidden_layers=config.get("num_vlm_layers", 16)),
            expert_hidden_size=width,
            expert_intermediate_size=-(-inner // 256) * 256,
            self_attn_every_n_layers=config.get("self_attn_every_n_layers", 2),
            max_state_dim=config.get("max_state_dim", 32),
            max_action_dim=config.get("max_action_dim", 32),
        )

    def config(self) -> dict[str, Any]:
        """Return what `config.json` says of them, as far as it can."""
        size = self.vision["image_size"]
        return {
            **_KNOWN,
            "expert_width_multiplier": self.expert_hidden_size / self.text.hidden_size,
            "num_vlm_layers": self.text.num_hidden_layers,
            "self_attn_every_n_layers": self.self_attn_every_n_layers,
            "resize_imgs_with_padding": [size, size],
        }


class SmolVLANetwork(ExpertNetwork):
    """Pictures, instruction and state are the prefix; actions see those before them.

    The expert's layers attend to prefix and actions, or to the prefix alone, by turns.
    """

    token_embedding = "vlm_with_expert.vlm.model.text_model.embed_tokens.weight"
    centred = False
    vision_parts = (
        "vlm_with_expert.vlm.model.vision_model",
        "vlm_with_expert.vlm.model.connector",
    )
    prefix_parts = ("vlm_with_expert.vlm",)
    expert_parts = ("vlm_with_expert.lm_expert",)
    renamed: ClassVar[dict[str, str]] = {}

    def __init__(self, sizes: SmolVLASizes) -> None:
        """Make the parts, with random weights."""
        super().__init__()
        transformers_module()
        from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
        from transformers.models.smolvlm.modeling_smolvlm import (
            SmolVLMConnector,
            SmolVLMVisionTransformer,
        )

        self.sizes, text = sizes, sizes.text
        self.action_dim, self.state_dim = sizes.max_action_dim, sizes.max_state_dim
        self.image_size = sizes.vision["image_size"]
        self.prefix_size, self.expert_size = text.hidden_size, sizes.expert_hidden_size
        self.unused = {"vlm_with_expert.vlm.lm_head.weight": (sizes.vocab_size, text.hidden_size)}
        vision = SmolVLMVisionConfig(attn_implementation="sdpa", **sizes.vision)
        joined = SimpleNamespace(
            vision_config=vision, text_config=text, scale_factor=sizes.scale_factor
        )
        expert = replace(
            text,
            hidden_size=sizes.expert_hidden_size,
            intermediate_size=sizes.expert_intermediate_size,
        )
        memory = text.num_key_value_heads * text.head_dim
        crosses = [n % sizes.self_attn_every_n_layers > 0 for n in range(text.num_hidden_layers)]
        inner = {
            "vision_model": SmolVLMVisionTransformer(vision),
            "connector": SmolVLMConnector(joined),
            "text_model": Decoder(text, sizes.vocab_size),
        }
        self.vlm_with_expert = nn.ModuleDict(
            {
                "vlm": nn.ModuleDict({"model": nn.ModuleDict(inner)}),
                "lm_expert": Decoder(
                    expert, memory_dims=[memory if cross else None for cross in crosses]
                ),
            }
        )
        width = sizes.expert_hidden_size
        self.state_proj = nn.Linear(self.state_dim, text.hidden_size)
        self.action_in_proj = nn.Linear(self.action_dim, width)
        self.action_out_proj = nn.Linear(width, self.action_dim)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def encode(
        self, pictures: Sequence[Tensor], ids: Tensor, valid: Tensor, states: Tensor
    ) -> Prefix:
        """See `ExpertNetwork.encode`: the state is the last place, which no other sees."""
        model = self.vlm_with_expert["vlm"]["model"]
        places = [self._look(picture) for picture in pictures]
        words = model["text_model"].embed(ids)
        state = linear(self.state_proj, states).unsqueeze(1)
        embeds = torch.cat([*places, words, state.to(words.dtype)], 1)
        before = embeds.shape[1] - 1 - ids.shape[1]
        valid = functional.pad(functional.pad(valid, (before, 0), value=True), (0, 1), value=True)
        blocks = [0] * (embeds.shape[1] - 1) + [1]
        return prefix_of(model["text_model"], embeds, valid, blocks)

    def velocity(self, prefix: Prefix, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """See `ExpertNetwork.velocity`."""
        actions = linear(self.action_in_proj, x)
        when = embedded_time(time, self.action_in_proj).unsqueeze(1).expand_as(actions)
        inner = functional.silu(self.action_time_mlp_in(torch.cat([actions, when], -1)))
        embeds = self.action_time_mlp_out(inner)
        hidden, _ = suffix_of(self.vlm_with_expert["lm_expert"], prefix, embeds, causal=True)
        return self.action_out_proj(hidden), hidden

    def _look(self, picture: Tensor) -> Tensor:
        """Return the places of a picture, scaled as those of words are."""
        model = self.vlm_with_expert["vlm"]["model"]
        tower = model["vision_model"]
        patches = tower(picture.to(tower.post_layernorm.weight.dtype)).last_hidden_state
        return model["connector"](patches) * self.prefix_size**0.5
