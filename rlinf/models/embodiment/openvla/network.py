"""The network of OpenVLA: vision towers, projectors and a Llama, under the names of its files.

Shapes: n samples, V cameras, P patches of all cameras, L prompt tokens, D action tokens, H hidden
units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.causal_lm.load import transformers_module
from rlinf.models.embodiment.openvla.vision import Tower, VisionBackbone, is_film

MAIN = ("vision_backbone", "projector", "language_model")
"""Parts of the network that are pretrained: adapters are learned beside them."""


class Prefix(NamedTuple):
    """What stands before the actions of a sequence: BOS, patches, proprioception, prompt.

    Attributes:
        embeds: `[n, S, H]`.
        valid: Which places are no padding, bool `[n, S]`.
    """

    embeds: Tensor
    valid: Tensor


class Projector(nn.Module):
    """From patch features to the language model: three layers of two towers, two of one."""

    def __init__(self, vision_dim: int, hidden: int, fused: bool) -> None:
        super().__init__()
        if fused:
            self.fc1 = nn.Linear(vision_dim, 4 * vision_dim)
            self.fc2 = nn.Linear(4 * vision_dim, hidden)
            self.fc3: nn.Linear | None = nn.Linear(hidden, hidden)
        else:
            self.fc1 = nn.Linear(vision_dim, hidden)
            self.fc2 = nn.Linear(hidden, hidden)
            self.fc3 = None

    def forward(self, patches: Tensor) -> Tensor:
        """Return `[n, P, H]` for features `[n, P, F]`."""
        out = self.fc2(functional.gelu(self.fc1(patches)))
        return out if self.fc3 is None else self.fc3(functional.gelu(out))


class ProprioProjector(nn.Module):
    """From the state to one token."""

    def __init__(self, state_dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state_dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)

    def forward(self, states: Tensor) -> Tensor:
        """Return `[n, H]` for states `[n, S]`."""
        return self.fc2(functional.gelu(self.fc1(states.to(self.fc1.weight.dtype))))


class OpenVLANetwork(nn.Module):
    """Makes sequences of observations and runs the language model on them.

    Places of padding are masked, and positions count only what is there, so that a prompt gives
    the same numbers however it is padded.

    Attributes:
        vision_backbone: The towers; None without cameras.
        projector: Of patches; None without cameras.
        proprio_projector: Of the state; None without it.
        language_model: A Llama of transformers.
        output_layer: Path of the layer whose weight gives the logits.
    """

    output_layer = "language_model.lm_head"

    def __init__(
        self,
        llm: Mapping[str, Any],
        towers: Sequence[Tower] = (),
        state_dim: int | None = None,
        use_film: bool = False,
    ) -> None:
        """Make the parts, with random weights.

        Args:
            llm: Sizes of the language model, as in the `text_config` of its files.
            towers: Vision towers; empty without cameras.
            state_dim: Numbers in a state; None does not use it.
            use_film: Let the instruction scale and shift features inside of the towers.
        """
        super().__init__()
        transformers = transformers_module()
        config = transformers.LlamaConfig(attn_implementation="sdpa", **llm)
        self.vision_backbone = self.projector = self.proprio_projector = None
        if towers:
            self.vision_backbone = VisionBackbone(towers, config.hidden_size if use_film else None)
            width = sum(tower.embed_dim for tower in towers)
            self.projector = Projector(width, config.hidden_size, fused=len(towers) > 1)
        self.language_model = transformers.LlamaForCausalLM(config)
        if state_dim is not None:
            self.proprio_projector = ProprioProjector(state_dim, config.hidden_size)

    @property
    def hidden_size(self) -> int:
        """Hidden units of the language model, H."""
        return self.language_model.config.hidden_size

    def is_base(self, name: str) -> bool:
        """Return whether a weight is pretrained; those of FiLM are not."""
        return name.startswith(MAIN) and not is_film(name)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings of tokens, `[..., H]`."""
        return self.language_model.model.embed_tokens(ids)

    def prefix(
        self,
        prompt: Tensor,
        pad: int,
        bos: int,
        eos: int,
        images: Tensor | None = None,
        states: Tensor | None = None,
    ) -> Prefix:
        """Return what stands before the actions.

        Args:
            prompt: Token ids, padded on the left, `[n, L]`.
            pad: Id of padding.
            bos: Id that the sequence begins with.
            eos: Id that it ends with, for the mean over the instruction (FiLM).
            images: `[n, V, H, W, 3]` uint8.
            states: Normalised, `[n, S]`.
        """
        valid = prompt != pad
        words, first = self.embed(prompt), self.embed(prompt.new_full((len(prompt), 1), bos))
        parts = [first]
        if self.vision_backbone is not None:
            film = None
            if self.vision_backbone.has_film:
                last = self.embed(prompt.new_full((len(prompt), 1), eos))
                mask = functional.pad(valid, (1, 1), value=True).unsqueeze(-1).to(words.dtype)
                film = (torch.cat([first, words, last], 1) * mask).sum(1) / mask.sum(1)
            parts.append(self.projector(self.vision_backbone(images, film)))
        if self.proprio_projector is not None:
            parts.append(self.proprio_projector(states).unsqueeze(1))
        extra = sum(part.shape[1] for part in parts)
        return Prefix(torch.cat([*parts, words], 1), functional.pad(valid, (extra, 0), value=True))

    def hidden(self, embeds: Tensor, valid: Tensor, causal: bool, cache: Any = None) -> Tensor:
        """Run the language model and return its last hidden states, `[n, T, H]`.

        Args:
            embeds: Of the last T places of a sequence, `[n, T, H]`.
            valid: Which of all its S places are no padding, bool `[n, S]`.
            causal: A place sees those before it; else all of them.
            cache: What the language model keeps of the places before; None if T is S.
        """
        count = embeds.shape[1]
        positions = (valid.long().cumsum(1) - 1).clamp(min=0)
        seen = valid[:, None, None, :].expand(-1, 1, count, -1)
        if causal:
            places = torch.arange(valid.shape[1], device=valid.device)
            seen = seen & (places <= places[-count:, None])
            # A place of padding that sees nothing would be NaN.
            seen = seen | (places == places[-count:, None])
        return self.language_model.model(
            inputs_embeds=embeds,
            attention_mask=seen,
            position_ids=positions[:, -count:],
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def logits(self, hidden: Tensor, top: int, count: int) -> Tensor:
        """Return logits of the highest tokens of the vocabulary, the highest first.

        Args:
            hidden: `[..., H]`.
            top: Tokens of the vocabulary, padding of the embedding left out.
            count: How many.

        Returns:
            `[..., count]` float32. Others are left out: their probability is 0.
        """
        weight = self.language_model.lm_head.weight[top - count : top].flip(0)
        return functional.linear(hidden, weight).float()
