"""Rules between the keys of learners from a replay buffer."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.arithmetic import learns_from_replay
from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.errors import ABSENT, Problem

_EMBODIED = ("embodied",)
_OFF_POLICY = "embodied_sac"
"""Advantage of learners that compute none."""


@cross_check(_EMBODIED)
def advantage_fits_learner(context: CheckContext) -> Iterator[Problem]:
    """A learner from a replay buffer computes no advantages; all others need some."""
    algorithm = context.cfg.algorithm
    off_policy, given = learns_from_replay(context.cfg), algorithm.adv_type.lower()
    loss = algorithm.loss_type
    if off_policy and given != _OFF_POLICY:
        message = f"has no effect: loss_type {loss} computes no advantages"
        yield Problem("algorithm.adv_type", algorithm.adv_type, message, f"set it to {_OFF_POLICY}")
    elif not off_policy and given == _OFF_POLICY:
        message = f"computes no advantages, and loss_type {loss} needs some"
        hint = "use loss_type embodied_sac, or adv_type gae"
        yield Problem("algorithm.adv_type", algorithm.adv_type, message, hint)


@cross_check(_EMBODIED)
def replay_has_batches(context: CheckContext) -> Iterator[Problem]:
    """Batches from a replay buffer have a size."""
    if learns_from_replay(context.cfg) and context.cfg.actor.global_batch_size is None:
        message = "is missing: how many transitions of the replay buffer a gradient step is made on"
        yield Problem("actor.global_batch_size", ABSENT, message, "set it to 256, for instance")


@cross_check(_EMBODIED)
def only_replay_is_augmented(context: CheckContext) -> Iterator[Problem]:
    """Pictures of rollouts are shifted by the policy itself."""
    if context.cfg.actor.enable_drq and not learns_from_replay(context.cfg):
        message = "shifts pictures of a replay buffer, which this loss_type does not have"
        hint = "leave it out; actor.model.random_shift of cnn_policy is for rollouts"
        yield Problem("actor.enable_drq", True, message, hint)


@cross_check(_EMBODIED)
def replay_holds_what_it_waits_for(context: CheckContext) -> Iterator[Problem]:
    """The buffer is large enough for the first update."""
    if not learns_from_replay(context.cfg):
        return
    buffer = context.cfg.algorithm.replay_buffer
    if buffer.min_buffer_size > buffer.cache_size:
        message = f"must not exceed cache_size, {buffer.cache_size}: nothing would be learned"
        path = "algorithm.replay_buffer.min_buffer_size"
        yield Problem(path, buffer.min_buffer_size, message, "lower it, or raise cache_size")


@cross_check(_EMBODIED)
def critics_have_q_heads(context: CheckContext) -> Iterator[Problem]:
    """What is trained from a replay buffer is there."""
    cfg = context.cfg
    if not learns_from_replay(cfg):
        return
    model, algorithm = cfg.actor.model, cfg.algorithm
    if not model.add_q_head:
        message = f"must be true: algorithm.loss_type {algorithm.loss_type} trains Q-functions"
        yield Problem("actor.model.add_q_head", False, message, "set it to true")
        return
    heads, drawn = model.get("num_q_heads"), algorithm.critic_subsample_size
    if heads is not None and drawn is not None and drawn > heads:
        message = f"must not exceed actor.model.num_q_heads, {heads}: none is drawn twice"
        path = "algorithm.critic_subsample_size"
        yield Problem(path, drawn, message, "lower it, or raise num_q_heads")


@cross_check(_EMBODIED)
def sac_knows_densities(context: CheckContext) -> Iterator[Problem]:
    """Actions that SAC samples are those that are carried out; those of TD3 have no chance."""
    cfg = context.cfg
    given, loss = cfg.actor.model.get("distribution"), cfg.algorithm.loss_type.lower()
    path = "actor.model.distribution"
    if loss in ("embodied_sac", "embodied_crossq") and given in ("gaussian", "deterministic"):
        message = (
            f"clips actions after their log-probability is taken; loss_type {loss} needs that of "
            "what is carried out"
        )
        yield Problem(path, given, message, "set it to squashed_gaussian")
    elif given is not None and (loss == "embodied_td3") != (given == "deterministic"):
        message = "and algorithm.loss_type embodied_td3 belong together"
        yield Problem(path, given, message, "set it to deterministic, or use another loss_type")


@cross_check(_EMBODIED)
def critics_are_normalised_alike(context: CheckContext) -> Iterator[Problem]:
    """Only CrossQ trains Q-functions that are normalised over the batch, and on one rank."""
    cfg = context.cfg
    given = cfg.actor.model.get("q_head_type")
    crossq = cfg.algorithm.loss_type.lower() == "embodied_crossq"
    if given is not None and crossq != (given == "crossq"):
        message = "crossq and algorithm.loss_type embodied_crossq belong together"
        hint = f"set it to {'crossq' if crossq else 'default'}, or use another loss_type"
        yield Problem("actor.model.q_head_type", given, message, hint)
    if crossq and context.workers("actor") > 1:
        message = "must be one slot: embodied_crossq normalises over whole batches"
        place = cfg.cluster.component_placement.get("actor")
        yield Problem("cluster.component_placement.actor", place, message, "name one slot")
    if crossq and cfg.actor.micro_batch_size is not None:
        message = "must be null: embodied_crossq normalises over whole batches"
        size = cfg.actor.micro_batch_size
        yield Problem("actor.micro_batch_size", size, message, "leave it out")
