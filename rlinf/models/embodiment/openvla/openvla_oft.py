"""OpenVLA-OFT: all tokens of a chunk of actions from one pass, in which each place sees all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.models.embodiment.openvla.build import build_token_policy
from rlinf.models.embodiment.openvla.token_policy import TokenPolicy, Tokens

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.models.deferred import DeferredWeights
    from rlinf.utils.env_spec import EnvSpec


class OpenVLAOFTPolicy(TokenPolicy):
    """Decodes tokens in parallel.

    A sequence is BOS, patches, state, prompt, then H*A places whose embeddings are zero, then EOS.
    Attention goes both ways. As in a language model, the place before a token says what it is: the
    first one comes from the last place of the prompt. Tokens do not depend on each other, given the
    observation.
    """

    def tokens(self, inputs: Mapping[str, Tensor], wanted: int | None = None) -> Tokens:
        """Run the network, which always has a place for each token of a plan.

        Args:
            inputs: As `policy_inputs` returns them.
            wanted: D, tokens from the first on; None is those that are carried out.
        """
        count = self.action_horizon * self.action_dim
        wanted = wanted or self.num_action_chunks * self.action_dim
        embeds, valid = self.prefix(inputs)
        places, last = (
            embeds.shape[1],
            inputs["input_ids"].new_full((len(embeds), 1), self.prompts.eos),
        )
        embeds = torch.cat([functional.pad(embeds, (0, 0, 0, count)), self.network.embed(last)], 1)
        valid = functional.pad(valid, (0, count + 1), value=True)
        hidden = self.network.hidden(embeds, valid, causal=False)
        hidden = hidden[:, places - 1 : places - 1 + wanted]
        return Tokens(self.logits(hidden), hidden)

    def teacher_forced(self, inputs: Mapping[str, Tensor], action: Tensor) -> Tokens:
        """See `TokenPolicy.teacher_forced`: tokens are independent of each other."""
        return self.tokens(inputs, action.shape[1])

    def generate(self, inputs: Mapping[str, Tensor], noise: Tensor | None) -> tuple[Tensor, Tokens]:
        """See `TokenPolicy.generate`."""
        tokens = self.tokens(inputs)
        own = self.distribution(tokens)
        return own.mode() if noise is None else own.sample(noise), tokens

    @torch.no_grad()
    def predict_values(self, env_obs: Mapping[str, Tensor]) -> Tensor:
        """See `BasePolicy.predict_values`."""
        return self._values(self.tokens(self.policy_inputs(env_obs)))


def build_openvla_oft(
    cfg: DictConfig,
    torch_dtype: torch.dtype,
    env_spec: EnvSpec | None = None,
    deferral: DeferredWeights | None = None,
) -> OpenVLAOFTPolicy:
    """Build the policy from its model section; see `build_token_policy`."""
    return build_token_policy(OpenVLAOFTPolicy, cfg, torch_dtype, env_spec, deferral)
