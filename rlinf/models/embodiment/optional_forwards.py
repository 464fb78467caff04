"""What only some learners ask of a policy: off-policy methods, IQL and NFT.

Shapes: n samples, C actions in a chunk, A numbers in an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class OptionalForwards:
    """Forward passes that a policy may have, and what a replay buffer keeps for them.

    A policy that has one overrides it and declares its `ForwardType`.
    """

    def replay_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what a replay buffer keeps of observations: all that forward passes need.

        Rollouts have the same under the same names in `forward_inputs`, besides `action`.

        Args:
            env_obs: As in `predict_action_batch`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not learn from a replay buffer")

    def replay_actions(self, actions: Tensor, forward_inputs: Mapping[str, Tensor]) -> Tensor:
        """Return what a replay buffer keeps as the actions of a rollout.

        Args:
            actions: What the env got, `[T, B, C, A]`.
            forward_inputs: Of the rollout, `[T, B, ...]` each.
        """
        return actions

    def shift_pictures(
        self, forward_inputs: Mapping[str, Tensor], most: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return inputs whose pictures forward passes see shifted at random.

        Args:
            forward_inputs: As `replay_inputs` returns them, n samples.
            most: Greatest shift in pixels, of rows and of columns.
            generator: Where chance comes from, on the device of the inputs.
        """
        raise NotImplementedError(f"{type(self).__name__} has no pictures to shift")

    def sac_forward(
        self, forward_inputs: Mapping[str, Tensor], noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Sample actions with gradients; a policy that has it declares `ForwardType.SAC`.

        Args:
            forward_inputs: As `replay_inputs` returns them, n samples.
            noise: Standard normal, `[n, C*A]`; None for choices, and for actions without chance.

        Returns:
            `actions` `[n, C, A]` in the units of the env, and with noise `logprobs` `[n]` of whole
            chunks, densities of actions that are scaled to [-1, 1]. Of choices, `log_probs`
            `[n, C*A, N]` of all of them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'sac'")

    def sac_q_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        actions: Tensor | None = None,
        frozen: bool = False,
    ) -> Tensor:
        """Return Q-values; a policy that has them declares `ForwardType.SAC_Q`.

        Args:
            forward_inputs: As `replay_inputs` returns them, n samples.
            actions: In the units of the env, `[n, C, A]`; None for choices.
            frozen: Give gradients to the actions, and none to the weights.

        Returns:
            `[Q, n]`, one row for each Q-function; of choices `[Q, n, C*A, N]`, for all of them.
            float32.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'sac_q'")

    def crossq_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        actions: Tensor,
        next_inputs: Mapping[str, Tensor],
        next_actions: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return Q-values of two times, normalised as one batch.

        A policy that has it declares `ForwardType.CROSSQ`. Running statistics of the Q-functions
        get to know the batch.

        Args:
            forward_inputs: As `replay_inputs` returns them, n samples.
            actions: In the units of the env, `[n, C, A]`.
            next_inputs: Of the next observations, n samples.
            next_actions: What is done there, `[n, C, A]`.

        Returns:
            `[Q, n]` float32 of each.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'crossq'")

    def iql_actor_forward(
        self, forward_inputs: Mapping[str, Tensor], actions: Tensor
    ) -> dict[str, Tensor]:
        """Compare given actions with the policy's; who has it declares `ForwardType.IQL_ACTOR`.

        Args:
            forward_inputs: As `replay_inputs` returns them, n samples.
            actions: In the units of the env, `[n, C, A]`.

        Returns:
            `logprobs`, log-probabilities of these actions, and `errors`, how far the policy's own
            are from them, without effect on encoders. Each `[n, C*A]` float32.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'iql_actor'")

    def iql_critic_forward(self, forward_inputs: Mapping[str, Tensor], actions: Tensor) -> Tensor:
        """Return Q-values of given actions; who has them declares `ForwardType.IQL_CRITIC`.

        Args:
            forward_inputs: As `replay_inputs` returns them, n samples.
            actions: In the units of the env, `[n, C, A]`.

        Returns:
            `[Q, n]` float32, one row for each Q-function.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'iql_critic'")

    def iql_value_forward(self, forward_inputs: Mapping[str, Tensor]) -> Tensor:
        """Return values of states; who has them declares `ForwardType.IQL_VALUE`.

        Args:
            forward_inputs: As `replay_inputs` returns them, n samples.

        Returns:
            `[n]` float32; only the value head has gradients.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'iql_value'")

    def nft_forward(self, forward_inputs: Mapping[str, Tensor], x: Tensor, time: Tensor) -> Tensor:
        """Return velocities of a flow; who has them declares `ForwardType.NFT`.

        Rollouts of such a policy have `chain` in their forward inputs, `[n, N + 1, W]`, which
        ends with the plan, W numbers.

        Args:
            forward_inputs: As returned by `predict_action_batch`, n samples.
            x: Points on the way from noise to plans, K of each sample, `[n, K, W]`.
            time: From 1 (noise) to 0 (plan), `[n, K]`.

        Returns:
            `[n, K, W]` float32.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'nft'")

    def within_range(self, plans: Tensor) -> Tensor:
        """Return plans `[n, W]` with the actions that the env took for them; see `nft_forward`."""
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'nft'")

    def executed(self, plans: Tensor) -> Tensor:
        """Return what is carried out of plans `[..., W]`, `[..., C, A]`; see `nft_forward`."""
        raise NotImplementedError(f"{type(self).__name__} has no forward type 'nft'")
