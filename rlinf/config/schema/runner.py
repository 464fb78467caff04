"""The `runner` section: what the run does, how long, and what it leaves behind."""

from __future__ import annotations

import keyword
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rlinf.config.schema.base import Float, Int, Section

TaskType = Literal[
    "workers",
    "embodied",
    "offline",
    "sft",
    "reward_model",
    "reasoning",
    "reasoning_eval",
    "agent",
    "coding_online_rl",
]
Backend = Literal["tensorboard", "wandb", "swanlab", "jsonl"]


def _check_resume_dir(value: str) -> str:
    if value != "auto" and not re.search(r"global_step_\d+/*$", value):
        raise ValueError(
            "must be 'auto' or a checkpoint folder whose name ends in global_step_<number>"
        )
    return value


def _check_interval(value: int) -> int:
    if value == 0:
        raise ValueError("must be -1 (never) or a whole number of steps, at least 1")
    return value


def is_module_name(text: str) -> bool:
    """Return whether a text is the dotted name of a module; that of a file is not."""
    parts = text.split(".")
    named = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    return named and parts[1:][-1:] != ["py"]


def _check_module(value: str) -> str:
    if not is_module_name(value):
        raise ValueError(
            "must be the name of a module, as in `import my_project.envs`; neither a path nor a "
            "file name"
        )
    return value


Interval = Annotated[Int, AfterValidator(_check_interval)]
ResumeDir = Annotated[str, AfterValidator(_check_resume_dir)]
ModuleName = Annotated[str, AfterValidator(_check_module)]


class LoggerConfig(Section):
    """Where the run is recorded."""

    log_path: str = Field("logs", description="Folder under which runs are written.")
    project_name: str = Field("rlinf", description="Project name shown by tracking services.")
    experiment_name: str = Field("default", description="Name of this run; a folder of log_path.")
    logger_backends: list[Backend] = Field(
        default_factory=lambda: ["tensorboard", "jsonl"],
        description="Where metrics go; a back-end that fails does not stop training.",
    )
    wandb_proxy: str | None = Field(None, description="HTTP proxy used for wandb.")
    wandb_entity: str | None = Field(None, description="wandb team or user; null is your default.")
    swanlab_mode: Literal["cloud", "local", "offline", "disabled"] = Field(
        "cloud", description="How swanlab records."
    )


class AgreementConfig(Section):
    """Check that trainer and rollout give the same log-probabilities."""

    interval: Int = Field(
        50, ge=-1, description="Steps between checks; 0 only before the first update, -1 never."
    )
    tolerance: Float | None = Field(
        None,
        gt=0,
        description="Mean difference of log-probabilities that stops the run (nats), as does a "
        "single one a hundred times as large; null is 1e-3 in fp32 and 0.05 with 16 bits.",
    )


class RunnerConfig(Section):
    """What every run has, that of a program of your own included."""

    task_type: TaskType = Field(
        ..., description="What the run does; decides which other sections and keys there are."
    )
    logger: LoggerConfig = Field(
        default_factory=LoggerConfig, description="Where the run is recorded."
    )
    run_dir: str | None = Field(
        None,
        description="Folder of the run; null is a new one, "
        "`<log_path>/<experiment_name>/<time>-<id>`.",
    )
    ext_modules: list[ModuleName] = Field(
        default_factory=list,
        description="Modules of your own that every process imports: they register envs, models, "
        "rewards and the like. Looked for in the current folder, too.",
    )
    seed: Int = Field(42, ge=0, description="Seed from which every role's own seed is made.")
    report_unread_keys: bool = Field(
        True, description="Name, at the end of a run, the keys that no code has read."
    )


class TrainingRunnerConfig(RunnerConfig):
    """The training loop."""

    max_epochs: Int = Field(
        -1,
        ge=-1,
        description="Passes over the data (embodied: rollout and update rounds); -1 is no limit.",
    )
    max_steps: Int = Field(-1, ge=-1, description="Global steps at which to stop; -1 is no limit.")
    val_check_interval: Interval = Field(
        -1, ge=-1, description="Steps between evaluations; -1 never evaluates."
    )
    eval_at_start: bool | None = Field(
        None,
        description="Evaluate before the first update, as the run will be evaluated at its end; "
        "null does so if that costs no more than a quarter of what training does.",
    )
    save_interval: Interval = Field(
        -1, ge=-1, description="Steps between checkpoints; -1 saves none between."
    )
    save_last: bool = Field(True, description="Save a checkpoint when the run ends or is stopped.")
    async_save: bool = Field(True, description="Write checkpoints while training goes on.")
    keep_last: Int | None = Field(
        None, ge=1, description="Newest checkpoints to keep; null keeps all."
    )
    keep_best: Int = Field(
        0, ge=0, description="Best checkpoints to keep besides the newest, by best_metric."
    )
    best_metric: str | None = Field(
        None, description="Metric that ranks checkpoints, higher is better; null is the task's own."
    )
    resume_dir: ResumeDir | None = Field(
        None,
        description="Checkpoint to continue from, `.../global_step_<N>`; `auto` is the newest one "
        "of the experiment's runs, and goes on in the folder of that run.",
    )
    resume_force: bool = Field(
        False, description="Resume although the config differs from the checkpoint's."
    )
    ckpt_path: str | None = Field(
        None,
        description="Weights to begin with: a checkpoint, a run, an exported folder, or a file of "
        "safetensors or torch.save. The optimiser is fresh; resume_dir goes on with a run.",
    )
    only_eval: bool = Field(False, description="Evaluate and stop, without training.")
    max_restarts: Int = Field(
        0, ge=0, description="Restarts of the whole run from its last checkpoint after a failure."
    )
    deterministic: bool = Field(
        False,
        description="Seeds by name and fixed kernels: two runs give equal fingerprints, which are "
        "written for `rlinf bisect`.",
    )
    agreement: AgreementConfig = Field(
        default_factory=AgreementConfig,
        description="Check that trainer and rollout give the same log-probabilities.",
    )
    on_nan: Literal["stop", "skip"] = Field(
        "stop",
        description="What a NaN in observations, rewards or gradients does: stop the run, or leave "
        "out what came of it and count that in nan_skipped.",
    )
    progress: Literal["auto", "plain", "off"] = Field(
        "auto", description="Live view on the terminal; `plain` prints lines."
    )
    trace: bool = Field(True, description="Record the timeline of every worker.")
    log_interval: Int = Field(1, gt=0, description="Steps between lines of metrics.")
    weight_sync_interval: Int = Field(
        1, gt=0, description="Steps between weight updates of the rollout."
    )


class EmbodiedRunnerConfig(TrainingRunnerConfig):
    """The loop of an embodied run."""

    eval_episodes: Int = Field(
        100, gt=0, description="Episodes of one evaluation, each counted once."
    )


class DataRunnerConfig(TrainingRunnerConfig):
    """The loop of a run that learns from data."""

    local_update_steps: Int = Field(
        100, gt=0, description="Optimiser steps of one global step (offline, sft)."
    )


class OfflineRunnerConfig(DataRunnerConfig, EmbodiedRunnerConfig):
    """The loop of a run in which a policy learns from data."""


class RewardModelRunnerConfig(DataRunnerConfig):
    """The loop of a run in which a reward model learns from data."""


class ReasoningRunnerConfig(TrainingRunnerConfig):
    """The loop of a reasoning run."""

    seq_length: Int | None = Field(
        None, gt=0, description="Most tokens of prompt and response together."
    )
    enable_dynamic_batch_size: bool = Field(
        False, description="Form micro-batches by number of tokens instead of sequences."
    )
    max_tokens_per_mbs: Int | None = Field(
        None, gt=0, description="Most tokens of a micro-batch when its size is dynamic."
    )
