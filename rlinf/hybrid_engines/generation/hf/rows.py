"""What the device knows of each row: the token to read next, where it goes, how to draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlinf.hybrid_engines.generation.hf.model import DecoderModel
from rlinf.hybrid_engines.generation.hf.triton_model import TritonModel
from rlinf.hybrid_engines.generation.noise import sample_keys, uniform
from rlinf.hybrid_engines.generation.responses import Response
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
        self._whole = torch.zeros(5, slots, dtype=torch.int64, device=device)
        self._floats = torch.ones(2, slots, dtype=torch.float32, device=device)
        self.result = torch.zeros(slots, 2, dtype=torch.float64, device=device)
        """Tokens and log-probabilities of the latest step, one row each."""
        # On a CPU the host may write rows without the cost of an operation of torch.
        self._states = [self._whole, self._floats]
        self._on_host = device.type == "cpu"
        if self._on_host:
            self._states = [state.numpy() for state in self._states]

    def begin(self, responses: Sequence[Response], logits: Tensor, source: Tensor) -> Tensor:
        """Draw the first token of responses that got their rows.

        Args:
            responses: R of them.
            logits: `[P, V]` behind what was read for them.
            source: `[R]`, which of the P is whose.

        Returns:
            `[R, 2]` tokens and log-probabilities.
        """
        params = [response.request.params for response in responses]
        made = [len(response.tokens) for response in responses]
        lengths = [len(r.request.prompt_ids) + n for r, n in zip(responses, made, strict=True)]
        keys = sample_keys([p.seed for p in params], [r.sample_index for r in responses])
        whole = torch.from_numpy(np.array([made, lengths, made, keys, [p.top_k for p in params]]))
        floats = torch.tensor([[p.temperature for p in params], [p.top_p for p in params]])
        whole, floats = whole.to(self._device), floats.to(self._device)
        result = torch.empty(len(responses), 2, dtype=torch.float64, device=self._device)
        greedy, cuts = any(p.greedy for p in params), any(p.cuts for p in params)
        self._draw(logits[source], whole, floats, result, greedy, cuts)
        whole[_TOKEN] = result[:, 0].to(torch.int64)
        whole[_COUNTER] += 1
        rows = torch.tensor([r.row for r in responses], device=self._device)
        self._whole.index_copy_(1, rows, whole)
        self._floats.index_copy_(1, rows, floats)
        return result

    def advance(self, count: int, span: int, greedy: bool, cuts: bool) -> None:
        """Read the token of each of the first rows and draw the next one, into `result`.

        Args:
            count: Rows.
            span: More than the position of every row that counts.
            greedy: Whether any of them takes the likeliest token.
            cuts: Whether any has top-k or top-p.
        """
        whole, floats, result = self._whole[:, :count], self._floats[:, :count], self.result
        # Rows that nobody reads go on, too: they stay inside of the cache.
        whole[_POSITION].clamp_(max=span - 1)
        logits = self._model.decode(whole[_TOKEN], whole[_POSITION], span)
        self._draw(logits, whole, floats, result, greedy, cuts)
        whole[_TOKEN].copy_(result[:count, 0])
        whole[_POSITION : _COUNTER + 1].add_(1)

    def park(self, rows: Sequence[int]) -> None:
        """Send rows that nobody reads back to the start, where they cost least."""
        index = rows if self._on_host else torch.tensor(rows, device=self._device)
        self._states[0][_POSITION, index] = 0

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy rows over other rows."""
        if not self._on_host:
            source = torch.tensor(source, device=self._device)
            target = torch.tensor(target, device=self._device)
        for state in self._states:
            state[:, target] = state[:, source]

    def _draw(
        self,
        logits: Tensor,
        whole: Tensor,
        floats: Tensor,
        result: Tensor,
        greedy: bool,
        cuts: bool,
    ) -> None:
        count, uniforms = logits.shape[0], uniform(whole[_KEY], whole[_COUNTER])
        if isinstance(self._model, TritonModel) and not cuts and not greedy:
            self._model.draw(logits, floats[_TEMPERATURE], uniforms, result)
            return
        result[:count, 0], result[:count, 1] = sample(
            logits,
            floats[_TEMPERATURE],
            uniforms,
            whole[_TOP_K] if cuts else None,
            floats[_TOP_P] if cuts else None,
            greedy,
        )
