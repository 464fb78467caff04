"""The `env` section: what the policy acts in, for training and for evaluation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section


class VideoConfig(Section):
    """Videos of episodes."""

    save_video: bool = Field(
        False, description="Write videos of episodes of the last evaluation (mp4)."
    )
    video_base_dir: str | None = Field(
        None, description="Folder for videos; null is `videos` in the run's own folder."
    )
    fps: Int = Field(30, gt=0, description="Env steps per second of the video.")
    info_on_video: bool = Field(True, description="Write step, reward and success on the frames.")
    max_videos: Int = Field(1, ge=0, description="Episodes to record, from the first one on.")
    episodes: list[Int] | None = Field(
        None, description="Numbers of the episodes to record instead of the first ones, from 0."
    )
    max_failures: Int = Field(
        1, ge=0, description="Episodes that failed to record, besides; the first that did."
    )


class StartSamplerConfig(Section):
    """How often tasks are played; the schema registered for `type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"start_sampler": "type"}

    type: str = Field(
        "uniform",
        description="Registered start sampler: uniform, weighted, failure_rate, learnability, ...",
    )


class GripperConfig(Section):
    """How one number of an action opens and closes a gripper."""

    index: Int = Field(-1, description="Which number, counted in layout; -1 is the last.")
    opened: Float = Field(1.0, description="Value that opens it.")
    closed: Float = Field(-1.0, description="Value that closes it.")
    binary: bool = Field(False, description="Only these two are meant: the nearer one counts.")


class ActionConventionConfig(Section):
    """Actions as the policy gives them, where these are not those of the env."""

    units: Literal["env", "unit"] = Field(
        "env", description="The env's own units, or -1 to 1 for the env's range."
    )
    layout: list[Annotated[Int, Field(ge=0)]] = Field(
        default_factory=list,
        description="Which numbers of the policy's action the env gets, in its order; empty is "
        "all. [0, 1, 2, 6] drives an arm that does not turn by position, rotation and gripper.",
    )
    gripper: GripperConfig | None = Field(
        None, description="The number that moves a gripper; it is translated to the env's."
    )
    dim: Int | None = Field(
        None, gt=0, description="Numbers of the policy's action; null is as layout or env say."
    )


class EnvConfig(Section):
    """Any set of environments; the schema registered for `env_type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"env": "env_type"}

    env_type: str = Field(..., description="Registered environment: metaworld, gymnasium, ...")
    total_num_envs: Int = Field(
        ..., gt=0, description="Environments in all, over all workers and pipeline stages."
    )
    max_episode_steps: Int | None = Field(
        None, gt=0, description="Steps after which an episode is cut; null is the env's own limit."
    )
    max_steps_per_rollout_epoch: Int | None = Field(
        None, gt=0, description="Env steps of one rollout; null is max_episode_steps."
    )
    group_size: Int | None = Field(
        None,
        gt=0,
        description="Envs that share a reset state; null is algorithm.group_size (eval: 1).",
    )
    ignore_terminations: bool = Field(
        False, description="Run every episode to its step limit, whatever happens in it."
    )
    seed: Int | None = Field(None, ge=0, description="Seed of the envs; null is runner.seed.")
    use_ordered_reset_state_ids: bool = Field(
        False, description="Go through all reset states in order, each once."
    )
    specific_reset_id: Int | None = Field(
        None, ge=0, description="Always reset to this state; null draws."
    )
    reward_coef: Float = Field(1.0, description="Factor on the env's reward.")
    use_rel_reward: bool = Field(
        False, description="Reward the change of the env's reward since the last step."
    )
    action_convention: ActionConventionConfig | None = Field(
        None, description="Actions as the policy gives them; null is as the env takes them."
    )
    enable_offload: bool = Field(False, description="Free the env's device while others use it.")
    max_restarts: Int = Field(
        3,
        ge=0,
        description="Crashed env processes that may be restarted before the run ends; also failed "
        "slots of one vector env.",
    )


class TrainEnvConfig(EnvConfig):
    """Environments to train in."""

    rollout_epoch: Int = Field(1, gt=0, description="Rollouts collected for one update.")
    auto_reset: bool = Field(
        True,
        description="Start a new episode where one ended; false where groups are compared (grpo).",
    )
    use_fixed_reset_state_ids: bool = Field(
        False, description="Keep the drawn reset states within a rollout (needed by groups)."
    )
    start_sampler: StartSamplerConfig = Field(
        default_factory=StartSamplerConfig,
        description="Which tasks episodes begin in, where the env has several.",
    )


class EvalEnvConfig(EnvConfig):
    """Environments to evaluate in: fixed episodes, each played to its end."""

    video_cfg: VideoConfig = Field(default_factory=VideoConfig, description="Videos of episodes.")


class EnvSection(Section):
    """Environments for training and for evaluation."""

    group_name: str = Field("EnvGroup", description="Name of the group of env workers.")
    train: TrainEnvConfig | None = Field(None, description="Environments for training.")
    eval: EvalEnvConfig | None = Field(None, description="Environments for evaluation.")
