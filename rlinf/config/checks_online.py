"""Rules between the keys of a run with live traffic."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.errors import Problem

ONLINE = ("coding_online_rl",)


@cross_check(ONLINE)
def one_worker_serves(context: CheckContext) -> Iterator[Problem]:
    """There is one endpoint, over all engines."""
    workers = context.workers("rollout_server")
    if workers != 1:
        message = f"places {workers} workers; there is one endpoint, and it serves all engines"
        path = "cluster.component_placement.rollout_server"
        yield Problem(path, context.cfg.cluster.component_placement.rollout_server, message)


@cross_check(ONLINE)
def clients_are_served_all_the_time(context: CheckContext) -> Iterator[Problem]:
    """Engines do not sleep, and have the newest weights."""
    cfg = context.cfg
    if cfg.rollout.enable_offload:
        message = "puts the engines to sleep while the actor trains, and clients do not wait"
        yield Problem("rollout.enable_offload", True, message, "set it to false")
    if cfg.runner.weight_sync_interval != 1:
        message = "clients get the newest weights: only 1 is allowed with live traffic"
        yield Problem("runner.weight_sync_interval", cfg.runner.weight_sync_interval, message)


@cross_check(ONLINE)
def sessions_can_be_trained_on(context: CheckContext) -> Iterator[Problem]:
    """Sessions are of older weights, and each is a group of its own."""
    algorithm = context.cfg.algorithm
    if algorithm.max_policy_age < 1:
        message = "leaves no session to train on: clients go on while the actor trains"
        yield Problem("algorithm.max_policy_age", algorithm.max_policy_age, message, "2 is usual")
    if algorithm.group_size != 1:
        message = "a session of a client is a group of its own: only 1 is allowed"
        hint = "use adv_type reinpp, whose baseline is that of the batch"
        yield Problem("algorithm.group_size", algorithm.group_size, message, hint)
    if algorithm.dynamic_sampling:
        message = "draws further prompts, and clients send what they like"
        yield Problem("algorithm.dynamic_sampling", True, message, "set it to false")


@cross_check(ONLINE)
def patience_ends_first(context: CheckContext) -> Iterator[Problem]:
    """A run without clients says so, before a channel that nobody writes to does."""
    cfg = context.cfg
    limit, patience = cfg.cluster.timeouts.channel, cfg.rollout_server.patience
    if limit is not None and patience >= limit:
        message = f"must be less than cluster.timeouts.channel, which is {limit:g}"
        hint = "raise cluster.timeouts.channel, or set it to null"
        yield Problem("rollout_server.patience", patience, message, hint)
