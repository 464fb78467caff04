"""The learner's side of train/rollout agreement: recompute what the rollout computed."""

from __future__ import annotations

import torch

from rlinf.algorithms.agreement import logprob_gap, value_gap
from rlinf.algorithms.metrics import Metric, MetricSum, merge_metrics, reduce_metrics
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.workers.actor.sample_sequences import SampleSequences
from rlinf.workers.agreement import sampled_steps


def embodied_agreement(
    engine: TrainEngine,
    batch: EmbodiedBatch,
    version: int,
    size: int,
    *,
    values: bool,
    reference: bool = False,
) -> dict[str, float]:
    """Recompute the sampled steps of a rollout; all ranks call it, before the first update on it.

    Samples of other versions of the weights are not compared: the learner no longer has, or never
    had, what made them. A policy that remembers goes through whole sequences, as when it learns.

    Args:
        engine: the policy.
        batch: this rank's share of the rollout.
        version: of the policy's weights.
        size: samples per forward pass.
        values: compare values, too.
        reference: the frozen copy of the engine has acted.

    Returns:
        Over all ranks: `compared`, the part of the sampled rows that are of this version; if there
        are any, `logprob_max`, `logprob_mean` and, on request, `value_max` and `value_mean`.
    """
    if (batch.versions < 0).any():
        raise RuntimeError(
            "the rollout acted before weights of the actor had reached it: call "
            "update_rollout_weights first"
        )
    sequences = SampleSequences.of(batch, engine)
    steps = sampled_steps(sequences.steps)
    sampled = torch.zeros(sequences.steps, dtype=torch.bool)
    sampled[steps] = True
    parts: list[dict[str, Metric]] = []
    for some in sequences.split(sequences.holding(steps), size):
        rows = sequences.samples(some)
        step, env = rows // sequences.envs, rows % sequences.envs
        inputs = sequences.inputs(batch, rows, engine.device)
        out = engine.infer(
            **sequences.arguments(inputs), compute_values=values, reference=reference
        )
        chosen = sampled[step]
        mask = chosen & (batch.versions[step, env] == version)
        part = logprob_gap(out["logprobs"], batch.prev_logprobs[step, env], mask)
        if values:
            part |= value_gap(out["values"], batch.prev_values[step, env], mask)
        part["compared"] = MetricSum.of(mask.double().sum().to(engine.device), float(chosen.sum()))
        parts.append(part)
    return reduce_metrics(merge_metrics(parts), engine.all_reduce, engine.all_reduce_max)


def compute_format(engine: TrainEngine) -> torch.dtype:
    """Return the number format in which the learner multiplies."""
    return engine.precision.autocast or engine.precision.params or torch.float32
