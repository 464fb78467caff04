"""The `collect` section: episodes that `rlinf collect` writes into a dataset."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section

Noise = Annotated[Float, Field(ge=0)]


class CollectConfig(Section):
    """Who acts, how many episodes, and where they go."""

    policy: str = Field(
        "scripted",
        description="Who acts: `scripted` is the expert that the env brings along, `random` draws "
        "actions, other names are registered experts; or the folder of a run, of a checkpoint or "
        "of an exported policy.",
    )
    episodes: Int = Field(20, gt=0, description="Episodes to write.")
    save_dir: str | None = Field(
        None, description="Folder of the dataset; it must not exist, or be empty."
    )
    only_success: bool = Field(False, description="Write only episodes that solved their task.")
    max_attempts: Int | None = Field(
        None,
        gt=0,
        description="Episodes to play at most, where not all are written; null is ten times "
        "`episodes`.",
    )
    noise: Noise | list[Noise] = Field(
        0.0,
        description="Deviation of the noise that is added to actions, as a part of half their "
        "range; of choices, how likely one is drawn at random. A list is for one episode after the "
        "other, again and again.",
    )
    sample: bool = Field(
        False,
        description="Let a trained policy draw its actions; false takes those that it evaluates "
        "with.",
    )
    num_envs: Int | None = Field(
        None,
        gt=0,
        description="Envs that are stepped together; null is as many as env.train has, 1 for a "
        "device. The episodes are the same.",
    )
    seed: Int | None = Field(
        None, ge=0, description="Seed of starts and noise; null is that of env.train."
    )
    fps: Int = Field(30, gt=0, description="Frames per second that the dataset says it has.")
    image_format: Literal["video", "image"] = Field(
        "video", description="Pictures as mp4, which is small, or PNG, which is exact."
    )
