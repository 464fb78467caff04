"""Keys that MetaWorld adds to `env.train` and `env.eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.envs.config import VectorEnvKeys
from rlinf.envs.metaworld.tasks import (
    GOAL_DIM,
    SETS,
    STATE_DIM,
    different_tasks,
    known_task,
)

Task = Annotated[str, AfterValidator(known_task)]
CameraName = Literal[
    "corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV"
]
"""Cameras that all scenes of MetaWorld have."""


class MetaWorldKeys(VectorEnvKeys):
    """Keys of MetaWorld."""

    task: Task = Field(
        "button-press-v3", description="A MetaWorld task, or MT10, MT25 or MT50 for that many."
    )
    tasks: Annotated[list[Task], AfterValidator(different_tasks)] | None = Field(
        None, min_length=1, description="Several MetaWorld tasks, in the place of `task`."
    )
    goals: Literal["trials", "random"] = Field(
        "trials",
        description="Goal and object positions: the 50 of each task that goal_seed gives, or new "
        "ones in every episode.",
    )
    goal_seed: Int | None = Field(
        None,
        ge=0,
        description="Seed of the 50 positions; null is 0 in training and 1 in evaluations, so that "
        "these have positions of their own.",
    )
    reward: Literal["dense", "success"] = Field(
        "dense", description="MetaWorld's own reward (0 to 10), or 1 while the task is solved."
    )
    reward_function_version: Literal["v1", "v2"] = Field(
        "v2", description="Version of MetaWorld's own reward."
    )
    terminate_on_success: bool = Field(
        False, description="End an episode when it is solved; MetaWorld itself does not."
    )
    task_one_hot: bool | None = Field(
        None,
        description="Append to the state which task it is, one entry per task; null does so if "
        "there are several.",
    )
    state_entries: list[Annotated[Int, Field(ge=0, lt=STATE_DIM)]] | None = Field(
        None,
        min_length=1,
        description="Entries of MetaWorld's state that the policy sees, such as [0, 1, 2, 3] for "
        "the hand and the gripper; null is all 39.",
    )
    hide_goal: bool = Field(
        False,
        description="Set the goal, the last three entries of the state, to zero, as MetaWorld's ML "
        "benchmarks do; scripted experts see it all the same.",
    )
    swap_instructions: bool = Field(
        False,
        description="Tell the policy to do the next of the tasks instead, to see whether it reads "
        "what it is told; success stays that of the task. For evaluations.",
    )
    cache_resets: bool = Field(
        True, description="Keep the state after a reset to one of the 50 positions (exact)."
    )
    obs_mode: Literal["state", "image", "state_image"] = Field(
        "state", description="What the policy sees."
    )
    image_size: Int = Field(84, gt=0, description="Height and width of images (pixels).")
    camera_name: CameraName = Field("corner2", description="Camera that takes `main_images`.")
    wrist_camera_name: CameraName | None = Field(
        None,
        description="Camera that takes `wrist_images`, such as gripperPOV; null has none of them.",
    )
    extra_camera_names: list[CameraName] = Field(
        default_factory=list,
        description="Cameras that take `extra_view_images`, in this order; empty has none of them.",
    )
    blank_images: bool = Field(
        False,
        description="Black pictures, to see whether a policy looks at them. For evaluations.",
    )
    fast_render: bool = Field(
        True,
        description="Images without shadows, reflections and smoothing, and with large meshes only "
        "as fine as the image.",
    )

    @classmethod
    def observed(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """See `NotFiniteKeys.observed`: blank pictures and swapped instructions may differ."""
        mode = section["obs_mode"]
        seen = {"obs_mode": mode}
        if mode != "image":
            entries = section["state_entries"]
            seen["state_entries"] = entries
            if entries is None or any(entry >= STATE_DIM - GOAL_DIM for entry in entries):
                seen["hide_goal"] = section["hide_goal"]
            names = section["tasks"] or [section["task"]]
            tasks = [name.upper() if name.upper() in SETS else name for name in names]
            several = len(tasks) > 1 or tasks[0] in SETS
            one_hot = several if section["task_one_hot"] is None else section["task_one_hot"]
            seen["task_one_hot"] = one_hot
            if one_hot:
                seen["tasks"] = tasks
        if mode != "state":
            keys = "image_size", "camera_name", "wrist_camera_name", "extra_camera_names"
            seen |= {key: section[key] for key in (*keys, "fast_render")}
        return seen

    @model_validator(mode="after")
    def _draws_what_it_names(self) -> MetaWorldKeys:
        """See to it that further cameras are not named where nothing is drawn."""
        further = "wrist_camera_name", "extra_camera_names"
        named = [key for key in further if getattr(self, key)]
        if named and self.obs_mode == "state":
            raise ValueError(
                f"{' and '.join(named)} name cameras, but obs_mode is state, which draws nothing: "
                "set obs_mode to state_image or image, or leave them out"
            )
        return self

    @model_validator(mode="after")
    def _weighs_own_tasks(self) -> MetaWorldKeys:
        """See to it that a start sampler weighs tasks that are played."""
        weights = getattr(getattr(self, "start_sampler", None), "weights", None)
        single = [] if self.task.upper() in SETS else [self.task]
        played = [name for name in self.tasks or single if name.upper() not in SETS]
        # Where the sampler itself is not known, its keys are not either.
        for name in weights if isinstance(weights, dict) else ():
            known_task(name)
            if played and len(played) == len(self.tasks or single) and name not in played:
                raise ValueError(
                    f"start_sampler.weights names {name}, but the tasks are {', '.join(played)}"
                )
        return self


register_schema("env", "metaworld", MetaWorldKeys)
