"""The contract between policies and the workers that act with them and train them.

Shapes: B envs, n samples, C actions in a chunk, A numbers in an action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.optional_forwards import OptionalForwards
from rlinf.models.embodiment.recompute import recompute_named
from rlinf.utils.running_stats import AllReduce

Mode = Literal["train", "eval", "random"]


class ForwardType(str, Enum):
    """What a forward pass computes; type `x` is the method `x_forward` of the policy."""

    DEFAULT = "default"
    SFT = "sft"
    SAC = "sac"
    SAC_Q = "sac_q"
    CROSSQ = "crossq"
    CROSSQ_Q = "crossq_q"
    IQL_ACTOR = "iql_actor"
    IQL_CRITIC = "iql_critic"
    IQL_VALUE = "iql_value"
    NFT = "nft"


@dataclass(frozen=True)
class ActionRange:
    """Which actions a policy returns.

    Attributes:
        low: Smallest action the policy returns, one number per dimension; None is unbounded.
        high: Largest action the policy returns, one number per dimension; None is unbounded.
        clip: Actions outside the range are clipped to it (outside the log-probability).
        squash: Actions are brought into the range by tanh (inside the log-probability).
        deterministic: The policy itself has no chance: what it samples is its action with noise
            added, clipped to the range.
        choices: Number of choices in each dimension, which are the whole numbers from `low` to
            `high`; None is real numbers.
    """

    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    clip: bool = False
    squash: bool = False
    deterministic: bool = False
    choices: tuple[int, ...] | None = None


class BasePolicy(OptionalForwards, nn.Module, ABC):
    """A policy says how to act, and how to recompute what it did.

    Subclasses implement `predict_action_batch` and `default_forward`. Running statistics, such as
    those that normalise observations, are buffers: they are saved and sent with the weights, and
    change only in `update_normalizer`. Methods that only some learners call are those of
    `OptionalForwards`.

    Attributes:
        forward_types: Forward passes that the policy has.
        sampling_keys: Sampling parameters that `predict_action_batch` understands.
        value_modules: Paths of the submodules that only the value function has; they learn with
            `actor.optim.value_lr`.
        q_modules: Paths of the submodules that only the Q-functions have; nobody acts with them.
        critic_modules: Paths of the submodules that learn with the Q-functions, by
            `actor.critic_optim`: those, and encoders that the policy shares with them.
        action_dim: A, numbers in one action.
        num_action_chunks: C, actions predicted at a time.
        action_range: Range of the returned actions.
        generator: Where sampling noise comes from; None is torch's global generator.
    """

    forward_types: ClassVar[tuple[ForwardType, ...]] = (ForwardType.DEFAULT,)
    sampling_keys: ClassVar[frozenset[str]] = frozenset()
    value_modules: ClassVar[tuple[str, ...]] = ("value_head",)
    q_modules: ClassVar[tuple[str, ...]] = ("q_head",)
    critic_modules: ClassVar[tuple[str, ...]] = ("q_head",)
    _no_split_modules: ClassVar[list[str]] = []
    """Names of submodule classes that FSDP wraps as a unit."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check that every declared forward type has its method."""
        super().__init_subclass__(**kwargs)
        for kind in cls.forward_types:
            method = f"{kind.value}_forward"
            missing = getattr(BasePolicy, method, None)
            abstract = getattr(missing, "__isabstractmethod__", False)
            if getattr(cls, method, None) is missing and not abstract:
                raise TypeError(
                    f"{cls.__name__} declares forward type '{kind.value}' but has no method "
                    f"{kind.value}_forward"
                )

    def __init__(
        self,
        action_dim: int,
        num_action_chunks: int = 1,
        action_range: ActionRange | None = None,
    ) -> None:
        """Keep what every policy declares about its actions.

        Args:
            action_dim: A, numbers in one action.
            num_action_chunks: C, actions predicted at a time.
            action_range: Range of the returned actions; None is unbounded.
        """
        super().__init__()
        self.action_dim = action_dim
        self.num_action_chunks = num_action_chunks
        self.action_range = action_range or ActionRange()
        self.generator: torch.Generator | None = None

    @property
    def action_dtype(self) -> torch.dtype:
        """Type of the returned actions: int64 for choices, else float32."""
        return torch.float32 if self.action_range.choices is None else torch.int64

    @property
    def action_horizon(self) -> int:
        """H, actions that are planned at a time; the first C of them are carried out."""
        return self.num_action_chunks

    @property
    def carries_plan(self) -> bool:
        """Whether evaluations hand the last `plan` of an episode back to `predict_action_batch`."""
        return False

    @property
    def decided_in_rollouts(self) -> int:
        """d, actions of a plan that are decided, in rollouts, before it is made.

        Where it is above 0, rollouts show observations that were made d actions earlier, and
        `predict_action_batch` is told as `decided`, int64 `[B]`, how many of a plan are not its
        own: d, or 0 where an episode begins. The C actions behind these are its chunk, and what is
        observed when they begin is told as `now`: of that, `prev_values` are the values.
        """
        return 0

    @property
    def noise_width(self) -> int:
        """Standard normal numbers that `predict_action_batch` takes per env as its `noise`."""
        return self.num_action_chunks * self.action_dim

    @property
    def sac_width(self) -> int:
        """Numbers that the actor draws for a chunk, as `sac_forward` takes noise for them."""
        return self.num_action_chunks * self.action_dim

    @property
    def draws_within_bounds(self) -> bool:
        """Whether tanh bounds what the actor draws, inside of its log-probability."""
        return self.action_range.squash

    @property
    def sft_noise_width(self) -> int:
        """Standard normal numbers that `sft_forward` takes per sample as its `noise`; 0 is none."""
        return 0

    @property
    def cloned_by_likelihood(self) -> bool:
        """Whether `sft_forward` returns errors without a gradient, as those of choices are."""
        return self.action_range.choices is not None

    @property
    def memory_width(self) -> int:
        """M, numbers that the policy remembers from one chunk of an episode to the next; 0 is none.

        One that remembers takes `memory` `[B, M]` and `begins` bool `[B]`, where a new episode
        begins, in `predict_action_batch` and `predict_values`, and returns the next `memory`
        `[B, M]`. Its `forward_inputs` hold both, and its `default_forward` takes `steps`: inputs
        are then those of sequences, `[steps * sequences, ...]`, time first, and only the memory
        before the first step of each counts.
        """
        return 0

    @property
    def sequence_length(self) -> int:
        """Chunk steps that gradients go back through; 1 if the policy remembers nothing."""
        return 1

    @property
    def q_head_type(self) -> str:
        """How the Q-functions are made: `default`, or `crossq` if normalised over the batch."""
        return "default"

    @property
    def num_q_heads(self) -> int:
        """Q, number of Q-functions."""
        return 0

    def forward(self, forward_type: ForwardType | str = ForwardType.DEFAULT, **kwargs: Any) -> Any:
        """Run one of the forward passes.

        Args:
            forward_type: Which one.
            **kwargs: Arguments of its method.

        Returns:
            What that method returns.

        Raises:
            ValueError: The policy has no such pass.
        """
        if forward_type not in self.forward_types:
            known = ", ".join(f"'{kind.value}'" for kind in self.forward_types)
            raise ValueError(
                f"{type(self).__name__} has no forward type "
                f"'{getattr(forward_type, 'value', forward_type)}'; it has {known}"
            )
        return getattr(self, f"{ForwardType(forward_type).value}_forward")(**kwargs)

    @abstractmethod
    def default_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
    ) -> dict[str, Tensor | None]:
        """Recompute, with gradients, what `predict_action_batch` computed.

        Args:
            forward_inputs: As returned by `predict_action_batch`, any number n of samples.
            compute_logprobs: Return the log-probabilities of `forward_inputs["action"]`.
            compute_entropy: Return the entropy of the action distribution.
            compute_values: Return state values.

        Returns:
            `logprobs` [n, C*A] and `entropy` [n, C*A] in float32, `values` [n, 1] or [n, C]; None
            for what was not asked for. A policy without a value head returns zeros.
        """

    @abstractmethod
    def predict_action_batch(
        self, env_obs: Mapping[str, Any], mode: Mode = "train", **sampling: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Act on a batch of observations, without gradients.

        A policy may take further arguments, which rollouts use if they are in its signature:
        `noise`, standard normal `[B, noise_width]`; `compute_logprobs`, where False returns the
        `distribution` in place of `prev_logprobs`; and `compute_values`, where False leaves out
        `prev_values`. These two are for small policies, whose steps are then judged all at once.

        Args:
            env_obs: Batch-first observations: `states` [B, S], `main_images` [B, H, W, 3] uint8,
                ... Tensors of it may be returned as they are, not copied.
            mode: `train` samples; `eval` is deterministic; `random` samples uniformly from the
                range of actions, whatever the policy would do.
            **sampling: Sampling parameters, of those in `sampling_keys`.

        Returns:
            The actions [B, C, A] in the units of the env, of `action_dtype`, and a dict of
            `prev_logprobs` [B, C*A] float32, `prev_values` [B, 1] or [B, C] float32, and
            `forward_inputs`: batch-first tensors from which `default_forward` recomputes the
            same; `action` [B, C*A] among them is what the distribution gave: before clipping, or
            indices of choices from 0.
        """

    def predict_values(self, env_obs: Mapping[str, Any], **memory: Tensor) -> Tensor:
        """Return values of observations, without gradients; for bootstrapping.

        Args:
            env_obs: As in `predict_action_batch`.
            **memory: Of a policy that remembers; see `memory_width`.

        Returns:
            [B, 1] or [B, C], float32.
        """
        return self.predict_action_batch(env_obs, mode="eval", **memory)[1]["prev_values"]

    def enable_gradient_checkpointing(self) -> None:
        """Let the modules of `_no_split_modules` recompute their activations in backward passes.

        Raises:
            ValueError: The policy names no such modules.
        """
        recompute_named(self, self._no_split_modules)

    @classmethod
    def is_value_parameter(cls, name: str) -> bool:
        """Return whether a parameter belongs to the value function alone.

        Args:
            name: As in `named_parameters`.
        """
        return name.startswith(tuple(f"{path}." for path in cls.value_modules))

    @classmethod
    def is_q_parameter(cls, name: str) -> bool:
        """Return whether a weight or buffer belongs to the Q-functions alone.

        Args:
            name: As in `state_dict`.
        """
        return name.startswith(tuple(f"{path}." for path in cls.q_modules))

    @classmethod
    def is_critic_parameter(cls, name: str) -> bool:
        """Return whether a parameter learns with the Q-functions.

        Args:
            name: As in `named_parameters`.
        """
        return name.startswith(tuple(f"{path}." for path in cls.critic_modules))

    @property
    def has_statistics(self) -> bool:
        """Whether there are running statistics of observations by now; see `update_normalizer`."""
        return False

    def update_normalizer(
        self,
        observations: Mapping[str, Any],
        mask: Tensor | None = None,
        all_reduce: AllReduce | None = None,
        commit: bool = True,
    ) -> None:
        """Add a batch to the running statistics of observations; no-op without any.

        Statistics that change between acting and training would make the recomputed
        log-probabilities differ from the rollout's. So either call this after the last update
        on a batch, or collect with `commit=False` and call `commit_normalizer` then.

        Args:
            observations: Observations or forward inputs, [*batch, ...].
            mask: Which of them count, [*batch] or [*batch, C]; None counts all.
            all_reduce: Sums a float64 tensor over ranks, in place or by returning the sum; all
                ranks must then call, and all end with the same statistics.
            commit: Let the policy use the new statistics at once.
        """

    def commit_normalizer(self) -> None:
        """Let the policy use the statistics collected so far; no-op without any."""

    def set_generator(self, generator: torch.Generator | None) -> None:
        """Say where sampling noise comes from.

        Args:
            generator: On the device of the policy; None is torch's global generator.
        """
        self.generator = generator

    def _check_call(self, mode: str, sampling: Mapping[str, Any]) -> None:
        """Refuse a mode or sampling parameters that would have no effect."""
        if mode not in ("train", "eval", "random"):
            raise ValueError(f"mode must be 'train', 'eval' or 'random', not '{mode}'")
        if not sampling:
            return
        unknown = sorted(sampling.keys() - self.sampling_keys)
        if unknown:
            known = ", ".join(sorted(self.sampling_keys)) or "none"
            raise ValueError(
                f"{type(self).__name__} does not use the sampling parameter(s) "
                f"{', '.join(unknown)}; it uses: {known}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy starts without a generator: two policies must not share one by accident."""
        return {**self.__dict__, "generator": None}


def acts_with(policy: nn.Module, name: str) -> bool:
    """Return whether a policy needs a weight or buffer to act.

    Args:
        policy: A `BasePolicy`, or a module that has only what acts.
        name: As in `state_dict`.
    """
    is_q_parameter = getattr(policy, "is_q_parameter", None)
    return is_q_parameter is None or not is_q_parameter(name)
