"""`RewardWorker`: takes groups of responses as they come, scores them, and hands them on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlinf.algorithms.dynamic_sampling import carries_signal
from rlinf.algorithms.rewards.shaping import overlong_penalty, scaled
from rlinf.data.reasoning import Sample, SampleGroup, Verdict
from rlinf.data.tokenizer import load_tokenizer, tokenizer_of_run
from rlinf.data.transcripts import transcript_of
from rlinf.scheduler import UNTIL_CLOSED, Channel, ChannelClosed, ItemLost, Worker
from rlinf.utils.processes.pool import Outcome
from rlinf.workers.reward.left_out import why_left_out
from rlinf.workers.reward.scorer import Scorer
from rlinf.workers.reward.tally import RewardTally


class RewardWorker(Worker):
    """Scores responses. Several of them may share their channels; each takes what it has room for.

    Args:
        cfg: checked configuration.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg

    def init_worker(self) -> None:
        """Make the reward and its processes.

        Raises:
            ValueError: The reward or the tokenizer cannot be made.
        """
        own = self.cfg.reward.tokenizer
        self._tokenizer = load_tokenizer(own) if own.tokenizer_model else tokenizer_of_run(self.cfg)
        self._scorer = Scorer(self.cfg.reward)
        where = self._scorer.wait_ready()
        self.log_on_first_rank(f"reward '{self.cfg.reward.reward_type}' is computed {where}")

    async def compute_rewards(
        self,
        input_channel: Channel,
        output_channel: Channel,
        verdict_channel: Channel | None = None,
        *,
        num_groups: int | None = None,
    ) -> RewardTally:
        """Score groups until there are no more.

        A group is put as soon as all its samples are scored, so groups may overtake each other. The
        call ends when the input channel is closed, when it takes `None` from it (the producer puts
        one for each worker), or after `num_groups` groups.

        Args:
            input_channel: `SampleGroup`s, or None.
            output_channel: The same groups, with rewards, under their keys. Groups for validation
                do not go there, nor, with dynamic sampling, groups whose scores are all equal.
            verdict_channel: A `Verdict` of each group, under its key.
            num_groups: Groups that this worker takes; None is no limit.

        Returns:
            What rewards were given and what went wrong.
        """
        tally = RewardTally()
        scoring: dict[asyncio.Task[None], int] = {}
        taking: asyncio.Task[SampleGroup | None] | None = None
        taken, ended = 0, num_groups == 0
        try:
            while True:
                if taking is None and not ended and sum(scoring.values()) < self._scorer.room:
                    taking = asyncio.ensure_future(_take(input_channel))
                waiting = {*scoring, *([taking] if taking else [])}
                if not waiting:
                    break
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {taking}:
                    del scoring[task]
                    task.result()
                if taking in done:
                    group, taking = taking.result(), None
                    if group is not None:
                        task = asyncio.ensure_future(
                            self._score_group(group, output_channel, verdict_channel, tally)
                        )
                        scoring[task] = len(group.samples)
                        taken += 1
                    ended = group is None or taken == num_groups
        finally:
            for task in {*scoring, *([taking] if taking else [])}:
                task.cancel()
        for name, message in tally.complaints.items():
            count = tally.counts[name]
            self.log_warning(f"reward: {count} {name}, the first of them: {message[:1000]}")
        return tally

    def on_shutdown(self) -> None:
        """End the processes of the reward."""
        if hasattr(self, "_scorer"):
            self._scorer.close()

    async def _score_group(
        self,
        group: SampleGroup,
        output_channel: Channel,
        verdict_channel: Channel | None,
        tally: RewardTally,
    ) -> None:
        trajectories = group.by_trajectory()
        texts = [self._text(group, parts) for parts in trajectories]
        outcomes = await asyncio.gather(
            *(self._outcome(group, *each) for each in zip(trajectories, texts, strict=True))
        )
        for parts, outcome in zip(trajectories, outcomes, strict=True):
            # Validation wants the score alone: no scale, no bounds, no penalty for length.
            self._reward(parts, outcome, group.validation)
            tally.add(outcome)
        tally.groups += 1
        verdict = Verdict.of(group, self._shown(group, texts[0]))
        trained = not group.validation and self._is_trained_on(verdict)
        if group.shown and (trained or group.validation):
            self._tell(group, verdict)
        if trained:
            await output_channel.put(group, key=group.key, async_op=True)
        if verdict_channel is not None:
            await verdict_channel.put(verdict, key=group.key, async_op=True)

    def _tell(self, group: SampleGroup, verdict: Verdict) -> None:
        """Fill in what a reader sees of the first response: what of it is trained on, and why."""
        reasons: list[str] = []
        verdict.learnt = not group.validation
        if verdict.learnt and self.cfg.algorithm is not None:
            reasons = why_left_out(group, self.cfg)
            verdict.learnt = not all(reasons)
            verdict.why_left_out = "; ".join(dict.fromkeys(filter(None, reasons)))
        verdict.transcript = transcript_of(group, self._tokenizer.decode, reasons)

    def _is_trained_on(self, verdict: Verdict) -> bool:
        algorithm = self.cfg.algorithm
        sampled = algorithm is not None and algorithm.dynamic_sampling
        return not sampled or carries_signal(verdict.scores, verdict.turn_rewards)

    def _text(self, group: SampleGroup, parts: Sequence[Sample]) -> str:
        """Return what the reward judges of an episode."""
        for sample in parts:
            if sample.finish_reason == "abort":
                raise ValueError(
                    f"sample {sample.sample_index} of prompt {sample.prompt_index} was aborted; "
                    "only responses that are complete, or were cut at the length limit, have a "
                    "reward"
                )
        if group.episodes:
            return group.episodes[parts[0].trajectory].answer
        return self._tokenizer.decode(parts[0].response_ids, skip_special_tokens=True)

    async def _outcome(self, group: SampleGroup, parts: Sequence[Sample], text: str) -> Outcome:
        """Score an episode, unless it is known what it is worth."""
        if not group.episodes:
            return await self._scorer.score(text, group.prompt)
        episode = group.episodes[parts[0].trajectory]
        if episode.score is not None:
            return Outcome("ok", {"score": episode.score, "info": {}})
        metadata = {
            **group.prompt.metadata,
            **{"turns": episode.turns, "ending": episode.ending, "numbers": episode.numbers},
        }
        return await self._scorer.score(text, replace(group.prompt, metadata=metadata))

    def _shown(self, group: SampleGroup, text: str) -> str:
        """Return the first response as a reader sees it."""
        return "".join(turn["text"] for turn in group.episodes[0].turns) if group.episodes else text

    def _reward(self, parts: Sequence[Sample], outcome: Outcome, validation: bool) -> None:
        """Fill in the reward of an episode; one that could not be scored scores 0."""
        section = self.cfg.reward
        score = outcome.value["score"] if outcome.status == "ok" else 0.0
        info = {"score": score, "outcome": outcome.status}
        if outcome.status == "ok":
            info |= outcome.value["info"]
        reward = score
        if not validation:
            bounds = section.reward_min_val, section.reward_max_val
            reward = scaled(score, section.reward_scale, *bounds)
            algorithm = self.cfg.algorithm
            if algorithm is not None and algorithm.overlong_buffer_length:
                info["overlong"] = penalty = self._penalty(parts)
                reward += penalty
        for sample in parts:
            sample.reward, sample.reward_info = reward, info

    def _penalty(self, parts: Sequence[Sample]) -> float:
        algorithm = self.cfg.algorithm
        limit = algorithm.sampling_params.max_new_tokens
        if limit is None:
            limit = self.cfg.runner.seq_length - len(parts[0].prompt_ids)
        return overlong_penalty(
            sum(sample.written for sample in parts),
            limit,
            algorithm.overlong_buffer_length,
            algorithm.overlong_penalty,
        )


async def _take(channel: Channel) -> SampleGroup | None:
    while True:
        try:
            return await channel.get(async_op=True, timeout=UNTIL_CLOSED)
        except ChannelClosed:
            return None
        except ItemLost:
            # Of a rollout worker that died: the runner ends, or asks for it again.
            continue
