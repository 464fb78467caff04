"""One step of the first env, before and after the policy's eyes and hands."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from rlinf.cli.sample_parts import NoSample, rounded

_MOST_NUMBERS = 12
"""Numbers of an action that are shown."""


def embodied_sample(cfg: Any) -> dict[str, Any]:
    """Reset one env, let a policy with fresh weights act, and make the step.

    Args:
        cfg: What `validate_cfg` returned, of task type `embodied`.

    Raises:
        NoSample: Env or policy cannot be made here.
    """
    from rlinf.envs.errors import EnvError

    role = "eval" if cfg.runner.only_eval or cfg.env.train is None else "train"
    try:
        with _one_env(cfg, role) as env:
            return {"kind": "embodied", "role": role, **_first_step(cfg, env)}
    except (EnvError, ImportError, ValueError) as error:
        raise NoSample(str(error)) from error


@contextmanager
def _one_env(cfg: Any, role: str) -> Iterator[Any]:
    """Make the first env of a run, alone."""
    from rlinf.envs import get_env_cls
    from rlinf.workers.env.env_settings import env_settings

    settings = env_settings(cfg, role)
    OmegaConf.set_readonly(settings, False)
    settings.group_size = 1
    env = get_env_cls(settings.env_type, settings)(settings, 1)
    try:
        yield env
    finally:
        env.close()


def _first_step(cfg: Any, env: Any) -> dict[str, Any]:
    from rlinf.workers.env.describe_envs import describe_envs

    policy, weights = _policy(cfg, describe_envs([env], []))
    env.update_reset_state_ids()
    obs = env.reset()[0]
    # As the rollout draws it for env 0 in its first step.
    noise = {}
    if "noise" in inspect.signature(policy.predict_action_batch).parameters:
        from rlinf.models.embodiment.noise import EnvNoise

        width = policy.noise_width
        noise["noise"] = EnvNoise(cfg.runner.seed, [0], width).at(0)
    actions, result = policy.predict_action_batch(obs, **noise)
    inputs = dict(result["forward_inputs"])
    drawn = inputs.pop("action").view(policy.num_action_chunks, policy.action_dim)
    _, rewards, terminations, truncations, infos = env.chunk_step(actions)
    return {
        "env_type": env.options.env_type,
        "task": obs["task_descriptions"][0] if obs.get("task_descriptions") else "",
        "observation": _parts(obs),
        "policy_sees": _parts(_normalised(policy, inputs)),
        "normalizer": _normalizer(policy),
        "weights": weights,
        "action_space": {
            "low": _bounds(env.policy_spec.low),
            "high": _bounds(env.policy_spec.high),
            "choices": None if env.policy_spec.choices is None else list(env.policy_spec.choices),
        },
        "actions_per_chunk": policy.num_action_chunks,
        "action": {
            "policy": drawn[0].tolist(),
            "env": actions[0, 0].tolist(),
            "becomes": _becomes(policy),
        },
        "step": {
            "rewards": rewards[0].tolist(),
            "terminated": bool(terminations.any()),
            "truncated": bool(truncations.any()),
            "success": bool(infos[-1]["success"][0]) if env.reports_success else None,
        },
    }


def _policy(cfg: Any, spec: Any) -> tuple[Any, str]:
    """Make the policy that the run begins with; return it and where its weights are from."""
    from rlinf.hybrid_engines.initial_weights import initial_weights, load_initial_weights
    from rlinf.models import get_model
    from rlinf.models.settings import rollout_section

    section = rollout_section(cfg)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cfg.runner.seed)
        policy = get_model(section, spec, torch.float32)
    source = initial_weights(cfg) or section.model_path
    load_initial_weights(policy, cfg)
    return policy.eval(), "fresh" if source is None else f"those of {source}"


def _bounds(values: Any) -> list[float | None]:
    """Return bounds as plain data; None where there is none."""
    return [value if math.isfinite(value) else None for value in map(float, values)]


def _parts(obs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Describe each tensor of one env."""
    return {
        key: {
            "shape": list(value.shape[1:]),
            "dtype": str(value.dtype).removeprefix("torch."),
            "least": value.double().min().item() if value.numel() else None,
            "most": value.double().max().item() if value.numel() else None,
        }
        for key, value in obs.items()
        if isinstance(value, Tensor)
    }


def _normalised(policy: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    normalizer = getattr(policy, "normalizer", None)
    if normalizer is not None and "states" in inputs:
        inputs["states"] = normalizer(inputs["states"])
    return inputs


def _normalizer(policy: Any) -> dict[str, Any] | None:
    """Say what the policy does to `states`; None if nothing."""
    own = getattr(policy, "normalizer", None)
    if own is None:
        return None
    identity = bool((own.shift == 0).all() and (own.scale == 1).all())
    return {"identity": identity, "clip": own.clip}


def _becomes(policy: Any) -> str:
    """Say how what the distribution gives becomes an action of the env."""
    known = policy.action_range
    if known.choices is not None:
        return "the number of the choice, from the env's first"
    if known.squash:
        return "brought into the env's range by tanh"
    return "clipped to the env's range" if known.clip else "as it is"


def embodied_lines(sample: Mapping[str, Any]) -> list[str]:
    """Return what `embodied_sample` found, in words."""
    task = f": {sample['task']}" if sample["task"] else ""
    lines = [f"the first {sample['role']} env of {sample['env_type']} after its reset{task}"]
    lines += _table("observation", sample["observation"])
    lines += _table("as the policy sees it", sample["policy_sees"])
    normalizer = sample["normalizer"]
    if normalizer is not None:
        clip = f"clipped to ±{rounded(normalizer['clip'])}"
        start = (
            "running mean and deviation of states begin as 0 and 1: they are as they were"
            if normalizer["identity"]
            else "states are shifted and scaled by the running statistics of these weights"
        )
        lines.append(f"    {start}, {clip}")
    action, chunk = sample["action"], sample["actions_per_chunk"]
    lines += [
        f"  action space: {_space(sample['action_space'])}"
        + (f"; the policy gives {chunk} at a time" if chunk > 1 else ""),
        f"  one action of the policy, whose weights are {sample['weights']}",
        f"    as drawn            {_numbers(action['policy'])}",
        f"    in the env's units  {_numbers(action['env'])}, {action['becomes']}",
    ]
    step = sample["step"]
    first = f"  first step: reward {rounded(step['rewards'][0])}"
    if len(step["rewards"]) > 1:
        first = f"  first {len(step['rewards'])} steps: rewards {_numbers(step['rewards'])}"
    ended = [name for name in ("terminated", "truncated") if step[name]]
    told = {None: "the env does not tell success", True: "solved", False: "not solved"}
    end = f"episode {ended[0]}" if ended else "the episode goes on"
    return [*lines, f"{first}; {end}; {told[step['success']]}"]


def _table(title: str, parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [
        (key, str(part["shape"]), part["dtype"], _range(part["least"], part["most"]))
        for key, part in parts.items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)] if rows else []
    return [f"  {title}"] + [
        "    " + "  ".join([*(f"{row[i]:<{widths[i]}}" for i in range(3)), row[3]]) for row in rows
    ]


def _range(least: float | None, most: float | None) -> str:
    return "empty" if least is None or most is None else f"{rounded(least)} to {rounded(most)}"


def _space(space: Mapping[str, Any]) -> str:
    low, high, choices = space["low"], space["high"], space["choices"]
    if choices is not None:
        count = "a choice" if len(choices) == 1 else f"{len(choices)} choices at a time"
        return f"{count} out of {', '.join(map(str, choices))}"
    count = "a number" if len(low) == 1 else f"{len(low)} numbers"
    if set(low) | set(high) == {None}:
        return f"{count} without bounds"
    if len(set(zip(low, high, strict=True))) == 1:
        return f"{count} from {_number(low[0])} to {_number(high[0])}"
    return f"{count} from {_numbers(low)} to {_numbers(high)}"


def _number(value: float | None) -> str:
    return "no bound" if value is None else rounded(value)


def _numbers(values: Sequence[float | None]) -> str:
    shown = ", ".join(map(_number, values[:_MOST_NUMBERS]))
    more = len(values) - _MOST_NUMBERS
    return f"[{shown}{f', and {more} more' if more > 0 else ''}]"
