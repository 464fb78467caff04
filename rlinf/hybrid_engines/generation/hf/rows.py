"""What the device knows of each row: the token to read next, where it goes, how to draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlinf.hybrid_engines.generation.hf.model import DecoderModel
from rlinf.hybrid_engines.generation.hf.native import RowPointers
from rlinf.hybrid_engines.generation.hf.native_model import NativeModel
from rlinf.hybrid_engines.generation.hf.sequences import Response
from rlinf.hybrid_engines.generation.noise import uniform
from rlinf.hybrid_engines.generation.sampling import sample

_TOKEN, _POSITION, _COUNTER, _KEY, _TOP_K = range(5)
_TEMPERATURE, _TOP_P = range(2)


class Rows:
    """State of all rows, advanced on the device so that no step waits for the host.

    Args:
        slots: Rows.
        model: Decodes; its `capacity` limits positions.
        device: Of the model.
    """

    def __init__(self, slots: int, model: DecoderModel, device: torch.device):
        self._model = model
        self._device = device
        self._native = model if isinstance(model, NativeModel) else None
        self._whole = torch.zeros(5, slots, dtype=torch.int64, device=device)
        self._floats = torch.ones(2, slots, dtype=torch.float32, device=device)
        self.result = torch.zeros(2, slots, dtype=torch.float64, device=device)
        """Tokens and log-probabilities of the latest step."""
        self._pointers = RowPointers(
            tokens=self._whole[_TOKEN].data_ptr(),
            positions=self._whole[_POSITION].data_ptr(),
            counters=self._whole[_COUNTER].data_ptr(),
            keys=self._whole[_KEY].data_ptr(),
            temperatures=self._floats[_TEMPERATURE].data_ptr(),
            result=self.result.data_ptr(),
            stride=slots,
        )

    def begin(self, responses: Sequence[Response], logits: Tensor, source: Tensor) -> Tensor:
        """Draws the first token of responses that got their rows.

        Args:
            responses: R of them.
            logits: `[P, V]` behind what was read for them.
            source: `[R]`, which of the P is whose.

        Returns:
            `[2, R]` tokens and log-probabilities.
        """
        whole = torch.tensor(
            [
                [
                    0,
                    len(r.request.prompt_ids) + len(r.tokens),
                    len(r.tokens),
                    r.key,
                    r.request.params.top_k,
                ]
                for r in responses
            ]
        )
        params = [(r.request.params.temperature, r.request.params.top_p) for r in responses]
        whole = whole.t().contiguous().to(self._device)
        floats = torch.tensor(params, dtype=torch.float32).t().contiguous().to(self._device)
        result = torch.empty(2, len(responses), dtype=torch.float64, device=self._device)
        greedy = any(r.request.params.greedy for r in responses)
        cuts = any(r.request.params.cuts for r in responses)
        self._draw(logits[source], whole, floats, result, greedy, cuts)
        whole[_TOKEN] = result[0].to(torch.int64)
        whole[_COUNTER] += 1
        rows = torch.tensor([r.row for r in responses], device=self._device)
        self._whole.index_copy_(1, rows, whole)
        self._floats.index_copy_(1, rows, floats)
        return result

    def advance(self, count: int, span: int, greedy: bool, cuts: bool) -> None:
        """Reads the token of each of the first rows and draws the next one, into `result`.

        Args:
            count: Rows.
            span: More than the position of every row that counts.
            greedy: Whether any of them takes the likeliest token.
            cuts: Whether any has top-k or top-p.
        """
        if self._native is not None and not cuts:
            self._native.step(self._pointers, count)
            return
        whole, floats, result = self._whole[:, :count], self._floats[:, :count], self.result
        # Rows that nobody reads go on, too: they stay inside of the cache.
        whole[_POSITION].clamp_(max=span - 1)
        logits = self._model.decode(whole[_TOKEN], whole[_POSITION], span)
        self._draw(logits, whole, floats, result, greedy, cuts)
        whole[_TOKEN].copy_(result[0, :count])
        whole[_POSITION : _COUNTER + 1].add_(1)

    def park(self, rows: Sequence[int]) -> None:
        """Sends rows that nobody reads back to the start, where they cost least."""
        self._whole[_POSITION].index_fill_(0, torch.tensor(rows, device=self._device), 0)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copies rows over other rows."""
        src = torch.tensor(source, device=self._device)
        dst = torch.tensor(target, device=self._device)
        for state in (self._whole, self._floats):
            state.index_copy_(1, dst, state.index_select(1, src))

    def _draw(
        self,
        logits: Tensor,
        whole: Tensor,
        floats: Tensor,
        result: Tensor,
        greedy: bool,
        cuts: bool,
    ) -> None:
        if self._native is not None and not cuts:
            kernels = self._native.kernels
            kernels.draw(logits, floats[_TEMPERATURE], whole[_KEY], whole[_COUNTER], result)
            return
        count = logits.shape[0]
        result[0, :count], result[1, :count] = sample(
            logits,
            floats[_TEMPERATURE],
            uniform(whole[_KEY], whole[_COUNTER]),
            whole[_TOP_K] if cuts else None,
            floats[_TOP_P] if cuts else None,
            greedy,
        )
