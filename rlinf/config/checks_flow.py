"""Rules between the keys of policies that denoise their actions."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.arithmetic import learns_from_replay
from rlinf.config.builtin import MODULES, WITHOUT_KEYS
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
    folder_says = horizon is None and "hf_config" in model and model.model_path is not None
    if rtc is None or folder_says:
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


@cross_check(_EMBODIED)
def delayed_rollouts_have_probabilities(context: CheckContext) -> Iterator[Problem]:
    """What a plan decides for the next chunk is told from it by policy losses alone."""
    cfg = context.cfg
    rtc, path = cfg.actor.model.get("rtc"), "actor.model.rtc.rollouts"
    if rtc is None or rtc.rollouts == "anew" or cfg.runner.only_eval:
        return
    # Losses of other learners are built in under modules of their own; policy losses are not.
    if cfg.algorithm.loss_type.lower() in {n for names in MODULES["loss"].values() for n in names}:
        message = f"does not go with algorithm.loss_type {cfg.algorithm.loss_type}"
        hint = "set it to anew, or use a policy loss, as actor or actor_critic"
        yield Problem(path, rtc.rollouts, message, hint)
    if not rtc.delay:
        message = "has no effect: actor.model.rtc.delay is 0"
        yield Problem(path, rtc.rollouts, message, "set it to anew, or delay to 1 or more")


@cross_check(_EMBODIED)
def evaluations_plan_as_delayed_rollouts(context: CheckContext) -> Iterator[Problem]:
    """Plans that are learned from have no guidance; an evaluation with it measures others."""
    cfg = context.cfg
    rtc = cfg.actor.model.get("rtc")
    if rtc is None or rtc.rollouts == "anew" or cfg.runner.only_eval or cfg.env.eval is None:
        return
    if rtc.delay and rtc.max_guidance:
        message = (
            "guides plans of evaluations, and actor.model.rtc.rollouts: delayed learns from plans "
            "without guidance: evaluations would measure other plans than those that are trained"
        )
        hint = "set it to 0; `rlinf eval` may guide the plans of a checkpoint"
        yield Problem("actor.model.rtc.max_guidance", rtc.max_guidance, message, hint)


@cross_check(_EMBODIED)
def velocities_have_no_likelihood(context: CheckContext) -> Iterator[Problem]:
    """DiffusionNFT learns from velocities: keys that need log-probabilities have no effect."""
    cfg = context.cfg
    algorithm, loss = cfg.algorithm, "loss_type embodied_nft"
    if algorithm.loss_type.lower() != "embodied_nft" or cfg.runner.only_eval:
        return
    if "noise_method" not in cfg.actor.model:
        message = f"has no velocities, which algorithm.{loss} trains"
        given = cfg.actor.model.model_type
        hint = "set it to flow_policy, smolvla, openpi or gr00t"
        yield Problem("actor.model.model_type", given, message, hint)
    if algorithm.adv_type.lower() == "gae":
        message = f"needs values, and {loss} trains none"
        yield Problem("algorithm.adv_type", algorithm.adv_type, message, "use grpo")
    if cfg.actor.model.add_value_head:
        message = f"must be false: {loss} trains no value function"
        yield Problem("actor.model.add_value_head", True, message, "set it to false")
    for key in ("kl_beta", "entropy_bonus", "target_kl"):
        if algorithm[key]:
            message = f"has no effect: {loss} computes no log-probabilities"
            yield Problem(f"algorithm.{key}", algorithm[key], message, "leave it out")
    if algorithm.max_policy_age:
        message = f"must be 0: {loss} takes the policy before the update for the one that acted"
        path = "algorithm.max_policy_age"
        yield Problem(path, algorithm.max_policy_age, message, "set it to 0")


@cross_check(_EMBODIED)
def noise_is_chosen_by_sac(context: CheckContext) -> Iterator[Problem]:
    """DSRL is soft actor-critic of the noise of a frozen flow, and the only one that flows have."""
    cfg = context.cfg
    model, loss = cfg.actor.model, cfg.algorithm.loss_type
    steered = model.get("use_dsrl")
    if steered is None or cfg.runner.only_eval:
        return
    if steered and loss.lower() != "embodied_sac":
        message = f"freezes the flow, which algorithm.loss_type {loss} would train"
        hint = "use loss_type embodied_sac, or set it to false"
        yield Problem("actor.model.use_dsrl", True, message, hint)
    elif not steered and learns_from_replay(cfg) and "dagger" not in cfg.algorithm:
        message = f"must be true: a flow has no densities of actions for loss_type {loss}"
        yield Problem("actor.model.use_dsrl", False, message, "set it to true, with embodied_sac")
    if not steered:
        return
    if model.add_value_head:
        message = "must be false: use_dsrl learns from Q-functions"
        yield Problem("actor.model.add_value_head", True, message, "set it to false")
    if model.rtc is not None:
        message = "does not go with use_dsrl, which makes each plan anew"
        yield Problem("actor.model.rtc.delay", model.rtc.delay, message, "leave out rtc")
    if cfg.algorithm.get("demo_buffer") is not None:
        message = "has actions, and use_dsrl learns from noises, which nobody knows of these"
        given = cfg.algorithm.demo_buffer.load_path
        yield Problem("algorithm.demo_buffer.load_path", given, message, "leave out demo_buffer")
    if cfg.actor.enable_drq:
        message = "has no effect: use_dsrl shifts no pictures"
        yield Problem("actor.enable_drq", True, message, "leave it out")
    for key in ("is_lora", "train_expert_only", "freeze_vision_encoder"):
        if model.get(key):
            message = "does not go with use_dsrl, which leaves the model as it is"
            yield Problem(f"actor.model.{key}", True, message, "leave it out")


@cross_check(OFFLINE)
def data_have_no_noise(context: CheckContext) -> Iterator[Problem]:
    """Learning from data trains the flow, which DSRL freezes."""
    if context.cfg.actor.model.get("use_dsrl") and not context.cfg.runner.only_eval:
        message = "freezes the flow, and data do not say with which noise actions were made"
        yield Problem("actor.model.use_dsrl", True, message, "leave it out")
