"""Rules between the keys of a config whose rewards come from a reward model."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.checks import CheckContext, NotKnown, cross_check, divides
from rlinf.config.errors import ABSENT, Problem
from rlinf.config.scoring import USES_REWARD_MODEL, uses_reward_model
from rlinf.config.tracked import to_plain

_EMBODIED = ("embodied",)
_PATH = "reward.model.model_path"


def _scores(context: CheckContext) -> bool:
    return uses_reward_model(context.cfg) and not context.cfg.runner.only_eval


@cross_check(_EMBODIED)
def reward_model_is_named(context: CheckContext) -> Iterator[Problem]:
    """There is a reward model, and its rewards count."""
    if not _scores(context):
        return
    reward = context.cfg.reward
    if reward.model.model_path is None:
        message = f"is missing: {USES_REWARD_MODEL} is true"
        hint = "name a run that trained one, such as logs/metaworld_reward_model_mlp"
        yield Problem(_PATH, ABSENT, message, hint)
    if reward.reward_weight == 0:
        message = f"the reward model would have no effect: {USES_REWARD_MODEL} is true"
        hint = f"set it to another number, or {USES_REWARD_MODEL} to false"
        yield Problem("reward.reward_weight", 0, message, hint)
    loss = context.cfg.algorithm.loss_type
    if loss.lower() == "embodied_dagger":
        message = f"has no effect: algorithm.loss_type {loss} learns from labels, not from rewards"
        yield Problem(USES_REWARD_MODEL, True, message, "set it to false")


@cross_check(_EMBODIED)
def reward_workers_have_a_place(context: CheckContext) -> Iterator[Problem]:
    """A run with a reward model has workers that compute it."""
    if context.world_sizes is None:
        raise NotKnown
    if _scores(context) and "reward" not in context.world_sizes:
        placement = to_plain(context.cfg.cluster.component_placement)
        message = f"has no place for reward, which {USES_REWARD_MODEL} needs"
        hint = 'add it, for instance "reward: 0"'
        yield Problem("cluster.component_placement", placement, message, hint)


@cross_check(_EMBODIED)
def reward_workers_have_equal_shares(context: CheckContext) -> Iterator[Problem]:
    """Every reward worker scores the same number of envs of each stage."""
    cfg = context.cfg
    if not _scores(context) or cfg.env.train is None:
        return
    workers, stages = context.workers("reward"), cfg.rollout.pipeline_stage_num
    envs, by = cfg.env.train.total_num_envs, workers * stages
    yield from divides(
        "env.train.total_num_envs",
        envs,
        by,
        f"{envs} envs",
        f"{workers} reward workers × {stages} pipeline stages = {by}",
        "envs per reward worker and stage",
    )
