"""Rules between the keys of a config that learns from data."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.builtin import MODULES, WITHOUT_KEYS
from rlinf.config.checks import CheckContext, cross_check, divides, share_divisor
from rlinf.config.errors import ABSENT, Problem
from rlinf.config.task_types import FROM_DATA, OFFLINE

_BC, _IQL = "embodied_bc", "offline_iql"
_REWARD_MODEL = "reward_model"


@cross_check(OFFLINE)
def has_envs_to_evaluate_in(context: CheckContext) -> Iterator[Problem]:
    """Sizes of observations and actions come from the envs of evaluations."""
    if context.cfg.env.eval is None:
        message = "is missing: the envs of evaluations say what a policy observes and does"
        yield Problem("env.eval", ABSENT, message, "add env.eval")


@cross_check(OFFLINE)
def learns_from_data(context: CheckContext) -> Iterator[Problem]:
    """A loss on rollouts has nothing to learn from."""
    name, task = context.cfg.algorithm.loss_type, context.cfg.runner.task_type
    if name.lower() in WITHOUT_KEYS["loss"]:
        message = f"learns from rollouts, and runner.task_type {task} has none"
        hint = "use embodied_bc or offline_iql, or runner.task_type: embodied"
        yield Problem("algorithm.loss_type", name, message, hint)
    if name.lower() == _REWARD_MODEL:
        message = f"trains a reward model, and runner.task_type {task} trains a policy"
        hint = "set runner.task_type: reward_model, as metaworld_reward_model_mlp does"
        yield Problem("algorithm.loss_type", name, message, hint)


@cross_check((_REWARD_MODEL,))
def trains_a_reward_model(context: CheckContext) -> Iterator[Problem]:
    """Learners of policies have no use for a reward model."""
    name = context.cfg.algorithm.loss_type
    known = {*WITHOUT_KEYS["loss"], *(n for names in MODULES["loss"].values() for n in names)}
    if name.lower() in known - {_REWARD_MODEL}:
        message = "trains a policy, and runner.task_type reward_model trains a reward model"
        yield Problem("algorithm.loss_type", name, message, f"leave it out; it is {_REWARD_MODEL}")


@cross_check(("sft",))
def is_supervised(context: CheckContext) -> Iterator[Problem]:
    """Supervised training has the actions of the data as labels, and no rewards."""
    name = context.cfg.algorithm.loss_type
    if name.lower() == _IQL:
        message = "learns from rewards, and runner.task_type sft is supervised training"
        hint = "set runner.task_type: offline, or use embodied_bc"
        yield Problem("algorithm.loss_type", name, message, hint)


@cross_check(OFFLINE)
def weighs_each_folder(context: CheckContext) -> Iterator[Problem]:
    """There is one weight for each dataset."""
    data = context.cfg.data
    given, folders = data.train_data_weights, len(data.train_data_paths)
    if given is not None and len(given) != folders:
        message = f"has {len(given)} numbers, and data.train_data_paths has {folders} folders"
        yield Problem("data.train_data_weights", list(given), message, "give each folder one")


@cross_check(("embodied",))
def learns_from_rollouts(context: CheckContext) -> Iterator[Problem]:
    """Learners from data take no rollouts."""
    name = context.cfg.algorithm.loss_type
    task = {_BC: "offline", _IQL: "offline", _REWARD_MODEL: _REWARD_MODEL}
    if name.lower() in task:
        message = "learns from data.train_data_paths, and runner.task_type embodied has no data"
        hint = f"set runner.task_type: {task[name.lower()]}"
        yield Problem("algorithm.loss_type", name, message, hint)


@cross_check(FROM_DATA)
def batches_divide(context: CheckContext) -> Iterator[Problem]:
    """A batch is a whole number of micro-batches on every actor worker."""
    actor = context.cfg.actor
    if actor.global_batch_size is None:
        message = "is missing: a run from data needs to know how many samples a step is made of"
        yield Problem("actor.global_batch_size", ABSENT, message, "256 is a usual choice")
        return
    by, right, why = share_divisor(actor.micro_batch_size, context.workers("actor"))
    whole = actor.global_batch_size
    left = f"global_batch_size {whole}"
    yield from divides("actor.global_batch_size", whole, by, left, right, why)


@cross_check(FROM_DATA)
def ends_after_steps(context: CheckContext) -> Iterator[Problem]:
    """The length of a run is a number of steps."""
    runner = context.cfg.runner
    if runner.max_epochs != -1:
        message = f"a run from data is as long as runner.max_steps, {runner.max_steps}, says"
        yield Problem("runner.max_epochs", runner.max_epochs, message, "leave it out")
    if runner.max_steps <= 0 and not runner.only_eval:
        message = "must be above 0: nothing else ends a run from data"
        yield Problem("runner.max_steps", runner.max_steps, message, "set a number of steps")


@cross_check(OFFLINE)
def iql_has_what_it_trains(context: CheckContext) -> Iterator[Problem]:
    """Implicit Q-learning trains Q-functions and a value function, by the optimiser of critics."""
    cfg = context.cfg
    if cfg.algorithm.loss_type.lower() != _IQL:
        return
    for key, what in (("add_q_head", "Q-functions"), ("add_value_head", "a value function")):
        if not cfg.actor.model[key]:
            message = f"must be true: algorithm.loss_type {_IQL} trains {what}"
            yield Problem(f"actor.model.{key}", False, message, "set it to true")
    for section in ("optim", "critic_optim"):
        optim = cfg.actor[section]
        if optim is not None and optim.value_lr is not None:
            message = f"has no effect: with loss_type {_IQL} the value function learns like critics"
            hint = "leave it out, and set actor.critic_optim.lr"
            yield Problem(f"actor.{section}.value_lr", optim.value_lr, message, hint)
