"""Sizes of GR00T N1.5, and where its `config.json` says them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlinf.models.embodiment.flow_vla.decoder import DecoderSizes

BUCKETS = 1000
"""Times are rounded down to one of so many."""

_KNOWN: dict[str, dict[str, Any]] = {
    "backbone_cfg": {"project_to_dim": None, "reproject_vision": False},
    "action_head_cfg": {
        "add_pos_embed": True,
        "use_vlln": True,
        "num_timestep_buckets": BUCKETS,
    },
    "action_head_cfg.diffusion_model_cfg": {
        "interleave_self_attention": True,
        "norm_type": "ada_norm",
        "positional_embeddings": None,
    },
    "action_head_cfg.vl_self_attention_cfg": {"positional_embeddings": None},
}
"""Keys of `config.json` that must have these values, by section."""


@dataclass(frozen=True)
class StackSizes:
    """Sizes of a stack of transformer blocks.

    Attributes:
        num_layers: Blocks.
        num_attention_heads: Heads.
        attention_head_dim: Numbers of a head.
    """

    num_layers: int
    num_attention_heads: int
    attention_head_dim: int

    @property
    def width(self) -> int:
        """Hidden units."""
        return self.num_attention_heads * self.attention_head_dim


@dataclass(frozen=True)
class GrootSizes:
    """Sizes of the network; the defaults are those of `GR00T-N1.5-3B`.

    Attributes:
        vision: Of the vision tower, as in the config of SigLIP.
        text: Of the language model, the first layers of a Qwen3.
        vocab_size: Rows of its embedding.
        image_token: Id of the token whose places are those of pictures.
        features: Of the blocks that refine what the language model gives; as wide as it.
        diffusion: Of the diffusion transformer.
        hidden_size: Units between the two layers of encoder and decoder, and what the diffusion
            transformer gives.
        future_tokens: Learned places between state and actions.
        max_seq_len: Most actions that are denoised together.
        num_embodiments: Robots that have layers of their own.
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
    text: DecoderSizes = DecoderSizes(
        2048, 6144, 12, 16, 8, 128, rope_base=1_000_000.0, head_norms=True
    )
    vocab_size: int = 151_680
    image_token: int = 151_669
    features: StackSizes = StackSizes(4, 32, 64)
    diffusion: StackSizes = StackSizes(16, 32, 48)
    hidden_size: int = 1024
    future_tokens: int = 32
    max_seq_len: int = 1024
    num_embodiments: int = 32
    max_state_dim: int = 64
    max_action_dim: int = 32

    def check(self) -> None:
        """See to it that the parts fit each other.

        Raises:
            ValueError: They do not.
        """
        if self.features.width != self.text.hidden_size:
            raise ValueError(
                f"features has {self.features.num_attention_heads} heads of "
                f"{self.features.attention_head_dim}, and text.hidden_size is "
                f"{self.text.hidden_size}: their product must be the same"
            )

    @property
    def image_places(self) -> int:
        """Places that a picture takes."""
        return (self.vision["image_size"] // self.vision["patch_size"]) ** 2

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> GrootSizes:
        """Return the sizes that a `config.json` in the public layout says.

        Args:
            config: Of Isaac-GR00T. That of lerobot says no sizes: they are the published ones.

        Raises:
            ValueError: The network is of another kind.
        """
        for section, known in _KNOWN.items():
            said = _section(config, section)
            for key, value in known.items():
                if said.get(key, value) != value:
                    raise ValueError(
                        f"config.json of the model has {section}.{key}: {said[key]!r}; only "
                        f"{value!r} is known"
                    )
        sizes, head = cls(), config.get("action_head_cfg", {})
        layers = config.get("backbone_cfg", {}).get("select_layer", sizes.text.num_hidden_layers)
        return replace(
            sizes,
            text=replace(sizes.text, num_hidden_layers=layers),
            features=_stack(sizes.features, head.get("vl_self_attention_cfg", {})),
            diffusion=_stack(sizes.diffusion, head.get("diffusion_model_cfg", {})),
            hidden_size=head.get("hidden_size", sizes.hidden_size),
            future_tokens=head.get("num_target_vision_tokens", sizes.future_tokens),
            max_seq_len=head.get("max_seq_len", sizes.max_seq_len),
            num_embodiments=head.get("max_num_embodiments", sizes.num_embodiments),
            max_state_dim=head.get("max_state_dim", sizes.max_state_dim),
            max_action_dim=head.get("action_dim", sizes.max_action_dim),
        )

    def config(self) -> dict[str, Any]:
        """Return what `config.json` says of them; sizes of the backbone are in no key of it."""
        known = {section: dict(_KNOWN[section]) for section in _KNOWN}
        diffusion = vars(self.diffusion) | {
            "cross_attention_dim": self.text.hidden_size,
            "output_dim": self.hidden_size,
        }
        head = {
            "hidden_size": self.hidden_size,
            "input_embedding_dim": self.diffusion.width,
            "backbone_embedding_dim": self.text.hidden_size,
            "num_target_vision_tokens": self.future_tokens,
            "max_seq_len": self.max_seq_len,
            "max_num_embodiments": self.num_embodiments,
            "max_state_dim": self.max_state_dim,
            "max_action_dim": self.max_action_dim,
            "action_dim": self.max_action_dim,
            "diffusion_model_cfg": diffusion | known["action_head_cfg.diffusion_model_cfg"],
            "vl_self_attention_cfg": vars(self.features)
            | known["action_head_cfg.vl_self_attention_cfg"],
        }
        return {
            "backbone_cfg": known["backbone_cfg"] | {"select_layer": self.text.num_hidden_layers},
            "action_head_cfg": known["action_head_cfg"] | head,
        }


def _section(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    for key in path.split("."):
        config = config.get(key, {})
    return config


def _stack(sizes: StackSizes, said: Mapping[str, Any]) -> StackSizes:
    return replace(sizes, **{key: said[key] for key in vars(sizes) if key in said})
