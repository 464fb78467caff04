"""OpenVLA: tokens of actions one after the other, each after all before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.models.causal_lm.load import transformers_module
from rlinf.models.embodiment.openvla.build import build_token_policy
from rlinf.models.embodiment.openvla.token_policy import TokenPolicy, Tokens

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.models.deferred import DeferredWeights
    from rlinf.utils.env_spec import EnvSpec


class OpenVLAPolicy(TokenPolicy):
    """Decodes tokens autoregressively, with a cache of what came before.

    A sequence is BOS, patches, state, prompt, then the tokens of actions. Attention is causal.
    """

    def teacher_forced(self, inputs: Mapping[str, Tensor], action: Tensor) -> Tokens:
        """See `TokenPolicy.teacher_forced`: one pass over prefix and tokens."""
        embeds, valid = self.prefix(inputs)
        count, places = action.shape[1], embeds.shape[1]
        embeds = torch.cat([embeds, self._embed(action[:, :-1])], 1)
        valid = functional.pad(valid, (0, count - 1), value=True)
        hidden = self.network.hidden(embeds, valid, causal=True)[:, places - 1 :]
        return Tokens(self.logits(hidden), hidden)

    def generate(self, inputs: Mapping[str, Tensor], noise: Tensor | None) -> tuple[Tensor, Tokens]:
        """See `TokenPolicy.generate`: one pass over the prefix, then one place at a time."""
        cache = transformers_module().DynamicCache()
        embeds, valid = self.prefix(inputs)
        chosen: list[Tensor] = []
        found: list[Tokens] = []
        for place in range(self.num_action_chunks * self.action_dim):
            hidden = self.network.hidden(embeds, valid, causal=True, cache=cache)[:, -1:]
            found.append(Tokens(self.logits(hidden), hidden))
            own = self.distribution(found[-1])
            drawn = None if noise is None else noise[:, place : place + 1]
            chosen.append(own.mode() if drawn is None else own.sample(drawn))
            embeds = self._embed(chosen[-1])
            valid = functional.pad(valid, (0, 1), value=True)
        tokens = Tokens(*(torch.cat(parts, 1) for parts in zip(*found, strict=True)))
        return torch.cat(chosen, 1), tokens

    @torch.no_grad()
    def predict_values(self, env_obs: Mapping[str, Tensor]) -> Tensor:
        """See `BasePolicy.predict_values`; that of a chunk needs no tokens."""
        if self.settings.value_type == "action_level":
            return super().predict_values(env_obs)
        embeds, valid = self.prefix(self.policy_inputs(env_obs))
        hidden = self.network.hidden(embeds, valid, causal=True)[:, -1:]
        return self._values(Tokens(hidden, hidden))

    def _embed(self, action: Tensor) -> Tensor:
        return self.network.embed((self.vocabulary - 1 - action).clamp(min=0))


def build_openvla(
    cfg: DictConfig,
    torch_dtype: torch.dtype,
    env_spec: EnvSpec | None = None,
    deferral: DeferredWeights | None = None,
) -> OpenVLAPolicy:
    """Build the policy from its model section; see `build_token_policy`."""
    return build_token_policy(OpenVLAPolicy, cfg, torch_dtype, env_spec, deferral)
