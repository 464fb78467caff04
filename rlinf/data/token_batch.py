"""Prompts and responses as flat tensors: sequences end to end, without padding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias, Union

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlinf.data.reasoning import SampleGroup

GIVEN = ("old_logprobs", "ref_logprobs", "values")
"""What groups of workers of their own may have computed for each response token."""

OF_EPISODES = ("turns", "agents", "turn_rewards")
"""What is known of each response token from its place in an episode of several turns."""

OF_RESPONSE_TOKENS = ("logprobs", "versions", "loss_mask", *OF_EPISODES, *GIVEN)
"""Fields with one entry per response token, `[R]`."""

OF_SEQUENCES = (
    *("prompts", "responses", "rewards", "indices", "numbers", "truncated"),
    *("trajectories", "left_out"),
)
"""Fields with one entry per sequence, `[n]`."""


Example: TypeAlias = Union[  # noqa: UP007
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int], Sequence[bool]]
]
"""Token ids of a prompt and of a response to learn, and perhaps which of its tokens are learnt."""


@dataclass(frozen=True)
class TokenBatch:
    """n sequences of N tokens, R of which are of responses.

    Attributes:
        tokens: prompts and responses, each response after its prompt, int64 `[N]`.
        prompts: tokens of each prompt, int64 `[n]`.
        responses: tokens of each response, int64 `[n]`.
        logprobs: of response tokens, by the engine that sampled them, float32 `[R]`; NaN where it
            did not say, 0 where the policy did not write.
        versions: of the weights that sampled them, int64 `[R]`.
        loss_mask: whether the policy wrote each response token, bool `[R]`; what a tool wrote is
            read by the model and is in no loss.
        rewards: of each response, float32 `[n]`.
        indices: number of each one's prompt in the run, int64 `[n]`; sequences of one prompt are a
            group.
        numbers: number of each sequence in its group, int64 `[n]`.
        truncated: whether a response was cut at the length limit, bool `[n]`.
        trajectories: number of each one's episode in its group, int64 `[n]`; the sequences of an
            episode stand together, and have one reward.
        left_out: whether the episode counts neither in the loss nor in the baseline of its group,
            bool `[n]`.
        turns: number of each response token's turn in its episode, int64 `[R]`.
        agents: number of the agent of that turn, int64 `[R]`.
        turn_rewards: what turns were given beside the reward of their episode, at the last token
            that each wrote, float32 `[R]`; 0 elsewhere.
        old_logprobs: of response tokens, by the trainer before the update, float32 `[R]`; None if
            nobody has computed them yet.
        ref_logprobs: of response tokens, by the reference policy, likewise.
        values: of the state before each response token, likewise.
    """

    tokens: Tensor
    prompts: Tensor
    responses: Tensor
    logprobs: Tensor
    versions: Tensor
    loss_mask: Tensor
    rewards: Tensor
    indices: Tensor
    numbers: Tensor
    truncated: Tensor
    trajectories: Tensor
    left_out: Tensor
    turns: Tensor
    agents: Tensor
    turn_rewards: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None

    @property
    def num_sequences(self) -> int:
        """Number of sequences, n."""
        return len(self.prompts)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, int64 `[n]`."""
        return self.prompts + self.responses

    @classmethod
    def of(cls, groups: Sequence[SampleGroup]) -> TokenBatch:
        """Join groups of samples that have their rewards.

        Args:
            groups: what to join, in this order; each has one sample or more.

        Raises:
            ValueError: a group is empty; or a sample has no reward, was aborted, has no prompt, or
                has not one version per token and one log-probability, or none at all.
        """
        for group in groups:
            if not group.samples:
                raise ValueError(
                    f"the group of prompt {group.prompt.index} has no samples; drop such a group "
                    "and ask for another one"
                )
            for sample in group.samples:
                _check(sample, group.prompt.index)
        samples = [sample for group in groups for sample in group.samples]
        tokens: list[int] = []
        for sample in samples:
            tokens += sample.prompt_ids
            tokens += sample.response_ids
        return cls(
            tokens=torch.tensor(tokens, dtype=torch.int64),
            prompts=torch.tensor([len(s.prompt_ids) for s in samples], dtype=torch.int64),
            responses=torch.tensor([len(s.response_ids) for s in samples], dtype=torch.int64),
            logprobs=torch.tensor([x for s in samples for x in _logprobs(s)], dtype=torch.float32),
            versions=torch.tensor([v for s in samples for v in s.versions], dtype=torch.int64),
            loss_mask=torch.tensor([m for s in samples for m in _loss_mask(s)], dtype=torch.bool),
            rewards=torch.tensor([s.reward for s in samples], dtype=torch.float32),
            indices=torch.tensor(
                [group.prompt.index for group in groups for _ in group.samples], dtype=torch.int64
            ),
            numbers=torch.tensor([s.sample_index for s in samples], dtype=torch.int64),
            truncated=torch.tensor([s.finish_reason == "length" for s in samples]).bool(),
            trajectories=torch.tensor(
                [s.sample_index if s.trajectory is None else s.trajectory for s in samples],
                dtype=torch.int64,
            ),
            left_out=torch.tensor([s.left_out for s in samples]).bool(),
            turns=torch.tensor(_of_tokens(samples, "turns"), dtype=torch.int64),
            agents=torch.tensor(_of_tokens(samples, "agents"), dtype=torch.int64),
            turn_rewards=torch.tensor(_of_tokens(samples, "turn_rewards"), dtype=torch.float32),
            **{name: _given(samples, name) for name in GIVEN},
        )

    @classmethod
    def of_examples(cls, examples: Sequence[Example]) -> TokenBatch:
        """Join prompts with the responses that are to be learnt, which nobody sampled.

        Args:
            examples: token ids of prompt and response of each, and which tokens of the response
                are to be learnt, all of them if it does not say.

        Raises:
            ValueError: a prompt is empty, or an example does not say it of each token.
        """
        for number, (prompt, response, *mask) in enumerate(examples):
            if mask and len(mask[0]) != len(response):
                raise ValueError(
                    f"example {number} has {len(response)} response tokens, but {len(mask[0])} "
                    "entries that say which are learnt; give one for each token"
                )
            if not len(prompt):
                raise ValueError(
                    f"example {number} has an empty prompt: the first token of a response needs "
                    "one before it, at least a begin-of-text token"
                )
        tokens = [token for example in examples for token in (*example[0], *example[1])]
        responses = torch.tensor([len(example[1]) for example in examples], dtype=torch.int64)
        count, total = len(examples), int(responses.sum())
        learnt = [m for _, ids, *mask in examples for m in (mask[0] if mask else [True] * len(ids))]
        return cls(
            tokens=torch.tensor(tokens, dtype=torch.int64),
            prompts=torch.tensor([len(example[0]) for example in examples], dtype=torch.int64),
            responses=responses,
            logprobs=torch.zeros(total),
            versions=torch.zeros(total, dtype=torch.int64),
            loss_mask=torch.tensor(learnt, dtype=torch.bool),
            rewards=torch.zeros(count),
            indices=torch.arange(count),
            numbers=torch.zeros(count, dtype=torch.int64),
            truncated=torch.zeros(count, dtype=torch.bool),
            trajectories=torch.arange(count),
            left_out=torch.zeros(count, dtype=torch.bool),
            turns=torch.zeros(total, dtype=torch.int64),
            agents=torch.zeros(total, dtype=torch.int64),
            turn_rewards=torch.zeros(total),
        )

    def select(self, rows: Tensor) -> TokenBatch:
        """Return some of the sequences, in the order of `rows`, int64 `[k]`."""
        of_responses = ragged_index(self.responses, rows)
        parts = {name: getattr(self, name)[rows] for name in OF_SEQUENCES}
        for name in OF_RESPONSE_TOKENS:
            flat = getattr(self, name)
            parts[name] = None if flat is None else flat[of_responses]
        return TokenBatch(tokens=self.tokens[ragged_index(self.lengths, rows)], **parts)

    @classmethod
    def join(cls, parts: Sequence[TokenBatch]) -> TokenBatch:
        """Put batches end to end.

        Raises:
            ValueError: something is known of the tokens of some batches only.
        """
        joined = {}
        for name in (field.name for field in fields(cls)):
            known = [part for part in parts if getattr(part, name) is not None]
            # A batch without a response token need not know anything of them.
            if known and sum(len(p.logprobs) for p in known) < sum(len(p.logprobs) for p in parts):
                raise ValueError(f"only some of the batches to join have {name}")
            joined[name] = torch.cat([getattr(p, name) for p in known]) if known else None
        return cls(**joined)

    def sequence_ids(self) -> Tensor:
        """Return the number of the sequence of each response token, int64 `[R]`."""
        return torch.repeat_interleave(torch.arange(self.num_sequences), self.responses)

    def count(self, flags: Tensor) -> Tensor:
        """Count the response tokens of each sequence that are marked, int64 `[n]`.

        Args:
            flags: bool `[R]`.
        """
        counts = torch.zeros(self.num_sequences, dtype=torch.int64)
        return counts.index_add(0, self.sequence_ids(), flags.long())


def ragged_index(lengths: Tensor, rows: Tensor) -> Tensor:
    """Return the places of the entries of some rows in the flat tensor of all rows.

    Args:
        lengths: entries of each row, int64 `[n]`.
        rows: which ones, int64 `[k]`.

    Returns:
        Int64, the places of the entries of `rows[0]`, then of `rows[1]`, and so on.
    """
    starts, counts = (lengths.cumsum(0) - lengths)[rows], lengths[rows]
    before = counts.cumsum(0) - counts
    offsets = torch.repeat_interleave(starts - before, counts)
    return offsets + torch.arange(len(offsets))


def pad_ragged(flat: Tensor, lengths: Tensor) -> Tensor:
    """Lay flat entries out as rows with zeros behind them.

    Args:
        flat: entries of all rows, end to end, `[sum(lengths)]`.
        lengths: entries of each row, int64 `[n]`.

    Returns:
        `[n, L]`, where L is the greatest length, at least 1.
    """
    valid = valid_entries(lengths)
    out = flat.new_zeros(valid.shape)
    out[valid] = flat
    return out


def valid_entries(lengths: Tensor) -> Tensor:
    """Mark the entries of `pad_ragged` that are not padding, bool `[n, L]`."""
    width = max(1, int(lengths.max())) if len(lengths) else 1
    return torch.arange(width) < lengths.unsqueeze(1)


def _check(sample: object, index: int) -> None:
    """Say what is wrong with a sample to train on."""
    what = f"sample {sample.sample_index} of prompt {index}"
    if sample.finish_reason == "abort":
        raise ValueError(
            f"{what} was aborted: only samples that have ended can be trained on; let the engine "
            "go on with it first"
        )
    if sample.reward is None:
        raise ValueError(f"{what} has no reward: send groups through a reward worker first")
    if not sample.prompt_ids:
        raise ValueError(
            f"{what} has an empty prompt: the first token of a response needs one before it, at "
            "least a begin-of-text token"
        )
    count = len(sample.response_ids)
    for name, values in (
        ("logprobs", sample.logprobs or range(count)),
        ("versions", sample.versions),
        ("entries in loss_mask", _loss_mask(sample)),
        *((f"entries in {name}", getattr(sample, name) or range(count)) for name in OF_EPISODES),
    ):
        if len(values) != count:
            raise ValueError(
                f"{what} has {count} response tokens, but {len(values)} {name}; give one for each "
                "token"
            )


def _given(samples: Sequence[object], name: str) -> Tensor | None:
    """Return what somebody has computed for each response token, `[R]`; None if nobody has."""
    missing = [sample for sample in samples if getattr(sample, name) is None]
    if len(missing) == len(samples):
        return None
    for sample in samples:
        values = getattr(sample, name)
        if values is None or len(values) != len(sample.response_ids):
            count = "none" if values is None else len(values)
            raise ValueError(
                f"sample {sample.sample_index} of prompt {sample.prompt_index} has {count} {name} "
                f"for {len(sample.response_ids)} tokens; whoever adds them must do so for each "
                "token of each sample"
            )
    return torch.tensor([x for s in samples for x in getattr(s, name)], dtype=torch.float32)


def _logprobs(sample: object) -> Iterator[float]:
    """What the engine said of each token; 0 for those that the policy did not write."""
    given = sample.logprobs or [math.nan] * len(sample.response_ids)
    return (x if own else 0.0 for x, own in zip(given, _loss_mask(sample), strict=True))


def _of_tokens(samples: Sequence[object], name: str) -> list[float]:
    """Return what is known of each response token; 0 where a sample does not say."""
    return [x for s in samples for x in getattr(s, name) or [0] * len(s.response_ids)]


def _loss_mask(sample: object) -> Sequence[bool]:
    return [True] * len(sample.response_ids) if sample.loss_mask is None else sample.loss_mask
