"""Records what a policy does in one stage of a rollout, for the learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.data.embodied import FinalObservations, PolicyTrajectory

_ROWS = 16384
"""Steps of single envs that are valued at a time, so that activations need little memory."""

Inputs = dict[str, Tensor]


class TrajectoryRecorder:
    """One stage of a rollout while it grows.

    Args:
        value: returns values `[n, U]` of forward inputs, `[n, ...]` each; for results without
            `prev_values`.
    """

    def __init__(self, value: Callable[[Inputs], Tensor]) -> None:
        self._value = value
        self._values: list[Tensor] = []
        self._valued = 0
        self._versions: list[int] = []
        self._results: list[Mapping[str, Any]] = []
        self._final_values: list[Tensor | None] = []
        self._not_finite: list[Tensor | None] = []
        self._ended: list[tuple[int, Tensor, dict[str, Tensor]]] = []

    def add_end(
        self,
        values: Tensor | None,
        not_finite: Tensor | None,
        ended: tuple[Tensor, dict[str, Tensor]] | None = None,
    ) -> None:
        """Add what the observations say of the step that led to them.

        Args:
            values: V of the observations in which episodes ended, `[B, U]`; None if none did.
            not_finite: envs whose observations are not finite, bool `[B]`; None if none is.
            ended: rows `[m]` of episodes that ended, of which there may be none, and the
                observations in which they did, on the host; None if nobody needs them.
        """
        self._not_finite.append(not_finite)
        if self._results:
            self._final_values.append(values)
            if ended is not None:
                self._ended.append((len(self._results) - 1, *ended))

    def add_step(self, result: Mapping[str, Any], version: int) -> None:
        """Add what the policy did.

        Args:
            result: see `BasePolicy.predict_action_batch`.
            version: of the weights that acted.
        """
        self._results.append(result)
        self._versions.append(version)

    def value_steps(self) -> None:
        """Compute the values of the steps that have none, with the present weights."""
        if len(self._results) > self._valued:
            self._add_values(self._inputs(self._valued))

    def _inputs(self, begin: int = 0) -> Inputs:
        """Return the forward inputs of the steps from one on, `[t, B, ...]` each."""
        inputs = [result["forward_inputs"] for result in self._results[begin:]]
        return {key: stack_steps([own[key] for own in inputs]) for key in inputs[0]}

    def _add_values(self, inputs: Inputs) -> None:
        """Add the values `[t, B, U]` of the last t steps."""
        results = self._results[self._valued :]
        self._valued = len(self._results)
        if "prev_values" in results[0]:
            self._values.append(torch.stack([result["prev_values"] for result in results]))
            return
        envs = inputs["action"].shape[1]
        block = max(1, _ROWS // envs)
        for begin in range(0, len(results), block):
            rows = {key: own[begin : begin + block].flatten(0, 1) for key, own in inputs.items()}
            self._values.append(self._value(rows).unflatten(0, (-1, envs)))

    def finish(self, last_values: Tensor) -> PolicyTrajectory:
        """Return the whole stage, on the host; `add_end` has been told of the last observations.

        Args:
            last_values: V of the last observations, `[B, U]`.
        """
        inputs = self._inputs()
        if len(self._results) > self._valued:
            self._add_values({key: own[self._valued :] for key, own in inputs.items()})
        values = torch.cat([*self._values, last_values[None]]).cpu()
        empty = torch.zeros_like(values[0])
        logprobs = self._logprobs(inputs).cpu()
        steps, envs = logprobs.shape[:2]
        return PolicyTrajectory(
            forward_inputs={key: own.cpu() for key, own in inputs.items()},
            prev_logprobs=logprobs,
            prev_values=values,
            bootstrap_values=torch.stack([empty if v is None else v for v in self._final_values]),
            versions=torch.tensor(self._versions)[:, None].repeat(1, envs),
            finite=self._finite(steps, envs),
            final=self._final() if self._ended else None,
        )

    def _logprobs(self, inputs: Inputs) -> Tensor:
        """Return the log-probabilities of what all steps did, `[T, B, C*A]`."""
        if "prev_logprobs" in self._results[0]:
            return torch.stack([result["prev_logprobs"] for result in self._results])
        steps = [result["distribution"] for result in self._results]
        return type(steps[0]).stack(steps).log_prob(inputs["action"])

    def _finite(self, steps: int, envs: int) -> Tensor:
        """Return `[T, B]`: steps whose observations, before and after, are finite."""
        finite = torch.ones(steps, envs, dtype=torch.bool)
        for step, bad in enumerate(self._not_finite):
            if bad is not None:
                finite[max(0, step - 1) : step + 1, bad] = False
        return finite

    def _final(self) -> FinalObservations:
        """Return the observations in which episodes ended."""
        steps, rows, obs = zip(*self._ended, strict=True)
        return FinalObservations(
            torch.tensor(steps).repeat_interleave(torch.tensor([len(own) for own in rows])),
            torch.cat(rows),
            {key: torch.cat([part[key] for part in obs]) for key in obs[0]},
        )


def stack_steps(steps: Sequence[Tensor]) -> Tensor:
    """Return tensors of T steps, `[...]` each, as one, `[T, ...]`.

    Nothing is copied if they follow each other in one tensor at equal distances, as observations do
    for which an env has reserved memory; nobody writes into these any more.

    Args:
        steps: of one shape.
    """
    first = steps[0]
    size, begin = first.numel(), first.storage_offset()
    distance = steps[1].storage_offset() - begin if len(steps) > 1 else 0
    places = [begin + number * distance for number in range(len(steps))]
    memory = first.untyped_storage().data_ptr()
    if distance < max(1, size) or any(
        step.untyped_storage().data_ptr() != memory
        or step.storage_offset() != place
        or step.shape != first.shape
        or not step.is_contiguous()
        for step, place in zip(steps, places, strict=True)
    ):
        return torch.stack(steps)
    return first.as_strided((len(steps), *first.shape), (distance, *first.stride()))
