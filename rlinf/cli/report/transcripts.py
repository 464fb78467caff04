"""What a language model wrote: episodes as turns, with what was trained on highlighted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from rlinf.utils.numbers import number
from rlinf.utils.runs.folders import SAMPLES

_Item = TypeVar("_Item")
_RIGHT = 0.5
"""Scores above it are right answers."""
_BEGINNING = 90
"""Characters of a prompt in the line that stands for a sample."""
_ENDINGS = {
    "done": "",
    "max_turns": "ended at agentloop.max_turns",
    "max_total_tokens": "ended at its most tokens",
    "failed": "failed",
}


def find_samples(folder: Path, most: int) -> tuple[list[dict[str, Any]], int]:
    """Return some samples of a run, evenly chosen from its first to its last, and how many it has.

    Of an evaluation, up to half of them are wrong answers, and those come first.

    Args:
        folder: of the run.
        most: how many to return.

    Raises:
        ValueError: a line of the file is damaged.
    """
    path = folder / SAMPLES
    if most < 1 or not path.is_file():
        return [], 0
    with path.open("rb") as file:
        # The last line of a run that is under way may not be complete.
        lines = [line for line in file if line.endswith(b"\n")]
    if not lines or "step" in _parsed(path, lines, len(lines) - 1):
        places = _evenly(range(len(lines)), most)
        return [_parsed(path, lines, place) for place in places], len(lines)
    samples = [_parsed(path, lines, place) for place in range(len(lines))]
    wrong = [each for each in samples if _is_wrong_answer(each)]
    others = [each for each in samples if not _is_wrong_answer(each)]
    shown = _evenly(wrong, max(most // 2, most - len(others)))
    return [*shown, *_evenly(others, most - len(shown))], len(lines)


def _parsed(path: Path, lines: Sequence[bytes], place: int) -> dict[str, Any]:
    try:
        sample = json.loads(lines[place])
    except ValueError as error:
        message = f"{path}, line {place + 1}, is not JSON ({error}); remove the line"
        raise ValueError(message) from error
    if not isinstance(sample, dict):
        raise ValueError(f"{path}, line {place + 1}, is not a JSON object; remove the line")
    return sample


def _evenly(items: Sequence[_Item], most: int) -> list[_Item]:
    """Return some items, the first and the last among them."""
    count = min(most, len(items))
    return [items[place * (len(items) - 1) // max(1, count - 1)] for place in range(count)]


def _is_right(sample: Mapping[str, Any]) -> bool:
    return (sample.get("score") or 0.0) > _RIGHT


def _is_wrong_answer(sample: Mapping[str, Any]) -> bool:
    """Return whether a sample is one of an evaluation, with a score that is not right."""
    return "step" not in sample and sample.get("score") is not None and not _is_right(sample)


def transcripts(samples: Sequence[Mapping[str, Any]], among: int) -> str:
    """Return samples, each folded into a line but for the last.

    Args:
        samples: of `find_samples`.
        among: how many the run has.
    """
    if not samples:
        return ""
    trained = any("step" in sample for sample in samples)
    wrong = sum(map(_is_wrong_answer, samples))
    first = ""
    # A run that trained and evaluated has them in the order of its steps.
    if wrong and all(map(_is_wrong_answer, samples[:wrong])):
        first = f", the first {number(wrong)} with a wrong answer"
    marked = (
        '<mark class="trained">This colour</mark> is what the model wrote and was trained on, '
        '<mark class="written">this one</mark> what it wrote and was left out'
    )
    if not trained:
        marked = '<mark class="written">This colour</mark> is what the model wrote'
    parts = [_sample(each, each is samples[-1]) for each in samples]
    return (
        f"<p>{number(len(samples))} of {number(among)} in {SAMPLES}{first}. {marked}; all else is "
        f'what it read.</p><div class="samples">{"".join(parts)}</div>'
    )


def _sample(sample: Mapping[str, Any], is_open: bool) -> str:
    sequences = sample.get("sequences") or [_of_turns(sample) or _single_turn(sample)]
    learnt = bool(sample.get("learnt", "step" in sample))
    body = "".join(_sequence(parts, learnt, len(sequences) > 1) for parts in sequences)
    notes = "; ".join(note for note in _notes(sample) if note)
    about = f'<p class="note">{escape(notes)}</p>' if notes else ""
    return (
        f'<details class="sample"{" open" if is_open else ""}><summary>{_title(sample)}</summary>'
        f"{about}{body}</details>"
    )


def _of_turns(sample: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of an episode whose tokens were not noted; empty if it has no turns."""
    turns = sample.get("turns") or ()
    if not turns:
        return []
    prompt = {"role": "prompt", "text": str(sample.get("prompt", "")), "written": False}
    return [prompt, *({**turn, "written": turn["role"] == "assistant"} for turn in turns)]


def _single_turn(sample: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a prompt with one response, all of which the model wrote."""
    prompt, response = (str(sample.get(key, "")) for key in ("prompt", "response"))
    return [
        {"role": "prompt", "text": prompt, "written": False},
        {"role": "model", "text": response, "written": True},
    ]


def _title(sample: Mapping[str, Any]) -> str:
    """Return a sample in a line: when, its score, how long it was, and what was asked."""
    score = sample.get("score")
    when = f"step {number(sample['step'])}" if "step" in sample else "evaluation"
    kind = "" if score is None else "good" if _is_right(sample) else "bad"
    words = "no score" if score is None else f"score {number(float(score), 3)}"
    facts = [f"<b>{when}</b>", f'<b class="{kind}">{words}</b>']
    turns = [turn for turn in sample.get("turns") or () if turn["role"] == "assistant"]
    if turns:
        facts.append(_count(len(turns), "turn"))
        facts.append(_count(sum(len(turn.get("calls", ())) for turn in turns), "tool call"))
        agents = {turn["agent"] for turn in turns}
        facts += [_count(len(agents), "agent")] if len(agents) > 1 else []
    prompt = " ".join(str(sample.get("prompt", "")).split())
    cut = prompt if len(prompt) <= _BEGINNING else f"{prompt[:_BEGINNING]} …"
    return f"{' · '.join(facts)} · {escape(cut)}"


def _notes(sample: Mapping[str, Any]) -> Iterable[str]:
    ending, reward = sample.get("ending", "done"), sample.get("reward")
    yield _ENDINGS.get(ending, f"ended: {ending}")
    yield str(sample.get("failure") or "")
    if "step" in sample:
        yield _left_out(sample)
    if reward is not None and reward != sample.get("score"):
        yield f"reward {number(reward, 3)} after scale and penalties"
    answer = sample.get("answer")
    if answer not in (None, "") and not _is_right(sample):
        yield f"expected: {str(answer)[:_BEGINNING]}"
    given = sum(turn.get("reward", 0.0) for turn in sample.get("turns") or ())
    if given:
        yield f"rewards of its turns {_signed(given)} together"
    scores = sample.get("scores") or []
    if len(scores) > 1:
        yield f"scores of the group: {', '.join(number(float(score), 3) for score in scores)}"


def _left_out(sample: Mapping[str, Any]) -> str:
    """Say that an episode was not trained on, or not all of it, and why."""
    why = str(sample.get("why_left_out") or "")
    if sample.get("learnt", True):
        return f"left out in part: {why}" if why else ""
    return f"left out: {why}" if why else "left out"


def _sequence(parts: Sequence[Mapping[str, Any]], learnt: bool, several: bool) -> str:
    """Return a conversation; where there are several, under the number of its agent."""
    agent = parts[0].get("agent", 0)
    head = f"<h4>agent {agent}</h4>" if several else ""
    body = "".join(_part(part, learnt) for part in parts)
    return f'<div class="conversation">{head}{body}</div>'


def _part(part: Mapping[str, Any], learnt: bool) -> str:
    written, error = part["written"], part.get("error", False)
    learnt = part.get("learnt", learnt)
    kind = ("trained" if learnt else "written") if written else "error" if error else "read"
    facts = [part["role"]]
    facts += [f"turn {part['turn']}"] if "turn" in part else []
    facts += [_count(part["tokens"], "token")] if "tokens" in part else []
    facts += ["error"] if error else []
    facts += [f"reward {_signed(part['reward'])}"] if part.get("reward") else []
    calls = "".join(f"<li>{escape(_call(call))}</li>" for call in part.get("calls") or ())
    return (
        f'<div class="part {kind}"><div class="who">{escape(" · ".join(facts))}</div>'
        f"<pre>{escape(part['text'])}</pre>"
        + (f'<ul class="calls">{calls}</ul>' if calls else "")
        + "</div>"
    )


def _call(call: Mapping[str, Any]) -> str:
    """Return a tool call as one would write it in Python."""
    if "problem" in call:
        return f"not a call: {call['problem']}"
    arguments = call["arguments"].items()
    return f"{call['name']}({', '.join(f'{name}={value!r}' for name, value in arguments)})"


def _count(count: int, what: str) -> str:
    return f"{number(count)} {what}" if count == 1 else f"{number(count)} {what}s"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(float(value), 3)}"
