"""Prompts and responses as flat tensors: sequences end to end, without padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlinf.data.reasoning import SampleGroup

GIVEN = ("old_logprobs", "ref_logprobs", "values")
"""What groups of workers of their own may have computed for each response token."""


@dataclass(frozen=True)
class TokenBatch:
    """n sequences of N tokens, R of which are of responses.

    Attributes:
        tokens: prompts and responses, each response after its prompt, int64 `[N]`.
        prompts: tokens of each prompt, int64 `[n]`.
        responses: tokens of each response, int64 `[n]`.
        logprobs: of response tokens, by the engine that sampled them, float32 `[R]`; NaN where it
            did not say.
        versions: of the weights that sampled them, int64 `[R]`.
        rewards: of each response, float32 `[n]`.
        indices: number of each one's prompt in the run, int64 `[n]`; groups lie side by side.
        numbers: number of each response in its group, int64 `[n]`.
        truncated: whether a response was cut at the length limit, bool `[n]`.
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
    rewards: Tensor
    indices: Tensor
    numbers: Tensor
    truncated: Tensor
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
    def of(cls, groups: Sequence[SampleGroup], group_size: int | None = None) -> TokenBatch:
        """Joins groups of samples that have their rewards.

        Args:
            groups: what to join, in this order.
            group_size: samples that each must have; None allows any number.

        Raises:
            ValueError: a sample has no reward, was aborted, has no prompt, or has not one version
                per token and one log-probability, or none at all; or a group is of another size.
        """
        for group in groups:
            if group_size is not None and len(group.samples) != group_size:
                raise ValueError(
                    f"the group of prompt {group.prompt.index} has {len(group.samples)} samples, "
                    f"but algorithm.group_size is {group_size}"
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
            rewards=torch.tensor([s.reward for s in samples], dtype=torch.float32),
            indices=torch.tensor(
                [group.prompt.index for group in groups for _ in group.samples], dtype=torch.int64
            ),
            numbers=torch.tensor([s.sample_index for s in samples], dtype=torch.int64),
            truncated=torch.tensor([s.finish_reason == "length" for s in samples]).bool(),
            **{name: _given(samples, name) for name in GIVEN},
        )

    @classmethod
    def of_examples(cls, examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> TokenBatch:
        """Joins prompts with the responses that are to be learnt, which nobody sampled.

        Args:
            examples: token ids of prompt and response of each.

        Raises:
            ValueError: a prompt is empty.
        """
        for number, (prompt, _) in enumerate(examples):
            if not len(prompt):
                raise ValueError(
                    f"example {number} has an empty prompt: the first token of a response needs "
                    "one before it, at least a begin-of-text token"
                )
        tokens = [token for prompt, response in examples for token in (*prompt, *response)]
        responses = torch.tensor([len(response) for _, response in examples], dtype=torch.int64)
        count, total = len(examples), int(responses.sum())
        return cls(
            tokens=torch.tensor(tokens, dtype=torch.int64),
            prompts=torch.tensor([len(prompt) for prompt, _ in examples], dtype=torch.int64),
            responses=responses,
            logprobs=torch.zeros(total),
            versions=torch.zeros(total, dtype=torch.int64),
            rewards=torch.zeros(count),
            indices=torch.arange(count),
            numbers=torch.zeros(count, dtype=torch.int64),
            truncated=torch.zeros(count, dtype=torch.bool),
        )

    def select(self, rows: Tensor) -> TokenBatch:
        """Returns some of the sequences, in the order of `rows`, int64 `[k]`."""
        of_tokens = ragged_index(self.lengths, rows)
        of_responses = ragged_index(self.responses, rows)
        return TokenBatch(
            tokens=self.tokens[of_tokens],
            prompts=self.prompts[rows],
            responses=self.responses[rows],
            logprobs=self.logprobs[of_responses],
            versions=self.versions[of_responses],
            rewards=self.rewards[rows],
            indices=self.indices[rows],
            numbers=self.numbers[rows],
            truncated=self.truncated[rows],
            **{
                name: None if flat is None else flat[of_responses]
                for name, flat in ((name, getattr(self, name)) for name in GIVEN)
            },
        )

    @classmethod
    def join(cls, parts: Sequence[TokenBatch]) -> TokenBatch:
        """Puts batches end to end.

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
        """Number of the sequence of each response token, int64 `[R]`."""
        return torch.repeat_interleave(torch.arange(self.num_sequences), self.responses)


def ragged_index(lengths: Tensor, rows: Tensor) -> Tensor:
    """Places of the entries of some rows in the flat tensor of all rows.

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
    """Lays flat entries out as rows with zeros behind them.

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
    """Marks the entries of `pad_ragged` that are not padding, bool `[n, L]`."""
    width = max(1, int(lengths.max())) if len(lengths) else 1
    return torch.arange(width) < lengths.unsqueeze(1)


def _check(sample: object, index: int) -> None:
    """Says what is wrong with a sample to train on."""
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
    for name, values in (("logprobs", _logprobs(sample)), ("versions", sample.versions)):
        if len(values) != count:
            raise ValueError(
                f"{what} has {count} tokens, but {len(values)} {name}; an engine must give one for "
                "each token"
            )


def _given(samples: Sequence[object], name: str) -> Tensor | None:
    """What somebody has computed for each response token, `[R]`; None if nobody has."""
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


def _logprobs(sample: object) -> Sequence[float]:
    return sample.logprobs or [math.nan] * len(sample.response_ids)
