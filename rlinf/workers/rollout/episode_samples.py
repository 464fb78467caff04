"""From the episodes of a question to a group of samples, which reward and actor take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rlinf.agents.sequences import TokenSequence
from rlinf.agents.trajectory import Trajectory
from rlinf.data.reasoning import EpisodeRecord, GroupRequest, Sample, SampleGroup


def group_of_episodes(
    request: GroupRequest, trajectories: Sequence[Trajectory], overlong: str
) -> SampleGroup:
    """Return the group that a request asked for.

    Args:
        request: what was asked for.
        trajectories: what came of it.
        overlong: what becomes of episodes that ended at a limit: the reward judges what there is
            (`score`), they score 0 (`zero`), or they do not count (`drop`). A validation judges.
    """
    samples: list[Sample] = []
    episodes: list[EpisodeRecord] = []
    for number, trajectory in enumerate(trajectories):
        failed, score = trajectory.ending == "failed", trajectory.score
        limited = trajectory.overlong and not request.validation
        left_out = (failed and not request.validation) or (limited and overlong == "drop")
        if failed or (limited and overlong != "score"):
            score = 0.0
        own: list[Sample] = []
        for sequence in trajectory.sequences() or [_nothing(request)]:
            sample = _sample(request, sequence, len(samples) + len(own), number)
            sample.left_out = left_out
            own.append(sample)
        leads = [sample for sample in own if _is_leads(sample)]
        if trajectory.overlong and leads:
            # Its last sequence is what the limit cut.
            leads[-1].finish_reason = "length"
        samples += own
        episodes.append(
            EpisodeRecord(
                answer=trajectory.answer,
                turns=[asdict(turn) for turn in trajectory.turns],
                numbers=dict(trajectory.numbers),
                score=score,
                failure=trajectory.failure,
                ending=trajectory.ending,
            )
        )
    return SampleGroup(
        request.prompt, samples, request.key, request.validation, episodes, request.shown
    )


def _sample(request: GroupRequest, sequence: TokenSequence, index: int, trajectory: int) -> Sample:
    return Sample(
        prompt_index=request.prompt.index,
        sample_index=index,
        prompt_ids=sequence.prompt_ids,
        response_ids=sequence.response_ids,
        logprobs=sequence.logprobs,
        versions=sequence.versions,
        finish_reason=sequence.finish_reason,
        loss_mask=sequence.loss_mask,
        trajectory=trajectory,
        turns=sequence.turns,
        agents=sequence.agents,
        turn_rewards=sequence.rewards,
    )


def _is_leads(sample: Sample) -> bool:
    """Return whether it is of the agent whose end is that of the episode."""
    return not sample.agents or sample.agents[-1] == 0


def _nothing(request: GroupRequest) -> TokenSequence:
    """Stand for an episode that failed before the model wrote anything."""
    return TokenSequence(list(request.prompt.token_ids))
