"""How many samples a step makes and how they are cut into updates, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf.config.acting import resolve_acting
from rlinf.config.task_types import LANGUAGE
from rlinf.config.tracked import untracked


@dataclass(frozen=True)
class EmbodiedBatch:
    """The numbers of one embodied step.

    Attributes:
        envs: Environments over all workers.
        group: Environments that share a reset state.
        steps: Env steps of a rollout; None when only the env knows.
        chunk: Actions predicted at a time.
        epochs: Rollouts per step.
        stages: Pipeline stages.
        global_batch: Samples per optimiser step; None when the env decides.
        micro_batch: Samples per pass of a rank; None is its whole share.
        update_epochs: Passes over the samples.
    """

    envs: int
    group: int
    steps: int | None
    chunk: int
    epochs: int
    stages: int
    global_batch: int | None
    micro_batch: int | None
    update_epochs: int

    @property
    def samples(self) -> int | None:
        """Samples of one step, one per env and chunk."""
        if self.steps is None:
            return None
        return self.envs * (self.steps // self.chunk) * self.epochs

    @property
    def samples_text(self) -> str:
        """The product that gives `samples`, as text."""
        if self.chunk == 1:
            steps = _count(self.steps, "step")
        else:
            steps = f"{self.steps // self.chunk} chunks of {_count(self.chunk, 'step')}"
        parts = [_count(self.envs, "env"), steps, _count(self.epochs, "epoch")]
        return f"{' × '.join(parts)} = {self.samples} samples"


def embodied_batch(cfg: Any) -> EmbodiedBatch:
    """Collect the numbers of an embodied step from a checked config."""
    train = cfg.env.train
    return EmbodiedBatch(
        envs=train.total_num_envs,
        group=train.group_size or cfg.algorithm.group_size,
        steps=train.max_steps_per_rollout_epoch or train.max_episode_steps,
        chunk=cfg.actor.model.num_action_chunks,
        epochs=train.rollout_epoch,
        stages=cfg.rollout.pipeline_stage_num,
        global_batch=cfg.actor.global_batch_size,
        micro_batch=cfg.actor.micro_batch_size,
        update_epochs=cfg.algorithm.update_epoch,
    )


def learns_from_replay(cfg: Any) -> bool:
    """Return whether batches are drawn from a replay buffer, and rollouts only fill it."""
    return "replay_buffer" in cfg.algorithm


def reasoning_global_batch(cfg: Any) -> int:
    """Return the sequences per optimiser step that follow from prompts, group and minibatches."""
    total = cfg.data.rollout_batch_size * cfg.algorithm.group_size
    return total // reasoning_minibatches(cfg)


def reasoning_minibatches(cfg: Any) -> int:
    """Return the optimiser steps per pass over a rollout of responses."""
    given, whole = cfg.algorithm.n_minibatches, cfg.actor.global_batch_size
    if given is not None or whole is None:
        return given or 1
    return max(1, cfg.data.rollout_batch_size * cfg.algorithm.group_size // whole)


def response_limit(cfg: Any) -> int | None:
    """Return the most tokens of a training response to the longest prompt; None if unknown."""
    longest = cfg.algorithm.sampling_params.max_new_tokens
    if longest is None and cfg.runner.seq_length is not None:
        longest = cfg.runner.seq_length - cfg.data.max_prompt_length
    return longest


def batch_arithmetic(cfg: Any, world_sizes: Mapping[str, int]) -> list[str]:
    """Say how samples become updates.

    Args:
        cfg: What `validate_cfg` returned.
        world_sizes: Number of workers by component.

    Returns:
        Lines for a user; empty for tasks that do not train.
    """
    with untracked():
        task = cfg.runner.task_type
        if task == "embodied" and cfg.env.train is not None:
            lines = _embodied_lines(embodied_batch(cfg), world_sizes, learns_from_replay(cfg))
            return [_acting_line(cfg, world_sizes), *lines]
        if task in LANGUAGE:
            return _reasoning_lines(cfg, world_sizes)
    return []


def _embodied_lines(
    batch: EmbodiedBatch, world_sizes: Mapping[str, int], from_replay: bool
) -> list[str]:
    lines = []
    workers = world_sizes.get("env")
    if workers:
        parts = [_count(workers, "env worker"), _count(batch.stages, "pipeline stage")]
        share = batch.envs // (workers * batch.stages)
        line = f"{_count(batch.envs, 'env')} / ({' × '.join(parts)}) = {_count(share, 'env')} each"
        if batch.group > 1:
            line += f" = {_count(share // batch.group, 'group')} of {batch.group}"
        lines.append(line)
    if batch.samples is None:
        lines.append("samples per step: known when the env says how long an episode is")
        return lines
    whole = batch.global_batch or batch.samples
    if from_replay:
        env_steps = batch.samples * batch.chunk
        lines.append(
            f"{batch.samples_text} → {_count(batch.update_epochs, 'gradient step')} on {whole}"
            f" transitions = {batch.update_epochs / env_steps:.3g} gradient steps per env step"
        )
        return lines + _share_line(whole, batch.micro_batch, world_sizes)
    minibatches = batch.samples // whole
    lines.append(
        f"{batch.samples_text} → {_count(minibatches, 'minibatch')} of {whole}"
        f" → × {_count(batch.update_epochs, 'update epoch')}"
        f" = {_count(minibatches * batch.update_epochs, 'update')}"
    )
    return lines + _share_line(whole, batch.micro_batch, world_sizes)


def _acting_line(cfg: Any, world_sizes: Mapping[str, int]) -> str:
    """Say where the policy acts."""
    if resolve_acting(cfg).rollout.in_env_process:
        return "the policy acts inside of the env processes"
    workers = world_sizes.get("rollout")
    where = "processes of its own" if not workers else _count(workers, "rollout worker")
    return f"the policy acts in {where}"


def _reasoning_lines(cfg: Any, world_sizes: Mapping[str, int]) -> list[str]:
    prompts, group = cfg.data.rollout_batch_size, cfg.algorithm.group_size
    minibatches, epochs = reasoning_minibatches(cfg), cfg.algorithm.update_epoch
    whole = reasoning_global_batch(cfg)
    line = (
        f"{_count(prompts, 'prompt')} × {_count(group, 'sample')} = {prompts * group} sequences"
        f" → {_count(minibatches, 'minibatch')} of {whole}"
        f" → × {_count(epochs, 'update epoch')} = {_count(minibatches * epochs, 'update')}"
    )
    if cfg.runner.enable_dynamic_batch_size:
        tokens = cfg.runner.max_tokens_per_mbs
        return [line, f"micro-batches of at most {tokens} tokens"]
    return [line, *_share_line(whole, cfg.actor.micro_batch_size, world_sizes)]


def _share_line(whole: int, micro: int | None, world_sizes: Mapping[str, int]) -> list[str]:
    workers = world_sizes.get("actor")
    if not workers:
        return []
    share = whole // workers
    micro = micro or share
    return [
        f"each minibatch: {whole} samples / {_count(workers, 'actor worker')} = {share} per worker"
        f" → {_count(share // micro, 'micro-batch')} of {micro}"
    ]


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('batch') else 's'}"
