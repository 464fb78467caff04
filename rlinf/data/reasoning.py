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
        messages: the same as messages, for agents that go on with them; None without a chat
            template.
    """

    index: int
    token_ids: list[int]
    text: str
    answer: Any
    task: str
    metadata: dict
    messages: list[dict[str, Any]] | None = None


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
        trajectory: number of the episode in the group that this sequence is of; None is
            `sample_index`: each response is an episode of its own. Sequences of one episode stand
            together and have the same reward.
        left_out: whether the episode counts neither in the loss nor in the baseline of its group.
        turns: `[R]` number of the turn, in the episode, that wrote each token or read it first;
            None is one turn.
        agents: `[R]` number of the agent of that turn; None is agent 0.
        turn_rewards: `[R]` what turns were given beside the reward of the episode, each at the last
            token that its turn wrote, and 0 elsewhere; None is nothing.
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
    trajectory: int | None = None
    left_out: bool = False
    turns: list[int] | None = None
    agents: list[int] | None = None
    turn_rewards: list[float] | None = None

    @property
    def written(self) -> int:
        """Response tokens that the policy wrote."""
        return len(self.response_ids) if self.loss_mask is None else sum(self.loss_mask)


@dataclass
class EpisodeRecord:
    """What is known of an episode of several turns, beside its tokens.

    Attributes:
        answer: text that the reward judges.
        turns: what was written, in its order: `role`, `text`, `agent`, `error`, `turn`, `reward`
            and `calls` of each.
        numbers: of the episode, by name; their means become metrics.
        score: what it is worth without asking the reward; None asks it.
        failure: what failed beside the policy; empty if nothing did.
        ending: how it ended: "done", "max_turns", "max_total_tokens" or "failed".
    """

    answer: str
    turns: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    score: float | None = None
    failure: str = ""
    ending: str = "done"


@dataclass
class SampleGroup:
    """All responses to one prompt: what travels from rollout to reward to actor.

    The rollout makes `algorithm.group_size` of them; whoever hands a group on may leave some out.

    Attributes:
        prompt: the question.
        samples: its responses, in the order of `sample_index`.
        key: what it is for: the step that trains on it, or a name.
        validation: whether it is only scored, and not trained on.
        episodes: what is known of each episode, by `Sample.trajectory`; empty for responses of one
            turn.
        shown: see `GroupRequest`.
    """

    prompt: Prompt
    samples: list[Sample]
    key: int | str = DEFAULT_KEY
    validation: bool = False
    episodes: list[EpisodeRecord] = field(default_factory=list)
    shown: bool = False

    def by_trajectory(self) -> list[list[Sample]]:
        """Return the sequences of each episode, in their order."""
        found: dict[int, list[Sample]] = {}
        for sample in self.samples:
            number = sample.sample_index if sample.trajectory is None else sample.trajectory
            found.setdefault(number, []).append(sample)
        return list(found.values())


@dataclass
class GroupRequest:
    """A prompt that wants responses.

    Attributes:
        prompt: the question.
        group_size: responses to make.
        key: what they are for: the step that trains on them, or a name.
        validation: whether they are only scored.
        greedy: take the likeliest token each time instead of drawing.
        tools: whether agents have their tools; without, each call is that of an unknown tool.
        shown: whether people may see the first response or episode; see `rlinf.data.shown_groups`.
    """

    prompt: Prompt
    group_size: int
    key: int | str
    validation: bool = False
    greedy: bool = False
    tools: bool = True
    shown: bool = False


@dataclass
class Transcript:
    """An episode for people; plain data.

    Attributes:
        score: of the episode, before scaling and penalties.
        reward: of the same, as it is trained on.
        ending: see `EpisodeRecord`.
        failure: likewise.
        turns: likewise.
        sequences: what the actor gets, each cut into parts: `role` ("prompt", "model", or who
            wrote what the model read), `text`, number of `tokens`, `agent`, and whether the model
            has `written` it. A part that it wrote has `turn`, `reward`, `calls` and whether it is
            `learnt`, too; any other but the prompt says whether it tells of an `error`.
    """

    score: float
    reward: float
    ending: str
    failure: str
    turns: list[dict[str, Any]]
    sequences: list[list[dict[str, Any]]]


@dataclass
class Verdict:
    """What is told of a group that was scored, without its tokens.

    Attributes:
        index: number of the prompt.
        task: its task.
        scores: of the responses, before scaling and penalties; not of those that are left out.
        rewards: of the same, as they are trained on.
        lengths: tokens of each that the policy wrote.
        truncated: how many were cut at a limit.
        version: of the oldest weights that wrote into it.
        prompt: text of the prompt.
        response: text of the first response.
        answer: what the reward compares with, if that is text or a number.
        numbers: what the reward says beside the score, by name, of those responses that have it.
        failures: how many responses could not be scored, by what went wrong.
        left_out: how many episodes do not count.
        shown: see `GroupRequest`; the following three are filled in if so.
        learnt: whether something of the first response or episode is trained on.
        why_left_out: why it is not, or not all of it; empty if there is nothing to say.
        transcript: of the first episode; None for responses of one turn.
        of_episodes: numbers of the episodes, by name.
        turn_rewards: what turns of each episode were given beside its score, by their numbers;
            empty if none of any episode was.
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
    answer: str | float | None = None
    numbers: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    shown: bool = False
    learnt: bool = True
    why_left_out: str = ""
    transcript: Transcript | None = None
    of_episodes: dict[str, list[float]] = field(default_factory=dict)
    turn_rewards: list[dict[int, float]] = field(default_factory=list)

    @classmethod
    def of(cls, group: SampleGroup, response: str) -> Verdict:
        """Sum a scored group up.

        Args:
            group: its samples have rewards.
            response: text of the first response.
        """
        trajectories = group.by_trajectory()
        counted = [parts for parts in trajectories if not parts[0].left_out]
        numbers: dict[str, list[float]] = {}
        failures: dict[str, int] = {}
        for parts in counted:
            info = dict(parts[0].reward_info)
            info.pop("score")
            outcome = info.pop("outcome", "ok")
            if outcome != "ok":
                failures[outcome] = failures.get(outcome, 0) + 1
            for name, value in info.items():
                numbers.setdefault(name, []).append(float(value))
        of_episodes: dict[str, list[float]] = {}
        for episode in group.episodes:
            for name, value in episode.numbers.items():
                of_episodes.setdefault(name, []).append(float(value))
        given, answer = [_turn_rewards(parts) for parts in counted], group.prompt.answer
        return cls(
            index=group.prompt.index,
            task=group.prompt.task,
            scores=[parts[0].reward_info["score"] for parts in counted],
            rewards=[float(parts[0].reward or 0.0) for parts in counted],
            lengths=[sum(sample.written for sample in parts) for parts in counted],
            truncated=sum(any(s.finish_reason == "length" for s in parts) for parts in counted),
            version=min(min(sample.versions, default=0) for sample in group.samples),
            prompt=group.prompt.text,
            response=response,
            answer=answer if isinstance(answer, (str, int, float)) else None,
            numbers=numbers,
            failures=failures,
            left_out=len(trajectories) - len(counted),
            shown=group.shown,
            of_episodes=of_episodes,
            turn_rewards=given if any(given) else [],
        )


def _turn_rewards(parts: list[Sample]) -> dict[int, float]:
    """Return what the turns of an episode were given, by their numbers; nothing is left out."""
    return {
        turn: reward
        for sample in parts
        for turn, reward in zip(sample.turns or (), sample.turn_rewards or (), strict=False)
        if reward
    }
