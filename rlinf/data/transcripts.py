"""The first episode of a group as text: what was read and written, and which of it is learnt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rlinf.data.reasoning import Prompt, Sample, SampleGroup, Transcript


def transcript_of(
    group: SampleGroup, decode: Callable[[Sequence[int]], str], reasons: Sequence[str] = ()
) -> Transcript | None:
    """Return what a reader sees of the first episode; None for responses of one turn.

    Args:
        group: its samples have rewards.
        decode: returns the text of tokens, special ones included.
        reasons: why each sequence of the episode is not trained on, empty where it is; none of a
            validation is.
    """
    if not group.episodes:
        return None
    samples = group.by_trajectory()[0]
    first, episode = samples[0], group.episodes[0]
    learnt = [not (group.validation or reason) for reason in reasons or [""] * len(samples)]
    sequences = sorted(zip(samples, learnt, strict=True), key=lambda each: _agent(each[0]))
    return Transcript(
        score=first.reward_info["score"],
        reward=float(first.reward or 0.0),
        ending=episode.ending,
        failure=episode.failure,
        turns=episode.turns,
        sequences=[
            _parts(sample, group.prompt, episode.turns, decode, counts)
            for sample, counts in sequences
        ],
    )


def _agent(sample: Sample) -> int:
    return sample.agents[0] if sample.agents else 0


def _parts(
    sample: Sample,
    question: Prompt,
    turns: Sequence[Mapping[str, Any]],
    decode: Callable[[Sequence[int]], str],
    learnt: bool,
) -> list[dict[str, Any]]:
    """Return a sequence cut where another writes, or another turn begins."""
    ids = sample.response_ids
    mask = sample.loss_mask or [True] * len(ids)
    numbers, agents = sample.turns or [0] * len(ids), sample.agents or [0] * len(ids)
    rewards = sample.turn_rewards or [0.0] * len(ids)
    prompt = {
        "role": "prompt",
        "text": _spaced(decode(sample.prompt_ids), question.text),
        "tokens": len(sample.prompt_ids),
        "agent": _agent(sample),
        "written": False,
    }
    found = [prompt]
    keys = list(zip(numbers, agents, mask, strict=True))
    counted = {turn for turn, _, written in keys if written}
    for (turn, agent, written), group in groupby(range(len(ids)), key=keys.__getitem__):
        places = list(group)
        part = {
            "role": "model",
            "text": decode([ids[place] for place in places]),
            "tokens": len(places),
            "agent": agent,
            "written": written,
        }
        if written:
            part["learnt"] = learnt
            part["turn"] = turn
            part["reward"] = sum(rewards[place] for place in places)
            part["calls"] = [
                call for each in turns if each["turn"] == turn for call in each["calls"]
            ]
        else:
            read = _read_before(turns, turn, agent)
            if turn not in counted:
                # What the model wrote in it is context only.
                read = [*read, *(each for each in turns if each["turn"] == turn)]
            part["text"] = _spaced(part["text"], "".join(each["text"] for each in read))
            part["role"] = ", ".join(dict.fromkeys(each["role"] for each in read)) or "read"
            part["error"] = any(each["error"] for each in read)
        found.append(part)
    return found


def _spaced(decoded: str, source: str) -> str:
    """Return the text that tokens were made of, if all that they lost is its spaces."""
    return source if "".join(source.split()) == "".join(decoded.split()) else decoded


def _read_before(
    turns: Sequence[Mapping[str, Any]], turn: int, agent: int
) -> list[Mapping[str, Any]]:
    """Return what an agent read between its turn before this one and this one."""
    found: list[Mapping[str, Any]] = []
    for each in turns:
        if each["agent"] != agent:
            continue
        if each["turn"] == turn:
            return found
        found = [] if each["turn"] >= 0 else [*found, each]
    return []
