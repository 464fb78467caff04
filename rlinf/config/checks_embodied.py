"""Rules between the keys of an embodied config: envs, chunks, batches."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.acting import ACTS_IN_ENV, placed_alike, policy_age
from rlinf.config.arithmetic import embodied_batch, learns_from_replay
from rlinf.config.checks import (
    CheckContext,
    cross_check,
    divides,
    divisors_near,
    share_divisor,
)
from rlinf.config.errors import ABSENT, Problem
from rlinf.config.task_types import OFFLINE

EMBODIED = ("embodied",)
ACTING = (*EMBODIED, *OFFLINE)
"""Tasks whose policies act in envs, if only to be evaluated."""
_UNGROUPED = ("gae", "raw", "reinpp")
"""Advantages that do not compare the members of a group; reinpp does with its baseline."""
_VALUE_LOSSES = ("actor_critic", "decoupled_actor_critic")


def _trains(context: CheckContext) -> bool:
    """Return whether the sizes of training matter: an evaluation takes the config of a training."""
    runner = context.cfg.runner
    idle = runner.only_eval or runner.task_type not in EMBODIED
    return context.cfg.env.train is not None and not idle


@cross_check(EMBODIED)
def has_envs(context: CheckContext) -> Iterator[Problem]:
    """There are environments for what the run does."""
    runner, env = context.cfg.runner, context.cfg.env
    only_eval = runner.only_eval
    if env.train is None and not only_eval:
        yield Problem("env.train", ABSENT, "is missing: environments to train in are needed")
    if env.eval is not None:
        return
    why, hint = None, "add env.eval"
    if only_eval:
        why = "the run only evaluates"
    elif runner.val_check_interval > 0:
        why = "runner.val_check_interval asks for them"
        hint += ", or set val_check_interval to -1"
    elif runner.eval_at_start:
        why, hint = "runner.eval_at_start asks for them", f"{hint}, or leave eval_at_start out"
    if why is not None:
        message = f"is missing: environments to evaluate in are needed, as {why}"
        yield Problem("env.eval", ABSENT, message, hint)


@cross_check(EMBODIED)
def value_loss_has_values(context: CheckContext) -> Iterator[Problem]:
    """A value loss needs a value function."""
    loss, model = context.cfg.algorithm.loss_type, context.cfg.actor.model
    if loss.lower() in _VALUE_LOSSES and not model.add_value_head:
        message = f"must be true: algorithm.loss_type {loss} trains a value function"
        path = "actor.model.add_value_head"
        yield Problem(path, False, message, "set it to true, or use loss_type actor")


@cross_check(EMBODIED)
def a_critic_that_goes_first_is_there(context: CheckContext) -> Iterator[Problem]:
    """Only a value function can learn alone."""
    algorithm, path = context.cfg.algorithm, "algorithm.critic_warmup_steps"
    steps, loss = algorithm.get("critic_warmup_steps", 0), algorithm.loss_type
    if steps and not context.cfg.actor.model.add_value_head:
        message = "there is no value function that could learn alone"
        hint = "leave it out, or set actor.model.add_value_head to true"
        yield Problem(path, steps, message, hint)
    elif steps and loss.lower() not in _VALUE_LOSSES:
        message = f"has no effect: algorithm.loss_type {loss} trains no value function"
        yield Problem(path, steps, message, "leave it out, or use loss_type actor_critic")


@cross_check(EMBODIED)
def gae_has_values(context: CheckContext) -> Iterator[Problem]:
    """GAE with a plain actor loss would use values that nothing trains."""
    cfg = context.cfg
    untrained = cfg.algorithm.loss_type.lower() == "actor" and cfg.actor.model.add_value_head
    if cfg.algorithm.adv_type.lower() == "gae" and untrained:
        message = "gae would use values that nothing trains: loss_type actor has no value loss"
        hint = "use loss_type actor_critic, or add_value_head: false"
        yield Problem("algorithm.loss_type", cfg.algorithm.loss_type, message, hint)


@cross_check(EMBODIED)
def values_go_with_rewards(context: CheckContext) -> Iterator[Problem]:
    """There is one value for each unit that has a reward."""
    algorithm, model = context.cfg.algorithm, context.cfg.actor.model
    uses = model.add_value_head and algorithm.loss_type.lower() in _VALUE_LOSSES
    if uses and model.num_action_chunks > 1 and model.value_type != algorithm.reward_type:
        message = f"must be that of algorithm.reward_type, {algorithm.reward_type}"
        hint = f"set it to {algorithm.reward_type}, or change algorithm.reward_type"
        yield Problem("actor.model.value_type", model.value_type, message, hint)


@cross_check(EMBODIED)
def train_envs_divide(context: CheckContext) -> Iterator[Problem]:
    """Every worker and stage has the same number of whole groups."""
    if _trains(context):
        yield from _whole_groups(context, "env", "groups per worker and stage")


@cross_check(EMBODIED)
def learner_has_whole_groups(context: CheckContext) -> Iterator[Problem]:
    """Every actor worker gets the same number of whole groups of each stage."""
    if not _trains(context) or any(train_envs_divide(context)):
        return
    yield from _whole_groups(context, "actor", "groups per actor worker and stage")


def _whole_groups(context: CheckContext, role: str, unit: str) -> Iterator[Problem]:
    """The training envs divide by the workers of a role, the stages and the group size."""
    batch, workers = embodied_batch(context.cfg), context.workers(role)
    by = workers * batch.stages * batch.group
    factors = f"{workers} {role} workers × {batch.stages} pipeline stages"
    yield from divides(
        "env.train.total_num_envs",
        batch.envs,
        by,
        f"{batch.envs} envs",
        f"{factors} × group size {batch.group} = {by}",
        unit,
    )


@cross_check(ACTING)
def policy_serves_equal_shares(context: CheckContext) -> Iterator[Problem]:
    """Every rollout worker serves the same number of envs of each stage."""
    workers = context.workers("rollout")
    all_stages = context.cfg.rollout.pipeline_stage_num
    of_envs = {"train": (train_envs_divide, all_stages), "eval": (eval_envs_divide, 1)}
    for role, (check, stages) in of_envs.items():
        envs = context.cfg.env[role]
        idle = role == "train" and not _trains(context)
        if envs is None or idle or any(check(context)):
            continue
        by = workers * stages
        yield from divides(
            f"env.{role}.total_num_envs",
            envs.total_num_envs,
            by,
            f"{envs.total_num_envs} envs",
            f"{workers} rollout workers × {stages} pipeline stages = {by}",
            "envs per rollout worker and stage",
        )


@cross_check(ACTING)
def acting_envs_have_the_policys_place(context: CheckContext) -> Iterator[Problem]:
    """A policy inside of the env processes has their placement."""
    cfg = context.cfg
    if cfg.rollout.in_env_process is True and not placed_alike(cfg):
        message = "the policy would be where the envs are, but rollout has another placement"
        hint = "give both the same in cluster.component_placement, such as env,rollout: 0-1"
        yield Problem(ACTS_IN_ENV, True, message, hint)


@cross_check(EMBODIED)
def rollouts_ahead_have_weights_and_room(context: CheckContext) -> Iterator[Problem]:
    """Rollouts that overlap with updates get new weights after each, and keep their memory."""
    cfg = context.cfg
    age, path = cfg.algorithm.max_policy_age, "algorithm.max_policy_age"
    if not _trains(context) or not age:
        return
    interval = cfg.runner.weight_sync_interval
    if interval != 1:
        message = f"rollouts would be older than that: weights are sent every {interval} updates"
        yield Problem(path, age, message, "set runner.weight_sync_interval to 1")
    offload = {"rollout": cfg.rollout, "env.train": cfg.env.train, "actor": cfg.actor}
    for name, section in offload.items():
        if section.enable_offload:
            message = f"must be false: with {path} {age} rollouts and updates overlap"
            key = f"{name}.enable_offload"
            yield Problem(key, True, message, "set it to false, or the age to 0")


@cross_check(ACTING)
def eval_envs_divide(context: CheckContext) -> Iterator[Problem]:
    """Every worker has the same number of evaluation envs; evaluations have no stages."""
    evaluation = context.cfg.env.eval
    if evaluation is None:
        return
    workers = context.workers("env")
    by = workers * (evaluation.group_size or 1)
    yield from divides(
        "env.eval.total_num_envs",
        evaluation.total_num_envs,
        by,
        f"{evaluation.total_num_envs} envs",
        f"{workers} env workers × group size {evaluation.group_size or 1} = {by}",
        "groups per worker",
    )


@cross_check(EMBODIED)
def group_sizes_agree(context: CheckContext) -> Iterator[Problem]:
    """Envs form the groups that the algorithm compares."""
    if not _trains(context):
        return
    own, wanted = context.cfg.env.train.group_size, context.cfg.algorithm.group_size
    if own is not None and own != wanted:
        message = f"must equal algorithm.group_size, which is {wanted}"
        yield Problem("env.train.group_size", own, message, "leave it out to follow the algorithm")


@cross_check(EMBODIED)
def groups_start_together(context: CheckContext) -> Iterator[Problem]:
    """Members of a group that are compared begin each rollout in the same state."""
    algorithm = context.cfg.algorithm
    if not _trains(context) or not context.cfg.env.train.auto_reset:
        return
    name, hint = algorithm.adv_type.lower(), "set env.train.auto_reset: false, as algo/grpo does"
    if algorithm.use_reinpp_baseline:
        what = "use_reinpp_baseline"
    elif name.startswith("grpo"):
        what = f"adv_type {algorithm.adv_type}"
    elif algorithm.group_size > 1 and algorithm.filter_rewards:
        what = "filter_rewards"
    elif algorithm.group_size > 1 and name not in _UNGROUPED:
        what = f"adv_type {algorithm.adv_type} with group_size {algorithm.group_size}"
        hint += "; or algorithm.group_size: 1, if it compares no groups"
    else:
        return
    message = (
        f"must be false: {what} compares the episodes of a group, which share their start only if "
        "every rollout begins with a reset and each env plays one episode in it"
    )
    yield Problem("env.train.auto_reset", True, message, hint)


@cross_check(EMBODIED)
def rollout_has_whole_chunks(context: CheckContext) -> Iterator[Problem]:
    """A rollout ends where a chunk of actions ends."""
    if not _trains(context):
        return
    train = context.cfg.env.train
    batch = embodied_batch(context.cfg)
    if batch.steps is None:
        return
    key = "max_episode_steps" if train.max_steps_per_rollout_epoch is None else None
    yield from divides(
        f"env.train.{key or 'max_steps_per_rollout_epoch'}",
        batch.steps,
        batch.chunk,
        f"{batch.steps} steps per rollout",
        f"actor.model.num_action_chunks {batch.chunk}",
        "chunks per rollout",
    )


@cross_check(EMBODIED)
def samples_fill_minibatches(context: CheckContext) -> Iterator[Problem]:
    """A rollout is a whole number of minibatches."""
    if not _trains(context) or learns_from_replay(context.cfg):
        return
    batch = embodied_batch(context.cfg)
    if batch.samples is None or batch.global_batch is None or batch.steps % batch.chunk:
        return
    if batch.samples % batch.global_batch:
        near = divisors_near(batch.samples, batch.global_batch)
        yield Problem(
            "actor.global_batch_size",
            batch.global_batch,
            f"{batch.samples_text}, which cannot be divided by global_batch_size"
            f" {batch.global_batch}: {batch.samples} / {batch.global_batch}"
            f" = {batch.samples / batch.global_batch:.4g} minibatches",
            f"sizes that would do: {', '.join(map(str, near))}" if near else "",
        )


@cross_check(EMBODIED)
def minibatches_divide(context: CheckContext) -> Iterator[Problem]:
    """A minibatch is a whole number of micro-batches on every actor worker."""
    if not _trains(context):
        return
    batch, workers = embodied_batch(context.cfg), context.workers("actor")
    if batch.global_batch is not None:
        path, whole, given = "actor.global_batch_size", batch.global_batch, ABSENT
        left = f"global_batch_size {whole}"
    elif batch.samples is not None and not learns_from_replay(context.cfg):
        path, whole, given = "env.train.total_num_envs", batch.samples, batch.envs
        left = f"{batch.samples_text}, the whole rollout,"
    else:
        return
    by, right, why = share_divisor(batch.micro_batch, workers)
    yield from divides(path, whole, by, left, right, why, given=given)


@cross_check(EMBODIED)
def sequences_are_whole(context: CheckContext) -> Iterator[Problem]:
    """Rollouts, minibatches and micro-batches of a policy that remembers are whole sequences."""
    cfg = context.cfg
    length, path = cfg.actor.model.get("sequence_length"), "actor.model.sequence_length"
    if length is None or not _trains(context):
        return
    batch, by = embodied_batch(cfg), f"{path} {length}"
    if age := policy_age(cfg):
        message = "must be 0: what a policy remembers cannot be computed again with other weights"
        yield Problem("algorithm.max_policy_age", age, message, "set it to 0, or leave it out")
    if batch.steps is not None and not batch.steps % batch.chunk:
        chunks = batch.steps // batch.chunk
        if chunks % length:
            message = f"a rollout of {chunks} chunks is not a whole number of sequences of {length}"
            near = ", ".join(map(str, divisors_near(chunks, length)))
            yield Problem(path, length, message, f"lengths that would do: {near}")
    sizes = {
        "global": (batch.global_batch, context.workers("actor")),
        "micro": (batch.micro_batch, 1),
    }
    for name, (size, workers) in sizes.items():
        if size is not None:
            key, right = f"{name}_batch_size", by if workers == 1 else f"{workers} workers × {by}"
            yield from divides(
                f"actor.{key}", size, length * workers, f"{key} {size}", right, "sequences"
            )


@cross_check(ACTING)
def trains_without_loss_scaling(context: CheckContext) -> Iterator[Problem]:
    """Gradients vanish in fp16 unless the loss is scaled, which nothing does."""
    actor = context.cfg.actor
    fsdp = actor.fsdp_config
    formats = {
        "actor.model.precision": actor.model.precision,
        "actor.fsdp_config.mixed_precision.param_dtype": fsdp.mixed_precision.param_dtype,
    }
    if fsdp.amp_autocast.enabled:
        formats["actor.fsdp_config.amp_autocast.precision"] = fsdp.amp_autocast.precision
    for path, name in formats.items():
        if name == "fp16":
            message = "cannot train: gradients vanish in fp16 unless the loss is scaled"
            yield Problem(path, name, message, "use bf16, or fp32")
