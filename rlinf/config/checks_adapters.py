"""Rules of low-rank adapters of policies that act."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.checks_embodied import ACTING
from rlinf.config.errors import Problem

_KEYS = ("lora_path", "lora_alpha", "lora_target_modules")


@cross_check(ACTING)
def adapters_are_asked_for(context: CheckContext) -> Iterator[Problem]:
    """Keys of adapters have an effect only where there are some."""
    model = context.cfg.actor.model
    if model.get("is_lora") is not False:
        return
    for key in _KEYS:
        if model[key]:
            message = "has no effect: actor.model.is_lora is false"
            hint = "set is_lora to true, or leave it out"
            yield Problem(f"actor.model.{key}", model[key], message, hint)


@cross_check(ACTING)
def adapters_have_a_trained_base(context: CheckContext) -> Iterator[Problem]:
    """A base that stays as it is must have learned something."""
    cfg = context.cfg
    begins = cfg.actor.model.model_path, cfg.runner.ckpt_path, cfg.actor.checkpoint_load_path
    if cfg.actor.model.get("is_lora") and not cfg.runner.only_eval and not any(begins):
        message = "freezes weights that are random: nothing says what the policy begins with"
        hint = "name a folder in actor.model.model_path or a run in runner.ckpt_path"
        yield Problem("actor.model.is_lora", True, message, hint)
