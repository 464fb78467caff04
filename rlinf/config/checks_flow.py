"""Rules between the keys of policies that denoise their actions."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.builtin import WITHOUT_KEYS
from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.errors import Problem
from rlinf.config.task_types import OFFLINE

_EMBODIED = ("embodied",)


@cross_check(_EMBODIED)
def flow_has_chance(context: CheckContext) -> Iterator[Problem]:
    """A policy loss compares probabilities; a flow without noise has none."""
    method = context.cfg.actor.model.get("noise_method")
    by_probability = context.cfg.algorithm.loss_type.lower() in WITHOUT_KEYS["loss"]
    if method == "flow_ode" and by_probability and not context.cfg.runner.only_eval:
        message = "has no noise, so that there are no log-probabilities to learn from"
        yield Problem("actor.model.noise_method", method, message, "use flow_sde")


@cross_check((*_EMBODIED, *OFFLINE))
def plans_are_long_enough(context: CheckContext) -> Iterator[Problem]:
    """What is carried out was planned; with real-time chunking, the next plan overlaps with it."""
    model = context.cfg.actor.model
    executed, horizon = model.num_action_chunks, model.get("action_horizon")
    if horizon is not None and horizon < executed:
        message = f"is below num_action_chunks, {executed}: only what is planned is carried out"
        yield Problem("actor.model.action_horizon", horizon, message, "raise it, or leave it out")
        return
    rtc, shared = model.get("rtc"), (horizon or executed) - executed
    if rtc is None:
        return
    if not shared:
        message = "needs plans that overlap: all actions of a plan are carried out"
        hint = "set actor.model.action_horizon above num_action_chunks"
        yield Problem("actor.model.rtc.delay", rtc.delay, message, hint)
    elif rtc.delay > min(shared, executed):
        message = (
            f"must be at most {min(shared, executed)}: {executed} actions of a plan are carried "
            f"out, and {shared} are part of the next one, too"
        )
        hint = "lower it, or raise actor.model.action_horizon and num_action_chunks"
        yield Problem("actor.model.rtc.delay", rtc.delay, message, hint)
