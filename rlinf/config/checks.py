"""Rules between keys: registered functions that each check one thing about a whole config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from rlinf.config.errors import ABSENT, Problem, show
from rlinf.config.port_range import parse_port_range
from rlinf.config.schema.root import TASKS
from rlinf.config.supported_model import SupportedModel
from rlinf.config.task_types import LANGUAGE, OFFLINE
from rlinf.config.tracked import to_plain

TRAINING = ("embodied", *LANGUAGE)
LEARNING = (*TRAINING, *OFFLINE)
"""The same, and learning from data, which has no rollouts."""
FITTING = (*LEARNING, "reward_model")
"""All tasks that train a model, if only one that nobody acts with."""


class NotKnown(Exception):
    """A check needs something that cannot be known, because another part of the config is wrong."""


@dataclass(frozen=True)
class CheckContext:
    """What a check may look at.

    Attributes:
        cfg: The config with defaults filled in. Keys that are wrong are absent, and reading one
            ends the check silently: its error is reported already.
        world_sizes: Workers by component; None when the placement is wrong.
        partial: Whether keys are absent because they are wrong.
    """

    cfg: Any
    world_sizes: Mapping[str, int] | None
    partial: bool = False

    def workers(self, component: str) -> int:
        """Return the number of workers of a component.

        Raises:
            NotKnown: The placement is wrong or does not have it.
        """
        if not self.world_sizes or component not in self.world_sizes:
            raise NotKnown(component)
        return self.world_sizes[component]


Check = Callable[[CheckContext], Iterable[Problem]]
_checks: list[tuple[tuple[str, ...] | None, Check]] = []


def cross_check(task_types: Iterable[str] | None = None) -> Callable[[Check], Check]:
    """Register a function that yields the problems it sees in a config.

    Args:
        task_types: Tasks that it is for; None is all.

    Returns:
        The decorator.
    """
    tasks = None if task_types is None else tuple(task_types)

    def register(function: Check) -> Check:
        _checks.append((tasks, function))
        return function

    return register


def run_checks(context: CheckContext) -> list[Problem]:
    """Runs every registered check that fits the config's task.

    Args:
        context: The config and its world sizes.

    Returns:
        All problems found.
    """
    task = context.cfg.get("runner", {}).get("task_type")
    problems: list[Problem] = []
    for tasks, check in list(_checks):
        if tasks is not None and task not in tasks:
            continue
        try:
            problems += check(context)
        except NotKnown:
            continue
        except (ConfigAttributeError, ConfigKeyError):
            if not context.partial:
                raise
    return problems


def divides(
    path: str, value: int, by: int, left: str, right: str, why: str, *, given: Any = ABSENT
) -> Iterator[Problem]:
    """Yield a problem, with the arithmetic, when `by` does not divide `value`.

    Args:
        path: Key to blame.
        value: The number to divide.
        by: The divisor.
        left: What `value` is made of, such as `16 envs`.
        right: What `by` is made of, such as `2 env workers × 3 pipeline stages = 6`.
        why: What must be whole, such as `envs per worker and stage`.
        given: Value of the key at `path` when that is not `value` itself.

    Yields:
        At most one problem.
    """
    if value % by == 0:
        return
    message = f"{left} cannot be divided by {right}: {value} / {by} = {value / by:.4g} {why}"
    lower, upper = value // by * by, (value // by + 1) * by
    hint = f"{lower} or {upper} would do" if lower else f"{upper} would do"
    if given is ABSENT:
        yield Problem(path, value, message, hint)
    else:
        yield Problem(path, given, message, f"instead of {value}, {hint}")


def divisors_near(number: int, size: int, count: int = 3, reach: int = 10_000) -> list[int]:
    """Return divisors of `number` near `size`, looking no further than `reach`."""
    found: list[int] = []
    for distance in range(1, reach):
        for candidate in (size - distance, size + distance):
            if 0 < candidate <= number and number % candidate == 0:
                found.append(candidate)
        if len(found) >= count:
            break
    return sorted(found[:count])


def share_divisor(micro_batch: int | None, workers: int) -> tuple[int, str, str]:
    """Return what must divide a minibatch, in numbers and words, and what the quotient counts."""
    if micro_batch is None:
        return workers, f"{workers} actor workers", "samples per worker"
    by = micro_batch * workers
    words = f"micro_batch_size {micro_batch} × {workers} actor workers = {by}"
    return by, words, "micro-batches per worker"


@cross_check(TRAINING)
def has_an_end(context: CheckContext) -> Iterator[Problem]:
    """A training run stops some day."""
    runner = context.cfg.runner
    if runner.max_steps == -1 and runner.max_epochs == -1 and not runner.only_eval:
        message = "the run would never end: max_steps and max_epochs are both -1 (no limit)"
        yield Problem("runner.max_steps", -1, message, "set runner.max_steps or runner.max_epochs")


@cross_check()
def ports_are_a_range(context: CheckContext) -> Iterator[Problem]:
    """The ports that the run listens on can be opened."""
    given = context.cfg.cluster.port_range
    if given is not None:
        try:
            parse_port_range(given)
        except ValueError as error:
            yield Problem("cluster.port_range", given, str(error), "write it as 30000-30999")


@cross_check(TASKS)
def components_have_a_place(context: CheckContext) -> Iterator[Problem]:
    """Every component of the task is in the placement."""
    if context.world_sizes is None:
        raise NotKnown
    needed = TASKS[context.cfg.runner.task_type].components
    absent = [name for name in needed if name not in context.world_sizes]
    if absent:
        yield Problem(
            "cluster.component_placement",
            to_plain(context.cfg.cluster.component_placement),
            f"has no place for {', '.join(absent)}; this task needs {', '.join(needed)}",
            f'add them, for instance "{",".join(needed)}: all"',
        )


@cross_check(FITTING)
def models_fit_the_task(context: CheckContext) -> Iterator[Problem]:
    """Models are of the category that the task trains."""
    wanted = TASKS[context.cfg.runner.task_type].model_category
    for section in ("actor", "critic"):
        model = (context.cfg.get(section) or {}).get("model")
        name = model.model_type if model else None
        known = None if name is None else SupportedModel.find(name)
        if known is not None and known.category != wanted:
            fitting = ", ".join(SupportedModel.names(wanted))
            message = f"is a model for {known.category} tasks, but runner.task_type needs {wanted}"
            yield Problem(f"{section}.model.model_type", name, message, f"use one of: {fitting}")


@cross_check(FITTING)
def checkpoints_fit(context: CheckContext) -> Iterator[Problem]:
    """Keeping checkpoints needs them to be saved, and ranking them needs evaluations."""
    runner = context.cfg.runner
    for key in ("keep_last", "keep_best"):
        if runner[key] and runner.save_interval == -1:
            message = "no checkpoints are saved: runner.save_interval is -1"
            yield Problem(f"runner.{key}", runner[key], message, "set runner.save_interval")
    save, evaluate = runner.save_interval, runner.val_check_interval
    if not runner.keep_best or save == -1:
        return
    if evaluate == -1:
        message = "checkpoints cannot be ranked: runner.val_check_interval is -1 (never evaluate)"
        hint = "set runner.val_check_interval"
        yield Problem("runner.keep_best", runner.keep_best, message, hint)
    else:
        yield from divides(
            "runner.save_interval",
            save,
            evaluate,
            f"save_interval {save}",
            f"val_check_interval {evaluate}",
            "evaluations per checkpoint, and keep_best ranks each by its own evaluation",
        )


@cross_check(TRAINING)
def groups_have_members(context: CheckContext) -> Iterator[Problem]:
    """A group baseline needs groups."""
    algorithm = context.cfg.algorithm
    uses_groups = algorithm.adv_type.lower().startswith("grpo") or algorithm.use_reinpp_baseline
    if uses_groups and algorithm.group_size < 2:
        what = "use_reinpp_baseline" if algorithm.use_reinpp_baseline else algorithm.adv_type
        message = f"must be at least 2: {what} compares the samples of a group with one another"
        yield Problem("algorithm.group_size", algorithm.group_size, message, "8 is a usual choice")


@cross_check(TRAINING)
def constant_length_is_known(context: CheckContext) -> Iterator[Problem]:
    """An aggregation that divides by a constant length has one."""
    cfg = context.cfg
    needs = cfg.algorithm.loss_agg_func == "seq-mean-token-sum-norm"
    if needs and cfg.algorithm.loss_length is None and cfg.runner.task_type == "embodied":
        message = "is missing: loss_agg_func seq-mean-token-sum-norm divides by it"
        hint = "the most steps of an episode"
        yield Problem("algorithm.loss_length", ABSENT, message, hint)


@cross_check(TRAINING)
def kl_loss_has_a_gradient(context: CheckContext) -> Iterator[Problem]:
    """A divergence in the loss is estimated by something that has its gradient."""
    algorithm = context.cfg.algorithm
    if algorithm.kl_beta > 0 and algorithm.kl_in == "loss":
        if algorithm.kl_penalty_type in ("k1", "kl"):
            message = "has no gradient on average: as a loss it would hold nothing back"
            hint = "use low_var_kl or k2, or set algorithm.kl_in to reward"
            yield Problem("algorithm.kl_penalty_type", algorithm.kl_penalty_type, message, hint)


@cross_check(TRAINING)
def clipping_fits_the_surrogate(context: CheckContext) -> Iterator[Problem]:
    """Clip ranges are those of the surrogate that is used."""
    algorithm = context.cfg.algorithm
    kind = algorithm.policy_loss
    if kind != "ppo" and algorithm.ratio_clip_eps != 0.2:
        message = f"is for policy_loss ppo, but that is {kind}"
        hint = "set algorithm.clip_ratio_low and algorithm.clip_ratio_high"
        yield Problem("algorithm.ratio_clip_eps", algorithm.ratio_clip_eps, message, hint)
    if kind == "cispo" and algorithm.clip_ratio_c is not None:
        message = "is a bound of ppo and gspo; cispo bounds the ratio itself"
        yield Problem("algorithm.clip_ratio_c", algorithm.clip_ratio_c, message, "set it to null")


@cross_check(TRAINING)
def reward_bounds_are_ordered(context: CheckContext) -> Iterator[Problem]:
    """Filtering of groups has bounds, the lower below the upper."""
    algorithm = context.cfg.algorithm
    low, high = algorithm.rewards_lower_bound, algorithm.rewards_upper_bound
    if low is not None and high is not None and low >= high:
        message = f"must be less than algorithm.rewards_upper_bound, which is {high}"
        yield Problem("algorithm.rewards_lower_bound", low, message)
    if algorithm.filter_rewards and low is None and high is None:
        message = "filters nothing: rewards_lower_bound and rewards_upper_bound are both null"
        yield Problem("algorithm.filter_rewards", True, message, "set at least one of them")


@cross_check(FITTING)
def one_kind_of_mixed_precision(context: CheckContext) -> Iterator[Problem]:
    """Autocast and FSDP's own mixed precision exclude each other."""
    fsdp = context.cfg.actor.fsdp_config
    mixed = {key: value for key, value in fsdp.mixed_precision.items() if value is not None}
    if fsdp.amp_autocast.enabled and mixed:
        message = f"cannot be combined with mixed_precision {show(mixed)}: both cast the weights"
        path = "actor.fsdp_config.amp_autocast.enabled"
        yield Problem(path, True, message, "turn one of them off")


@cross_check(FITTING)
def learning_rate_falls(context: CheckContext) -> Iterator[Problem]:
    """The schedule ends below where it begins."""
    optim = context.cfg.actor.optim
    if optim.min_lr > optim.lr:
        message = f"must be at most actor.optim.lr, which is {optim.lr}"
        yield Problem("actor.optim.min_lr", optim.min_lr, message)


@cross_check(LEARNING)
def one_model_path(context: CheckContext) -> Iterator[Problem]:
    """The older and the newer name of the rollout's weights do not disagree."""
    rollout = context.cfg.rollout
    old, new = rollout.model_dir, rollout.model.model_path
    if old is not None and new is not None and old != new:
        message = f"rollout.model.model_path says otherwise: {show(new)}"
        yield Problem("rollout.model_dir", old, message, "keep only rollout.model.model_path")


@cross_check(LEARNING)
def rollout_has_the_actors_model(context: CheckContext) -> Iterator[Problem]:
    """What the rollout is built as can take the weights that the actor sends."""
    cfg = context.cfg
    own, wanted = cfg.rollout.model.model_type, cfg.actor.model.model_type
    if own is not None and own.lower() != wanted.lower():
        message = f"must be actor.model.model_type, which is {show(wanted)}: its weights come here"
        yield Problem("rollout.model.model_type", own, message, "leave it out")


@cross_check(LEARNING)
def weights_of_the_rollout_last(context: CheckContext) -> Iterator[Problem]:
    """Weights that only the rollout is given are lost when those of the actor come."""
    cfg = context.cfg
    key = "model_dir" if cfg.rollout.model_dir is not None else "model.model_path"
    path = cfg.rollout.model_dir or cfg.rollout.model.model_path
    given = (cfg.actor.model.model_path, cfg.runner.ckpt_path, cfg.actor.checkpoint_load_path)
    if path is None or cfg.runner.resume_dir is not None or any(given):
        return
    message = "the actor begins with fresh weights, which replace these before the first step"
    yield Problem(f"rollout.{key}", path, message, "set actor.model.model_path as well")
