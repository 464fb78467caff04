"""A rule between envs to train in and to evaluate in: a policy sees and acts alike in both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.errors import Problem, show
from rlinf.config.plugins import get_schema, known_names
from rlinf.config.schema.env import ActionConventionConfig


@cross_check(("embodied",))
def evaluations_show_what_is_learned_from(context: CheckContext) -> Iterator[Problem]:
    """Keys that say what a policy sees, or what its actions do, agree between envs of one type.

    The schema of the env names them. Arguments of simulators that it does not name may differ:
    rewards, ends, noise and worlds are rightly others in evaluations, and nothing here can tell
    these from arguments that are seen. An evaluation alone may show something else, to see what
    becomes of the policy.
    """
    cfg = context.cfg
    if cfg.env.train is None or cfg.env.eval is None or cfg.runner.only_eval:
        return
    train, evaluation = cfg.env.train, cfg.env.eval
    kind = train.env_type.lower()
    if kind != evaluation.env_type.lower() or kind not in known_names("env"):
        return
    learned, shown = _agreed(kind, train), _agreed(kind, evaluation)
    # Where one of them has no such key, another one says why: it differs, too.
    for key in learned:
        if key not in shown or learned[key] == shown[key]:
            continue
        other = f"env.train.{key}"
        message = (
            f"evaluations have {_told(shown[key])}, and {other} has {_told(learned[key])}: the "
            "policy would see, or its actions would do, something else than in training"
        )
        hint = f"set it and {other} alike"
        yield Problem(f"env.eval.{key}", shown[key], message, hint)


def _told(value: Any) -> str:
    """Return a value in words; arguments that nobody gives are null."""
    return "null (not given)" if value is None else show(value)


def _agreed(kind: str, section: Any) -> dict[str, Any]:
    """Return what has to be alike of an env section, by key."""
    convention = section.action_convention
    if convention is None:
        convention = ActionConventionConfig().model_dump()
    observed = getattr(get_schema("env", kind), "observed", None)
    own = {} if observed is None else observed(section)
    return _plain({"action_convention": convention, **own})


def _plain(value: Any) -> Any:
    """Return plain data of what may be, or hold, a part of a config."""
    return OmegaConf.to_container(OmegaConf.create({"value": value}))["value"]
