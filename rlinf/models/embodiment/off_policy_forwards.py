"""Forward passes of the small policies for learners from a replay buffer.

The policy head learns from what the Q-functions say of its actions. Encoders, where there are any,
learn with the Q-functions: neither the loss of the actor nor its actions change them.

Shapes: n samples, C actions in a chunk, A numbers in an action, D = C*A, N choices, Q functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.action_heads import ActionHead
from rlinf.models.embodiment.distributions import Categorical
from rlinf.models.embodiment.q_heads import CrossQEnsemble, QEnsemble

if TYPE_CHECKING:
    from rlinf.models.embodiment.head_settings import HeadSettings


def make_q_head(
    feature_dim: int, head: ActionHead, settings: HeadSettings
) -> QEnsemble | CrossQEnsemble | None:
    """Make the Q-functions that settings ask for.

    Of real numbers they take features and a chunk of actions, and give one value. Of choices they
    take features and give a value for each choice of each number; that of a chunk of choices is
    the sum over its numbers.

    Args:
        feature_dim: F, numbers in the features.
        head: Says what actions are.
        settings: See `HeadSettings`.

    Returns:
        None if there are to be none.
    """
    if not settings.add_q_head:
        return None
    choices, chunks = head.action_range.choices, settings.num_action_chunks
    inputs, outputs = feature_dim, 1
    if choices is None:
        inputs += chunks * len(head.low)
    else:
        outputs = chunks * len(choices) * max(choices)
    sizes = tuple(settings.q_hidden_sizes or settings.hidden_sizes)
    if settings.q_head_type == "crossq":
        if choices is not None or settings.q_layer_norm:
            raise ValueError(
                "model.q_head_type crossq is for actions that are real numbers, and normalises "
                "over the batch alone; leave out q_head_type or q_layer_norm"
            )
        return CrossQEnsemble(
            inputs, sizes, settings.num_q_heads, settings.activation, settings.orthogonal_init
        )
    return QEnsemble(
        inputs,
        sizes,
        settings.num_q_heads,
        outputs,
        settings.activation,
        settings.q_layer_norm,
        settings.orthogonal_init,
    )


class OffPolicyForwards:
    """Mixin of `ActorCriticPolicy`."""

    action_head: ActionHead
    policy_head: nn.Module
    trunk: nn.Module | None
    log_std: Tensor | None
    q_head: QEnsemble | CrossQEnsemble | None
    num_action_chunks: int

    @property
    def num_q_heads(self) -> int:
        """See `BasePolicy.num_q_heads`."""
        return 0 if self.q_head is None else self.q_head.heads

    @property
    def q_head_type(self) -> str:
        """See `BasePolicy.q_head_type`."""
        return "crossq" if isinstance(self.q_head, CrossQEnsemble) else "default"

    def sac_forward(
        self, forward_inputs: Mapping[str, Tensor], noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """See `BasePolicy.sac_forward`."""
        with torch.no_grad():
            features = self.features(forward_inputs)
        if self.trunk is not None:
            features = self.trunk(features)
        outputs = self.policy_head(features).float()
        actions = self.action_head.distribution(outputs, self.log_std, scaled=True)
        if isinstance(actions, Categorical):
            return {"log_probs": actions.log_probs}
        if noise is None:
            return {"actions": self.action_head.to_env(actions.mode())}
        chosen, density = actions.rsample_with_log_prob(noise)
        return {"actions": self.action_head.to_env(chosen), "logprobs": density.sum(-1)}

    def sac_q_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        actions: Tensor | None = None,
        frozen: bool = False,
    ) -> Tensor:
        """See `BasePolicy.sac_q_forward`."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            features = self.features(forward_inputs)
        if self.action_range.choices is not None:
            shape = self.num_action_chunks * self.action_dim, max(self.action_range.choices)
            # Not a view, which FSDP must not return.
            return self.q_head(features, frozen).unflatten(-1, shape).clone()
        actions = self.action_head.scaled(actions).to(features.dtype)
        return self.q_head(torch.cat([features, actions], 1), frozen)

    def crossq_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        actions: Tensor,
        next_inputs: Mapping[str, Tensor],
        next_actions: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See `BasePolicy.crossq_forward`."""
        both = {name: torch.cat([own, next_inputs[name]]) for name, own in forward_inputs.items()}
        features = self.features(both)
        chosen = self.action_head.scaled(torch.cat([actions, next_actions])).to(features.dtype)
        values = self.q_head(torch.cat([features, chosen], 1), learns=True)
        own, after = values.chunk(2, dim=1)
        return own, after
