"""Exercises a policy against the contract and says what is wrong with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlinf.models.embodiment.base_policy import BasePolicy

_SEQUENCE = 3
"""Steps of the sequence that a policy with memory is asked for."""


def check_policy(
    policy: BasePolicy, env_obs: Mapping[str, Any], tolerance: float = 1e-5
) -> list[str]:
    """Act on a batch of observations and recompute what was done.

    Args:
        policy: The policy; its generator and gradients are used up.
        env_obs: A batch of at least two observations.
        tolerance: Largest difference of a log-probability or value between acting and training.

    Returns:
        What is wrong, in words; empty for a good policy.
    """
    return list(_problems(policy, env_obs, tolerance))


def _problems(policy: BasePolicy, env_obs: Mapping[str, Any], tolerance: float) -> Iterator[str]:
    batch = len(next(value for value in env_obs.values() if value is not None))
    chunks, width = policy.num_action_chunks, policy.action_dim
    values = [[batch, 1], [batch, chunks]]
    actions, result = policy.predict_action_batch(env_obs, mode="train")
    yield from _form("actions", actions, [[batch, chunks, width]], policy.action_dtype)
    missing = [
        key for key in ("prev_logprobs", "prev_values", "forward_inputs") if key not in result
    ]
    if missing:
        yield f"predict_action_batch returns no {', '.join(missing)}"
        return
    yield from _form("prev_logprobs", result["prev_logprobs"], [[batch, chunks * width]])
    yield from _form("prev_values", result["prev_values"], values)
    inputs = result["forward_inputs"]
    if "action" not in inputs:
        yield "forward_inputs has no 'action'"
    for key, value in inputs.items():
        if not isinstance(value, Tensor) or len(value) != batch:
            yield f"forward_inputs['{key}'] is not a tensor with the batch first"
    own = policy.action_range
    if own.low is not None and (own.clip or own.squash or own.choices):
        low, high = torch.tensor(own.low).to(actions), torch.tensor(own.high).to(actions)
        inside = (actions >= low) & (actions <= high)
        if not inside.all():
            yield "actions leave the range that action_range promises"
    again, _ = policy.predict_action_batch(env_obs, mode="eval")
    if not torch.equal(again, policy.predict_action_batch(env_obs, mode="eval")[0]):
        yield "mode 'eval' is not deterministic"

    out = policy(
        forward_inputs=inputs, compute_logprobs=True, compute_entropy=True, compute_values=True
    )
    for name, before in (("logprobs", "prev_logprobs"), ("values", "prev_values")):
        if out.get(name) is None:
            yield f"default_forward returns no {name}"
        elif out[name].shape != result[before].shape:
            yield f"{name} is {list(out[name].shape)}, but {before} {list(result[before].shape)}"
        else:
            gap = (out[name] - result[before]).abs().max().item()
            if not gap <= tolerance:
                yield f"recomputed {name} differ from {before} by up to {gap:.2g}"
    if out.get("entropy") is None:
        yield "default_forward returns no entropy"
    if out.get("logprobs") is not None and not out["logprobs"].requires_grad:
        yield "logprobs have no gradient"
    yield from _form("predict_values", policy.predict_values(env_obs), values)
    if policy.memory_width:
        yield from _memory_problems(policy, env_obs, batch, tolerance)
    if "compute_logprobs" in inspect.signature(policy.predict_action_batch).parameters:
        yield from _later_problems(policy, env_obs, tolerance)


def _later_problems(
    policy: BasePolicy, env_obs: Mapping[str, Any], tolerance: float
) -> Iterator[str]:
    """Let the policy act without log-probabilities, and compute them of its distributions."""
    steps = [policy.predict_action_batch(env_obs, compute_logprobs=False)[1] for _ in range(2)]
    if any("distribution" not in step for step in steps):
        yield "predict_action_batch returns no distribution with compute_logprobs=False"
        return
    own = [step["distribution"] for step in steps]
    done = [step["forward_inputs"] for step in steps]
    logprobs = type(own[0]).stack(own).log_prob(torch.stack([inputs["action"] for inputs in done]))
    again = torch.stack([policy(forward_inputs=inputs)["logprobs"] for inputs in done])
    gap = (again - logprobs).abs().max().item()
    if not gap <= tolerance:
        yield f"recomputed logprobs differ from those of the distribution by up to {gap:.2g}"


def _memory_problems(
    policy: BasePolicy, env_obs: Mapping[str, Any], batch: int, tolerance: float
) -> Iterator[str]:
    """Act through a short sequence, in which an episode begins, and recompute it as a whole."""
    memory, results = torch.randn(batch, policy.memory_width), []
    for step in range(_SEQUENCE):
        begins = torch.arange(batch) % _SEQUENCE == step
        told = {"memory": memory, "begins": begins}
        _, result = policy.predict_action_batch(env_obs, mode="train", **told)
        if "memory" not in result:
            yield "memory_width is not 0, but predict_action_batch returns no memory"
            return
        yield from _form("memory", result["memory"], [[batch, policy.memory_width]])
        memory = result["memory"]
        results.append(result)
    missing = [name for name in ("memory", "begins") if name not in results[0]["forward_inputs"]]
    if missing:
        yield f"forward_inputs of a policy that remembers has no {', '.join(missing)}"
        return
    names = results[0]["forward_inputs"]
    inputs = {name: torch.cat([r["forward_inputs"][name] for r in results]) for name in names}
    out = policy(forward_inputs=inputs, compute_values=True, steps=_SEQUENCE)
    for name, before in (("logprobs", "prev_logprobs"), ("values", "prev_values")):
        gap = (out[name] - torch.cat([r[before] for r in results])).abs().max().item()
        if not gap <= tolerance:
            yield f"{name} of a sequence differ from those of its steps by up to {gap:.2g}"


def _form(
    name: str, tensor: Tensor, allowed: list[list[int]], dtype: torch.dtype = torch.float32
) -> Iterator[str]:
    if list(tensor.shape) not in allowed:
        wanted = " or ".join(str(shape) for shape in allowed)
        yield f"{name} has shape {list(tensor.shape)}, not {wanted}"
    if tensor.dtype != dtype:
        own, wanted = (str(each).removeprefix("torch.") for each in (tensor.dtype, dtype))
        yield f"{name} has type {own}, not {wanted}"
