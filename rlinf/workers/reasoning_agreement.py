"""What an engine read and wrote, as evidence for when it and the learner disagree.

As `rlinf.workers.agreement` does for rollouts of envs, a rollout worker notes checksums of each
response when it is complete; the learner takes the same of what has reached it.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlinf.data.token_batch import TokenBatch
from rlinf.workers.agreement import Place

if TYPE_CHECKING:
    from rlinf.data.reasoning import SampleGroup


class TooFarApart(RuntimeError):
    """An update was not made: engine and learner have other log-probabilities of the same tokens.

    Attributes:
        too_far: what is past the tolerance, in words.
    """

    def __init__(self, too_far: Sequence[str]):
        super().__init__(f"the update was not made: {'; '.join(too_far)}")
        self.too_far = list(too_far)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.too_far,)


def name_of_response(place: Place) -> str:
    """Say in words which response it is."""
    prompt, number = place
    return f"response {number} to prompt {prompt}"


class SeenResponses:
    """Checksums of the responses of the latest steps, before anybody else has them.

    Args:
        steps: how many of them are kept.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._seen: dict[Hashable, dict[Place, dict[str, int]]] = {}

    def note(self, group: SampleGroup) -> None:
        """Keep the checksums of a group that is complete."""
        of_step = self._seen.setdefault(group.key, {})
        while len(self._seen) > self._steps:
            del self._seen[next(iter(self._seen))]
        for sample in group.samples:
            sums = {
                "prompt": zlib.crc32(array("q", sample.prompt_ids)),
                "response": zlib.crc32(array("q", sample.response_ids)),
            }
            if sample.logprobs:
                sums["logprobs"] = zlib.crc32(array("f", sample.logprobs))
            of_step[sample.prompt_index, sample.sample_index] = sums

    def table(self) -> dict[Place, dict[str, int]]:
        """Return the checksums by place and name."""
        return {place: sums for step in self._seen.values() for place, sums in step.items()}


def received_responses(batch: TokenBatch) -> dict[Place, dict[str, int]]:
    """Return the same checksums of what a learner has received."""
    table = {}
    lengths, responses = batch.lengths.tolist(), batch.responses.tolist()
    tokens, logprobs = batch.tokens.split(lengths), batch.logprobs.split(responses)
    for row, prompt in enumerate(batch.prompts.tolist()):
        place = int(batch.indices[row]), int(batch.numbers[row])
        table[place] = {
            "prompt": _sum(tokens[row][:prompt]),
            "response": _sum(tokens[row][prompt:]),
            "logprobs": _sum(logprobs[row]),
        }
    return table


def _sum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.numpy().tobytes())
