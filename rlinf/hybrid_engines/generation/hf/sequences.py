"""What waits to be read at once, and where the host collects new tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf.hybrid_engines.generation.requests import FinishReason, GenerationRequest
from rlinf.hybrid_engines.generation.responses import Response, responses_of


@dataclass
class Pack:
    """Responses that begin with the same tokens, which are read once for all of them."""

    prefix: list[int]
    responses: list[Response]

    def take(self, other: Pack, most: int) -> bool:
        """Take the responses of a pack that begins alike, unless there are more than `most` then.

        Returns:
            Whether it has taken them.
        """
        if len(self.responses) + len(other.responses) > most or self.prefix != other.prefix:
            return False
        self.responses += other.responses
        return True


def packs_of(
    request: GenerationRequest, limit: int, stops: tuple[int, ...], most: int
) -> Iterable[Pack]:
    """Cut a request into packs.

    Args:
        request: It has a seed.
        limit: Most tokens of a response.
        stops: Tokens that end one.
        most: Responses per pack.
    """
    prompt = list(request.prompt_ids)
    fresh: list[Response] = []
    for response in responses_of(request, limit, stops):
        if response.tokens:
            yield Pack([*prompt, *response.tokens], [response])
        else:
            fresh.append(response)
    for begin in range(0, len(fresh), most):
        yield Pack(prompt, fresh[begin : begin + most])


class Lanes:
    """New tokens of the responses that have a row, in arrays: one operation serves all of them.

    Args:
        count: Most responses at a time.
        length: Most new tokens of one.
    """

    def __init__(self, count: int, length: int):
        self.trash = count
        """A lane for rows that nobody reads."""
        self._owner: list[Response | None] = [None] * (count + 1)
        self._free = list(range(count))[::-1]
        self._tokens = np.zeros((count + 1, length), np.int32)
        self._logprobs = np.zeros((count + 1, length), np.float32)
        self._made = np.zeros(count + 1, np.int64)
        self._limits = np.full(count + 1, length + 1, np.int64)
        self._stops = np.full((count + 1, 1), -1, np.int64)

    def take(self, response: Response) -> None:
        """Give a response a lane."""
        lane = response.lane = self._free.pop()
        self._owner[lane] = response
        self._made[lane] = 0
        self._limits[lane] = response.limit - len(response.tokens)
        missing = len(response.stops) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[lane] = -1
        self._stops[lane, : len(response.stops)] = response.stops

    def append(
        self, lanes: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray
    ) -> list[tuple[Response, FinishReason]]:
        """Add one token to each lane.

        Args:
            lanes: `[B]`, no two alike but `trash`.
            tokens: `[B]` int64.
            logprobs: `[B]`.

        Returns:
            Who came to an end by it, and why.
        """
        places = self._made[lanes]
        self._tokens[lanes, places] = tokens
        self._logprobs[lanes, places] = logprobs
        self._made[lanes] = places + 1
        self._made[self.trash] = 0
        stopped = (self._stops[lanes] == tokens[:, None]).any(1)
        ended = stopped | (places + 1 >= self._limits[lanes])
        return [
            (self._owner[lanes[i]], "stop" if stopped[i] else "length")
            for i in np.nonzero(ended)[0]
            if lanes[i] != self.trash
        ]

    def owner(self, lane: int) -> Response | None:
        """Return the response that has a lane; None if nobody has."""
        return self._owner[lane]

    def last(self, response: Response, count: int) -> list[int]:
        """Return the last tokens of a response, those from before it got its lane included."""
        lane, made = response.lane, self.made(response)
        new = self._tokens[lane, max(0, made - count) : made].tolist()
        missing = count - len(new)
        return [*response.tokens[-missing:], *new] if missing > 0 else new

    def made(self, response: Response) -> int:
        """New tokens of a response."""
        return int(self._made[response.lane])

    def give_back(self, response: Response, version: int) -> None:
        """Move the new tokens to the response and free its lane."""
        lane, count = response.lane, self.made(response)
        response.tokens += self._tokens[lane, :count].tolist()
        response.logprobs += self._logprobs[lane, :count].tolist()
        response.versions += [version] * count
        self._owner[lane] = None
        self._free.append(lane)
        response.lane = -1


def batches(packs: Sequence[Pack], tokens: int, packed: bool) -> Iterable[list[Pack]]:
    """Cut packs into batches to be read at once.

    Args:
        packs: In any order.
        tokens: Most tokens of a batch, padding included; a longer pack is alone in its own.
        packed: Whether there is no padding; with it, equal lengths come together.
    """
    if not packed:
        packs = sorted(packs, key=lambda pack: len(pack.prefix))
    batch: list[Pack] = []
    size = 0
    for pack in packs:
        length = len(pack.prefix)
        # Padding that costs more than another call is not worth it.
        wasteful = not packed and batch and length > 2 * len(batch[0].prefix) + 16
        after = size + length if packed else length * (len(batch) + 1)
        if batch and (after > tokens or wasteful):
            yield batch
            batch, after = [], length
        batch.append(pack)
        size = after
    if batch:
        yield batch
