"""Finds advantages and policy losses by the names that the config uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf.config.plugin_table import FunctionTable

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from rlinf.algorithms.metrics import Metric

Function = TypeVar("Function", bound=Callable[..., Any])

_ADVANTAGES = "rlinf.algorithms.advantages"
_LOSSES = "rlinf.algorithms.losses"

ADVANTAGE_TENSORS = frozenset(
    {
        "bootstrap_values",
        "dones",
        "durations",
        "group_ids",
        "logprobs",
        "loss_mask",
        "ref_logprobs",
        "rewards",
        "terminations",
        "values",
    }
)
"""What advantages are offered besides keys of the `algorithm` section."""

LOSS_TENSORS = frozenset(
    {
        "advantages",
        "critic_warmup",
        "current_version",
        "entropy",
        "importance_weights",
        "logprobs",
        "loss_mask",
        "loss_mask_sum",
        "norm",
        "old_logprobs",
        "old_values",
        "proximal_logprobs",
        "ref_logprobs",
        "returns",
        "sequence_ids",
        "values",
        "versions",
    }
)
"""What policy losses are offered besides keys of the `algorithm` section."""


def _with_algorithm_keys(tensors: frozenset[str]) -> Callable[[], frozenset[str]]:
    def offered() -> frozenset[str]:
        # Imported here: processes that register nothing of their own need no schema.
        from rlinf.config.schema.algorithm import EmbodiedAlgorithmConfig, ReasoningAlgorithmConfig

        keys = {*EmbodiedAlgorithmConfig.model_fields, *ReasoningAlgorithmConfig.model_fields}
        return tensors | keys

    return offered


advantage_registry = FunctionTable(
    "advantage",
    dict.fromkeys(("gae", "grpo", "reinpp", "raw"), _ADVANTAGES),
    _with_algorithm_keys(ADVANTAGE_TENSORS),
)
policy_loss_registry = FunctionTable(
    "loss",
    dict.fromkeys(("actor", "decoupled_actor", "actor_critic", "decoupled_actor_critic"), _LOSSES),
    _with_algorithm_keys(LOSS_TENSORS),
)
_own_scale: set[str] = set()


def register_advantage(
    name: str,
    *,
    normalize: bool = True,
    schema: type[BaseModel] | None = None,
    replaces: bool = False,
) -> Callable[[Function], Function]:
    """Register an advantage for `algorithm.adv_type`.

    The function takes any of the keyword arguments that `rlinf.algorithms.advantages` describes,
    on time-major `[n, B]` tensors, and returns `(advantages, returns)`, each `[n, B]`; the returns
    may be None. It gives raw advantages: `normalize_advantages` is the caller's step.

    Args:
        name: What the user writes; case does not matter.
        normalize: Whether `algorithm.normalize_advantages` applies; false when the function
            brings a scale of its own, as group advantages do.
        schema: A pydantic model of further keys of the `algorithm` section; a key that the
            function names as an argument is handed to it.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator that leaves the function as it is. It raises a ValueError if the name is taken,
        or the function needs an argument that nobody offers.
    """

    def register(function: Function) -> Function:
        if advantage_registry.register_function(name, function, schema=schema, replaces=replaces):
            (_own_scale.discard if normalize else _own_scale.add)(name.lower())
        return function

    return register


def register_policy_loss(
    name: str,
    *,
    forwards: tuple[Callable[..., Any], ...] = (),
    schema: type[BaseModel] | None = None,
    replaces: bool = False,
) -> Callable[[Function], Function]:
    """Register a policy loss for `algorithm.loss_type`.

    The function takes any of the keyword arguments that `rlinf.algorithms.losses` describes and
    returns `(loss, metrics)`.

    Args:
        name: What the user writes; case does not matter.
        forwards: The functions that get the `**kwargs` of this one: their arguments count as named.
        schema: A pydantic model of further keys of the `algorithm` section.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator that leaves the function as it is. It raises a ValueError if the name is taken,
        or the function needs an argument that nobody offers.
    """

    def register(function: Function) -> Function:
        policy_loss_registry.register_function(
            name, function, forwards=forwards, schema=schema, replaces=replaces
        )
        return function

    return register


def get_adv_and_returns(name: str) -> Callable[..., Any]:
    """Return the advantage function of this name.

    Raises:
        ValueError: Nobody registered the name.
    """
    return advantage_registry.lookup(name)


def get_policy_loss(name: str) -> Callable[..., Any]:
    """Return the policy loss of this name.

    Raises:
        ValueError: Nobody registered the name.
    """
    return policy_loss_registry.lookup(name)


def normalizes(adv_type: str) -> bool:
    """Return whether `algorithm.normalize_advantages` applies to this advantage."""
    get_adv_and_returns(adv_type)
    return adv_type.lower() not in _own_scale


def needs_reference(algorithm: Any) -> bool:
    """Return whether a policy is compared with the one that it began as.

    Args:
        algorithm: the `algorithm` section.
    """
    loss = algorithm.loss_type
    known = loss in policy_loss_registry
    in_loss = known and "kl_beta" in policy_loss_registry.arguments(loss)
    in_advantage = "reinpp_kl_beta" in advantage_registry.arguments(algorithm.adv_type)
    return (algorithm.kl_beta > 0 and (in_loss or algorithm.kl_in == "reward")) or (
        in_advantage and algorithm.reinpp_kl_beta > 0
    )


def calculate_adv_and_returns(
    *, adv_type: str, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Call the advantage `adv_type` with those of `kwargs` that it names.

    Args:
        adv_type: A registered name.
        **kwargs: Time-major tensors `[n, B]` and settings, see `rlinf.algorithms.advantages`.

    Returns:
        Raw advantages `[n, B]`, and returns `[n, B]` or None.

    Raises:
        ValueError: Nobody registered the name.
        TypeError: An argument that no advantage has.
    """
    return advantage_registry.call(adv_type, kwargs)


def policy_loss(*, loss_type: str, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Metric]]:
    """Call the policy loss `loss_type` with those of `kwargs` that it names.

    Args:
        loss_type: A registered name.
        **kwargs: Tensors of one micro-batch and settings, see `rlinf.algorithms.losses`.

    Returns:
        The micro-batch's share of the loss of the global batch, and metrics that can be merged.

    Raises:
        ValueError: Nobody registered the name.
        TypeError: An argument that no loss has.
    """
    return policy_loss_registry.call(loss_type, kwargs)
