"""Who acts in an embodied run: processes of the rollout, or those of the envs."""

from __future__ import annotations

import math
from typing import Any

from omegaconf import OmegaConf

from rlinf.config.placement import parse_component_placement

ACTS_IN_ENV = "rollout.in_env_process"
EVAL_BATCH_ON_CPU = 8
"""Observations that a policy on a CPU sees at a time in evaluations."""
_BOTH = ("env", "rollout")


def resolve_acting(cfg: Any) -> Any:
    """Return the config with `rollout.in_env_process` decided.

    Args:
        cfg: checked configuration.
    """
    if cfg.rollout.in_env_process != "auto":
        return cfg
    resolved = cfg.copy()
    OmegaConf.set_readonly(resolved, False)
    resolved.rollout.in_env_process = would_act_in_env(cfg)
    OmegaConf.set_readonly(resolved, True)
    return resolved


def would_act_in_env(cfg: Any) -> bool:
    """Return what `auto` comes to: whether nothing is gained by processes for the policy.

    That is so where env and rollout share their slots, and pipeline stages do not let one of them
    work while the other does.

    Args:
        cfg: checked configuration.
    """
    return cfg.rollout.pipeline_stage_num == 1 and placed_alike(cfg)


def placed_alike(cfg: Any) -> bool:
    """Return whether env and rollout have the same processes in the same places."""
    specs = parse_component_placement(cfg.cluster.component_placement)
    if not specs.keys() >= set(_BOTH):
        return False
    env, rollout = ((spec.node_groups, spec.text.split()) for spec in map(specs.get, _BOTH))
    return env == rollout


def acting_group(cfg: Any) -> str:
    """Return the name of the group that acts.

    Args:
        cfg: checked configuration; `auto` that nobody has decided is a group of its own.
    """
    section = cfg.env if cfg.rollout.in_env_process is True else cfg.rollout
    return section.group_name


def eval_batch_size(cfg: Any, processes: int, on_cpu: bool) -> int:
    """Return how many observations the policy sees at a time in evaluations.

    It is the same in all processes, also where they have different numbers of envs.

    Args:
        cfg: checked configuration.
        processes: that act.
        on_cpu: whether they compute on a CPU.
    """
    if cfg.rollout.eval_batch_size is not None:
        return cfg.rollout.eval_batch_size
    if on_cpu or cfg.env.eval is None:
        return EVAL_BATCH_ON_CPU
    largest = math.ceil(cfg.env.eval.total_num_envs / processes)
    if cfg.env.train is None:
        return largest
    turns = processes * cfg.rollout.pipeline_stage_num
    return min(largest, math.ceil(cfg.env.train.total_num_envs / turns))


def policy_age(cfg: Any) -> int:
    """Return by how many updates rollouts may be ahead of the learner; learning from data has none.

    Args:
        cfg: checked configuration.
    """
    return cfg.algorithm.get("max_policy_age", 0)


def decided_in_rollouts(cfg: Any) -> int:
    """Return how many actions of a plan are decided, in rollouts, before it is made.

    Args:
        cfg: checked configuration.
    """
    rtc = cfg.actor.model.get("rtc")
    return 0 if rtc is None or rtc.rollouts == "anew" else rtc.delay
