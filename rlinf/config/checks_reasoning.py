"""Rules between the keys of a reasoning config: lengths, batches, log-probabilities, data."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.arithmetic import (
    reasoning_global_batch,
    reasoning_minibatches,
    response_limit,
)
from rlinf.config.checks import (
    CheckContext,
    cross_check,
    divides,
    divisors_near,
    share_divisor,
)
from rlinf.config.errors import ABSENT, Problem
from rlinf.config.task_types import GENERATING, LANGUAGE
from rlinf.config.tracked import to_plain

REASONING = LANGUAGE
_GENERATED = "or set data.type to a dataset that is generated"


@cross_check(REASONING)
def responses_are_drawn(context: CheckContext) -> Iterator[Problem]:
    """What is learnt from was drawn from the policy."""
    cfg = context.cfg
    if not cfg.algorithm.sampling_params.do_sample and not cfg.runner.only_eval:
        message = "takes the likeliest tokens, and a policy learns from what is drawn from it"
        hint = "set it to true; algorithm.val_sampling_params may say false for validations"
        yield Problem("algorithm.sampling_params.do_sample", False, message, hint)


@cross_check(GENERATING)
def sequences_have_room(context: CheckContext) -> Iterator[Problem]:
    """A response fits after the longest prompt."""
    cfg = context.cfg
    total, prompt = cfg.runner.seq_length, cfg.data.max_prompt_length
    if total is None:
        message = "is missing: the most tokens of prompt and response together"
        hint = f"more than {prompt}, the longest prompt"
        yield Problem("runner.seq_length", ABSENT, message, hint)
        return
    if total <= prompt:
        message = f"must be greater than data.max_prompt_length, which is {prompt}"
        yield Problem("runner.seq_length", total, message)
        return
    longest = cfg.algorithm.sampling_params.max_new_tokens
    if longest is not None and longest > total - prompt:
        message = (
            f"does not fit: seq_length {total} - max_prompt_length {prompt}"
            f" = {total - prompt} tokens are left"
        )
        yield Problem("algorithm.sampling_params.max_new_tokens", longest, message)


@cross_check(REASONING)
def sequences_fill_minibatches(context: CheckContext) -> Iterator[Problem]:
    """The sequences of a step are a whole number of minibatches."""
    cfg = context.cfg
    prompts, group = cfg.data.rollout_batch_size, cfg.algorithm.group_size
    given, total = cfg.actor.global_batch_size, prompts * group
    product = f"{prompts} prompts × {group} samples = {total} sequences"
    if cfg.algorithm.n_minibatches is None and given is not None:
        if total % given:
            near = ", ".join(map(str, divisors_near(total, given)))
            message = (
                f"{product}, which cannot be divided by global_batch_size {given}:"
                f" {total} / {given} = {total / given:.4g} minibatches"
            )
            hint = f"sizes that would do: {near}"
            yield Problem("actor.global_batch_size", given, message, hint)
        return
    minibatches = reasoning_minibatches(cfg)
    if total % minibatches:
        yield Problem(
            "algorithm.n_minibatches",
            minibatches,
            f"{product}, which cannot be divided by n_minibatches {minibatches}:"
            f" {total} / {minibatches} = {total / minibatches:.4g} sequences per minibatch",
        )
        return
    whole = reasoning_global_batch(cfg)
    if given is not None and given != whole:
        message = f"must be {whole}: {product} / {minibatches} minibatches = {whole}"
        hint = "leave it out to follow the others"
        yield Problem("actor.global_batch_size", given, message, hint)


@cross_check(REASONING)
def minibatches_divide(context: CheckContext) -> Iterator[Problem]:
    """A minibatch is a whole number of micro-batches on every actor worker."""
    cfg, workers = context.cfg, context.workers("actor")
    if any(sequences_fill_minibatches(context)):
        return
    micro = None if cfg.runner.enable_dynamic_batch_size else cfg.actor.micro_batch_size
    whole = reasoning_global_batch(cfg)
    by, right, why = share_divisor(micro, workers)
    path, given = "actor.micro_batch_size", micro
    if micro is None:
        path, given = "algorithm.n_minibatches", reasoning_minibatches(cfg)
    left = f"a minibatch of {whole} sequences"
    yield from divides(path, whole, by, left, right, why, given=given)


@cross_check(REASONING)
def dynamic_batches_have_a_budget(context: CheckContext) -> Iterator[Problem]:
    """Micro-batches by tokens need a number of tokens that fits the longest sequence."""
    runner = context.cfg.runner
    if not runner.enable_dynamic_batch_size:
        return
    budget = runner.max_tokens_per_mbs
    if budget is None:
        message = "is missing: enable_dynamic_batch_size needs the most tokens of a micro-batch"
        yield Problem("runner.max_tokens_per_mbs", ABSENT, message)
    elif runner.seq_length is not None and budget < runner.seq_length:
        message = f"must be at least runner.seq_length, which is {runner.seq_length}"
        yield Problem("runner.max_tokens_per_mbs", budget, message)


@cross_check(REASONING)
def logprobs_come_from_somewhere(context: CheckContext) -> Iterator[Problem]:
    """Old log-probabilities come from the engine or from the trainer."""
    cfg = context.cfg
    recompute, returned = cfg.algorithm.recompute_logprobs, cfg.rollout.return_logprobs
    if not recompute and not returned:
        message = "old log-probabilities have no source: rollout.return_logprobs is false as well"
        yield Problem("algorithm.recompute_logprobs", False, message, "set one of them to true")
    if cfg.algorithm.loss_type.lower().startswith("decoupled") and not returned:
        message = "weighs samples by the engine's log-probabilities, but there are none"
        hint = "set rollout.return_logprobs to true"
        yield Problem("algorithm.loss_type", cfg.algorithm.loss_type, message, hint)


@cross_check(REASONING)
def mismatch_can_be_corrected(context: CheckContext) -> Iterator[Problem]:
    """Samples of another policy are weighed, or the config says that they are not."""
    cfg = context.cfg
    algorithm, returned = cfg.algorithm, cfg.rollout.return_logprobs
    section, path = algorithm.mismatch, "algorithm.mismatch"
    if section is None:
        if algorithm.max_policy_age > 0 and not returned:
            message = "nothing would correct for older samples: rollout.return_logprobs is false"
            hint = (
                "set it to true; or, to train without a correction, algorithm.mismatch.mode: none"
            )
            yield Problem("algorithm.max_policy_age", algorithm.max_policy_age, message, hint)
        return
    given = to_plain(section)
    if section.mode == "none":
        return
    if algorithm.loss_type.lower().startswith("decoupled"):
        message = f"loss_type {algorithm.loss_type} weighs samples by their age already"
        yield Problem(path, given, message, "leave it out, or use loss_type actor")
    elif not (algorithm.recompute_logprobs and returned):
        off = "algorithm.recompute_logprobs" if returned else "rollout.return_logprobs"
        message = f"compares the log-probabilities of engine and trainer, but {off} is false"
        yield Problem(path, given, message, f"set {off} to true")
    if section.level == "geometric" and section.mode == "truncate":
        message = "level geometric drops responses and weighs none"
        yield Problem(f"{path}.mode", section.mode, message, "set it to mask")


@cross_check(REASONING)
def dynamic_sampling_fits(context: CheckContext) -> Iterator[Problem]:
    """Which groups a step trains on is known when all of them have their scores."""
    algorithm, stream = context.cfg.algorithm, context.cfg.actor.stream_groups
    if algorithm.dynamic_sampling and stream:
        message = "dynamic sampling chooses the groups of a step when all are there"
        yield Problem("actor.stream_groups", stream, message, "set it to 0")
    if algorithm.dynamic_sampling and algorithm.group_size < 2:
        message = "must be at least 2: dynamic sampling looks for groups with unequal scores"
        yield Problem("algorithm.group_size", algorithm.group_size, message, "8 is a usual choice")


@cross_check(REASONING)
def evaluations_can_be_undone(context: CheckContext) -> Iterator[Problem]:
    """After an evaluation between two weight updates, the engine gets its weights back."""
    cfg = context.cfg
    every, sync = cfg.runner.val_check_interval, cfg.runner.weight_sync_interval
    backend = cfg.rollout.rollout_backend
    if backend != "hf" and every > 0:
        yield from divides(
            "runner.val_check_interval",
            every,
            sync,
            f"val_check_interval {every}",
            f"weight_sync_interval {sync}",
            f"weight updates per evaluation, and {backend} cannot give back the weights of before",
        )


@cross_check(REASONING)
def value_loss_has_a_critic(context: CheckContext) -> Iterator[Problem]:
    """GAE needs a value function: a network of its own, or a head of the policy."""
    cfg = context.cfg
    own = cfg.critic is not None and cfg.critic.use_critic_model
    head, loss = cfg.actor.model.add_value_head, cfg.algorithm.loss_type.lower()
    if own and cfg.critic.model is None:
        message = "is missing: critic.use_critic_model is true"
        yield Problem("critic.model", ABSENT, message)
    if own and head:
        message = "there is a critic with a network of its own as well"
        hint = "keep one: this head, or critic.use_critic_model"
        yield Problem("actor.model.add_value_head", True, message, hint)
    elif cfg.algorithm.adv_type.lower() == "gae" and not own and not head:
        message = "gae needs values, but there is no critic"
        hint = (
            "set critic.use_critic_model to true and describe critic.model; or set "
            "actor.model.add_value_head to true with loss_type actor_critic; or use grpo"
        )
        yield Problem("algorithm.adv_type", cfg.algorithm.adv_type, message, hint)
    if cfg.algorithm.critic_warmup_steps and not own and not head:
        message = "there is no value function that could learn alone"
        hint = "leave it out, or describe a critic; see critic.use_critic_model"
        yield Problem(
            "algorithm.critic_warmup_steps", cfg.algorithm.critic_warmup_steps, message, hint
        )
    if loss.endswith("actor_critic") != head:
        if head:
            message = f"nothing would train it: loss_type is {cfg.algorithm.loss_type}"
            yield Problem("actor.model.add_value_head", True, message, "use actor_critic")
        else:
            message = "trains a value head, which the policy does not have"
            hint = "set actor.model.add_value_head to true; with critic.use_critic_model, use actor"
            yield Problem("algorithm.loss_type", cfg.algorithm.loss_type, message, hint)


@cross_check(("reasoning_eval",))
def there_is_something_to_evaluate(context: CheckContext) -> Iterator[Problem]:
    """An evaluation without an actor names its weights, and trains nothing."""
    runner, rollout = context.cfg.runner, context.cfg.rollout
    folder = rollout.model.model_path or rollout.model_dir
    actor = context.cfg.actor
    if folder is None and actor is not None:
        folder = actor.model.model_path
    if folder is None and runner.ckpt_path is None:
        message = "is missing: there are no weights to evaluate"
        hint = "a checkpoint or a run; or set rollout.model.model_path to a folder of a model"
        yield Problem("runner.ckpt_path", ABSENT, message, hint)
    if runner.resume_dir is not None:
        message = "goes on with a training, but reasoning_eval only evaluates"
        yield Problem("runner.resume_dir", runner.resume_dir, message, "set runner.ckpt_path")
    if not runner.only_eval:
        message = "must be true: task type reasoning_eval only evaluates"
        yield Problem("runner.only_eval", False, message, "leave it out")


@cross_check(REASONING)
def models_come_from_somewhere(context: CheckContext) -> Iterator[Problem]:
    """A language model has a folder, or sizes to be made from."""
    cfg = context.cfg
    for section in ("actor", "critic"):
        model = (cfg[section] or {}).get("model")
        if model is None or "hf_config" not in model:
            continue
        if model.model_path is None and not model.hf_config:
            message = "is missing: there are neither weights nor the sizes of a fresh model"
            hint = "a folder as save_pretrained writes it; or give the sizes in hf_config"
            yield Problem(f"{section}.model.model_path", ABSENT, message, hint)


@cross_check(REASONING)
def adapters_have_a_base(context: CheckContext) -> Iterator[Problem]:
    """Adapters alone are of use only to a rollout that has the base weights."""
    cfg = context.cfg
    model = cfg.actor.model
    if cfg.weight_syncer.lora != "adapters":
        return
    if not model.is_lora:
        message = "there are no adapters: actor.model.is_lora is false"
        yield Problem("weight_syncer.lora", "adapters", message, "leave it out")
    elif model.model_path is None:
        message = "a rollout cannot have the base weights: actor.model.model_path is null"
        yield Problem("weight_syncer.lora", "adapters", message, "use merged")


@cross_check(REASONING)
def examples_divide(context: CheckContext) -> Iterator[Problem]:
    """A supervised step has as many examples on every actor worker."""
    supervised, workers = context.cfg.actor.supervised, context.workers("actor")
    if supervised.steps:
        size = supervised.batch_size
        yield from divides(
            "actor.supervised.batch_size",
            size,
            workers,
            f"{size} examples",
            f"{workers} actor workers",
            "examples per worker",
        )


@cross_check(GENERATING)
def responses_have_a_reward(context: CheckContext) -> Iterator[Problem]:
    """There is a reward for responses."""
    if context.cfg.reward.reward_type is None:
        message = "is missing: a reasoning run needs a reward for its responses"
        yield Problem("reward.reward_type", ABSENT, message, "math, code, reasoning_gym, ...")


@cross_check(GENERATING)
def prompts_come_from_somewhere(context: CheckContext) -> Iterator[Problem]:
    """There are prompts for what the run does."""
    runner, data = context.cfg.runner, context.cfg.data
    if data.type.lower() != "files":
        return
    if not runner.only_eval and not data.train_data_paths:
        message = "is missing: there are no training prompts"
        yield Problem("data.train_data_paths", ABSENT, message, _GENERATED)
    if (runner.only_eval or runner.val_check_interval > 0) and not data.val_data_paths:
        message = "is missing: there are no prompts to evaluate on"
        yield Problem("data.val_data_paths", ABSENT, message, _GENERATED)


@cross_check(GENERATING)
def prompts_can_be_written(context: CheckContext) -> Iterator[Problem]:
    """Templates have a place for the prompt, and a system prompt has a template."""
    data = context.cfg.data
    if "{prompt}" not in data.prompt_template:
        message = "has no `{prompt}`: all prompts would be the same"
        yield Problem("data.prompt_template", data.prompt_template, message)
    if data.system_prompt is not None and not data.apply_chat_template:
        message = "is a message of the chat template, but data.apply_chat_template is false"
        hint = "set it to true, or put the text into data.prompt_template"
        yield Problem("data.system_prompt", data.system_prompt, message, hint)


@cross_check(REASONING)
def overlong_buffer_fits(context: CheckContext) -> Iterator[Problem]:
    """Responses may be longer than the part of them that is punished."""
    cfg = context.cfg
    buffer, longest = cfg.algorithm.overlong_buffer_length, response_limit(cfg)
    if longest is not None and buffer > longest:
        message = f"is more than a whole response, which has at most {longest} tokens"
        yield Problem("algorithm.overlong_buffer_length", buffer, message)


@cross_check(REASONING)
def optional_workers_have_work(context: CheckContext) -> Iterator[Problem]:
    """Workers that only some runs have are placed where there is something for them to do."""
    cfg, placed = context.cfg, context.world_sizes or {}
    algorithm = cfg.algorithm
    compares = algorithm.kl_beta > 0 or algorithm.reinpp_kl_beta > 0
    own = cfg.critic is not None and cfg.critic.use_critic_model
    for component, works, why, what in (
        (
            "inference",
            algorithm.recompute_logprobs,
            "algorithm.recompute_logprobs is false",
            "set it to true",
        ),
        (
            "reference",
            compares,
            "nothing compares the policy with a reference",
            "set algorithm.kl_beta",
        ),
        (
            "critic",
            own,
            "there is no critic with a network of its own",
            "set critic.use_critic_model to true",
        ),
    ):
        if component in placed and not works:
            message = f"{component} workers would have nothing to do: {why}"
            given = to_plain(cfg.cluster.component_placement)
            hint = f"{what}, or take {component} out"
            yield Problem("cluster.component_placement", given, message, hint)
