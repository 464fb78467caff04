"""What differs between the configuration of a checkpoint and that of the run that resumes it."""

from __future__ import annotations

import re
from typing import Any

FREE = (
    r"runner\.(run_dir|resume_dir|resume_force|max_steps|max_epochs|max_restarts|only_eval)",
    r"runner\.(save_interval|save_last|async_save|keep_last|keep_best|best_metric)",
    r"runner\.(val_check_interval|eval_at_start|eval_episodes|progress|trace|log_interval)",
    r"runner\.(report_unread_keys|agreement|logger|ext_modules)(\..*)?",
    r"cluster(\..*)?",
    r"env\.eval(\..*)?",
    r"\w+\.group_name|rollout\.(in_env_process|eval_batch_size)",
    r"collect(\..*)?",
    r"(actor|rollout)\.model\.(eval_tokens|rtc\.max_guidance)",
)
"""Keys that may change without making it another run: how long, where, and what is looked at.

With a schedule that depends on the length of the run, its length is not free.
"""
_MODEL = r"(actor|rollout)\.model\.(?!model_path$).*"
"""Keys that make it another policy; all that matters where a policy is only evaluated."""
_ACTING = r"(actor|rollout)\.model\.eval_tokens"
"""Free but where rollouts act as evaluations do: in DAgger."""
_LENGTH = r"runner\.(max_steps|max_epochs)"

Difference = tuple[str, Any, Any]
"""(key, value in the checkpoint, value now)."""

_ABSENT = "(absent)"


def differences(
    then: dict[str, Any], now: dict[str, Any], only_model: bool = False
) -> list[Difference]:
    """Return the keys that make it another run, with both values.

    Args:
        then: configuration of the checkpoint.
        now: configuration of this run.
        only_model: look at the keys of the policy alone.
    """
    before, after = _flat(then), _flat(now)
    schedule = after.get("actor.optim.lr_scheduler", "constant")
    is_dagger = any(key.startswith("algorithm.dagger.") for key in after)
    out = []
    for key in sorted(before.keys() | after.keys()):
        one, two = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if one == two or (only_model and not re.fullmatch(_MODEL, key)):
            continue
        is_length = re.fullmatch(_LENGTH, key) and schedule != "constant"
        is_acting = re.fullmatch(_ACTING, key) and is_dagger and not only_model
        if is_length or is_acting or not any(re.fullmatch(pattern, key) for pattern in FREE):
            out.append((key, one, two))
    return out


def describe(changed: list[Difference]) -> str:
    """One line per key."""
    return "\n".join(f"  {key}: {one!r} then, {two!r} now" for key, one, two in changed)


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict) or not node:
        return {prefix: node}
    out: dict[str, Any] = {}
    for key, value in node.items():
        out |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return out
