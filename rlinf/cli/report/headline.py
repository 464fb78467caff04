"""What one wants to know of a run first: how it ended, how good it is, how much it took."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlinf.cli.report.run_record import RunRecord
from rlinf.utils.env_spec import task_title
from rlinf.utils.intervals import wilson
from rlinf.utils.numbers import number, percent
from rlinf.utils.run_state import span

STATUS_WORDS = {
    "finished": "finished",
    "evaluated": "evaluated",
    "failed": "failed",
    "running": "still running",
    "stopped": "stopped by its user",
    "killed": "killed: the driver is gone without a word",
    "unknown": "status unknown: there is no summary.json",
}


@dataclass(frozen=True)
class Tile:
    """A number with its name.

    Attributes:
        label: what it is.
        value: the number, for people.
        note: how sure it is, or out of what.
    """

    label: str
    value: str
    note: str = ""


def subtitle(record: RunRecord) -> str:
    """Task, recipe and place of a run, in one line."""
    parts = [task_of(record.config), record.recipe and f"recipe {record.recipe}"]
    algorithm = record.config.get("algorithm") or {}
    loss = algorithm.get("loss_type")
    if loss:
        # With a replay buffer there are no advantages, which `embodied_sac` stands for.
        advantage = None if "replay_buffer" in algorithm else algorithm.get("adv_type")
        parts.append(f"{advantage} + {loss}" if advantage not in (None, loss) else loss)
    if record.began:
        began = datetime.datetime.fromtimestamp(record.began)
        parts.append(f"started {began:%Y-%m-%d %H:%M:%S}")
    if record.summary.get("host"):
        parts.append(f"on {record.summary['host']}")
    return " · ".join(part for part in parts if part)


def task_of(config: dict[str, Any]) -> str | None:
    """Return what the run learns, in a few words."""
    envs = config.get("env") or {}
    env = envs.get("train") or envs.get("eval") or {}
    name = task_title(env)
    if name:
        return f"{name} ({env.get('env_type')})"
    return env.get("env_type") or (config.get("runner") or {}).get("task_type")


def last_evaluation(record: RunRecord) -> dict[str, float]:
    """Return the last evaluation, with its `step`; empty if there is none."""
    final = record.summary.get("evaluation")
    if final:
        return {"step": record.summary.get("evaluation_step"), **final}
    for line in reversed(record.metrics):
        if line.get("eval/episodes") or line.get("eval/prompts"):
            return line
    return {}


def tiles(record: RunRecord) -> list[Tile]:
    """Return the numbers at the top of the page."""
    return [
        *_evaluation_tiles(record),
        *_steps(record),
        *_speed(record),
        *_of(record.wall_seconds, "wall time", lambda value: span(value), _time_note(record)),
        *_of(record.summary.get("restarts") or None, "restarts", str, "from a checkpoint"),
        *_of(record.summary.get("env_restarts") or None, "env restarts", str, "after crashes"),
        *_of(record.summary.get("seed"), "seed", str),
    ]


def _evaluation_tiles(record: RunRecord) -> list[Tile]:
    found = last_evaluation(record)
    trials = "eval/prompts" if "eval/prompts" in found else "eval/episodes"
    count = int(found.get(trials, 0))
    when = f"n = {number(count)}"
    if "eval/distinct_starts" in found:
        when += f" from {found['eval/distinct_starts']:.0f} distinct starts"
    if found.get("step") not in (None, record.summary.get("global_step")):
        when += f", step {found['step']}"
    out = []
    for name, label in (("success_once", "evaluated success"), ("pass@1", "evaluated pass@1")):
        rate = found.get(f"eval/{name}")
        if rate is not None and count:
            _, low, high = wilson(rate, count)
            # The run knows which of its episodes began alike, and so say nothing new.
            low = found.get(f"eval/{name}_low", low)
            high = found.get(f"eval/{name}_high", high)
            note = f"95 % interval {percent(low)} – {percent(high)}, {when}"
            note += _before(record, name, percent)
            if f"eval/{name}_no_tools" in found:
                note += f"; {percent(found[f'eval/{name}_no_tools'])} without tools"
            out.append(Tile(label, percent(rate), note))
    if found.get("eval/return") is not None and count:
        note = when + _before(record, "return", number)
        out.append(Tile("evaluated return", number(found["eval/return"]), note))
    if count and (calls := found.get("eval/tool_calls")) is not None:
        errors = found.get("eval/tool_errors")
        note = "per episode" + ("" if errors is None else f", and {number(errors, 3)} errors")
        out.append(Tile("tool calls", number(calls, 3), note))
    return out or _training_tiles(record)


def _before(record: RunRecord, name: str, words: Callable[[float], str]) -> str:
    """Return what the same evaluation had found before the training."""
    value = (record.summary.get("initial_evaluation") or {}).get(f"eval/{name}")
    return "" if value is None else f"; {words(value)} before the training"


def _training_tiles(record: RunRecord) -> list[Tile]:
    out = []
    for name, label in (
        ("env/success_once", "success in training"),
        ("rollout/score", "score in training"),
    ):
        value = record.latest(name)
        if value is not None:
            words = percent(value) if name == "env/success_once" else number(value, 3)
            out.append(Tile(label, words, "last step, with noise"))
    return out


def _steps(record: RunRecord) -> list[Tile]:
    done = record.summary.get("global_step")
    if record.metrics and (done is None or record.status in ("running", "killed")):
        # The metrics are newer.
        done = record.metrics[-1]["step"]
    runner = record.config.get("runner") or {}
    limits = [n for n in (runner.get("max_epochs"), runner.get("max_steps")) if n and n > 0]
    out = []
    if done is not None:
        out.append(Tile("steps", number(done), f"of {number(min(limits))}" if limits else ""))
    env_steps = record.summary.get("env_steps", record.latest("env/total_steps"))
    return out + _of(env_steps, "env steps", lambda value: number(int(value)))


def _speed(record: RunRecord) -> list[Tile]:
    """Over the whole training; of a run that is under way, of its last steps."""
    for key, name, label in (
        ("env_steps_per_second", "env/steps_per_second", "env steps / s"),
        ("samples_per_second", "rollout/samples_per_second", "samples / s"),
    ):
        whole = record.summary.get(key)
        if whole is not None:
            rollout = record.summary.get(f"{key}_in_rollout")
            note = "" if rollout is None else f"{number(rollout)}/s in rollouts"
            return [Tile(label, number(whole), note)]
        late = [line[name] for line in record.metrics if name in line][-10:]
        if late:
            return [Tile(label, number(sum(late) / len(late)), "of the last steps")]
    return []


def _time_note(record: RunRecord) -> str:
    training = record.summary.get("training_seconds")
    return "" if training is None else f"{span(training)} of it training"


def _of(value: Any, label: str, words: Any, note: str = "") -> list[Tile]:
    return [] if value is None else [Tile(label, words(value), note)]
