"""What reasoning workers hand each other: prompts, samples, and groups of samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf.scheduler.channel.channel import DEFAULT_KEY

FINISH_REASONS = ("stop", "length", "abort")
"""How a response may end: with the end token, at the length limit, or because it was stopped."""


@dataclass
class Prompt:
    """One question.

    Attributes:
        index: running number over the whole run, `epoch * len(dataset) + position`; unique, and
            what the seeds of its samples are made of.
        token_ids: `[P]` tokens, with the chat template if there is one.
        text: the same as text.
        answer: what the reward compares with.
        task: name of the dataset or task; metrics are per task.
        metadata: whatever else the reward needs, plain data.
    """

    index: int
    token_ids: list[int]
    text: str
    answer: Any
    task: str
    metadata: dict


@dataclass
class Sample:
    """One response to a prompt.

    Attributes:
        prompt_index: `index` of the prompt.
        sample_index: 0 to the size of the group - 1.
        prompt_ids: `[P]` tokens of the prompt.
        response_ids: `[R]` tokens that follow the prompt; the last one is the end token when
            `finish_reason` is "stop".
        logprobs: `[R]` log-probability of each response token under the distribution it was drawn
            from: with temperature, before top-k and top-p cut it. Any number where the loss mask
            is false.
        versions: `[R]` version of the weights that drew each token.
        finish_reason: "stop", "length" or "abort".
        reward: what the response is worth; None until it is known.
        reward_info: how the reward came about, plain data.
        old_logprobs: `[R]` log-probabilities by the trainer's policy before the update; None lets
            the actor compute them, if it needs them.
        ref_logprobs: `[R]` log-probabilities by the reference policy; None likewise.
        values: `[R]` values of the state before each token; None likewise.
        loss_mask: `[R]` whether the policy wrote each response token; false for what a tool or
            another agent wrote, which is read and not learnt. None is all.
    """

    prompt_index: int
    sample_index: int
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: str
    reward: float | None = None
    reward_info: dict = field(default_factory=dict)
    old_logprobs: list[float] | None = None
    ref_logprobs: list[float] | None = None
    values: list[float] | None = None
    loss_mask: list[bool] | None = None


@dataclass
class SampleGroup:
    """All responses to one prompt: what travels from rollout to reward to actor.

    The rollout makes `algorithm.group_size` of them; whoever hands a group on may leave some out.

    Attributes:
        prompt: the question.
        samples: its responses, in the order of `sample_index`.
        key: what it is for: the step that trains on it, or a name.
        validation: whether it is only scored, and not trained on.
    """

    prompt: Prompt
    samples: list[Sample]
    key: int | str = DEFAULT_KEY
    validation: bool = False


@dataclass
class GroupRequest:
    """A prompt that wants responses.

    Attributes:
        prompt: the question.
        group_size: responses to make.
        key: what they are for: the step that trains on them, or a name.
        validation: whether they are only scored.
        greedy: take the likeliest token each time instead of drawing.
    """

    prompt: Prompt
    group_size: int
    key: int | str
    validation: bool = False
    greedy: bool = False


@dataclass
class Verdict:
    """What is told of a group that was scored, without its tokens.

    Attributes:
        index: number of the prompt.
        task: its task.
        scores: of the responses, before scaling and penalties.
        rewards: of the responses, as they are trained on.
        lengths: tokens of the responses.
        truncated: how many were cut at the length limit.
        version: of the oldest weights that wrote into it.
        prompt: text of the prompt.
        response: text of the first response.
        numbers: what the reward says beside the score, by name, of those responses that have it.
        failures: how many responses could not be scored, by what went wrong.
    """

    index: int
    task: str
    scores: list[float]
    rewards: list[float]
    lengths: list[int]
    truncated: int
    version: int
    prompt: str
    response: str
    numbers: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, group: SampleGroup, response: str) -> Verdict:
        """Sum a scored group up.

        Args:
            group: its samples have rewards.
            response: text of the first response.
        """
        samples = group.samples
        numbers: dict[str, list[float]] = {}
        failures: dict[str, int] = {}
        for sample in samples:
            info = dict(sample.reward_info)
            info.pop("score")
            outcome = info.pop("outcome", "ok")
            if outcome != "ok":
                failures[outcome] = failures.get(outcome, 0) + 1
            for name, value in info.items():
                numbers.setdefault(name, []).append(float(value))
        return cls(
            index=group.prompt.index,
            task=group.prompt.task,
            scores=[sample.reward_info["score"] for sample in samples],
            rewards=[float(sample.reward or 0.0) for sample in samples],
            lengths=[len(sample.response_ids) for sample in samples],
            truncated=sum(sample.finish_reason == "length" for sample in samples),
            version=min(min(sample.versions, default=0) for sample in samples),
            prompt=group.prompt.text,
            response=response,
            numbers=numbers,
            failures=failures,
        )
