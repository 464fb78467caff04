"""Writes a dataset frame by frame; an episode is part of it once it is saved."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.lerobot import layout
from rlinf.data.lerobot.commit import Committer, PendingEpisode
from rlinf.data.lerobot.errors import DatasetError, pyav
from rlinf.data.lerobot.features import OWN, Feature, make_features
from rlinf.data.lerobot.layout import FileSet
from rlinf.data.lerobot.metadata import Info
from rlinf.data.lerobot.statistics import PictureStats
from rlinf.data.lerobot.tables import encode_picture
from rlinf.data.lerobot.video import CODECS, Segment, VideoEncoder, video_info

Bounds = tuple[Any, Any]
"""Lowest and highest value, numbers or arrays."""


class DatasetWriter:
    """Adds episodes to a LeRobot dataset, v3.0.

    Make one with `create` or `append`, call `add_frame` for each frame, then `save_episode`. Use it
    as a context manager: an episode that was begun and not saved is dropped at the end.

    Attributes:
        root: Folder of the dataset.
        frames: Frames of the episode that is being written.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        clip: Mapping[str, Bounds] | None = None,
        codec: str = "h264",
        queue_frames: int = 32,
        final_observations: bool | None = None,
    ) -> None:
        """Take over a dataset that is there; see `append`."""
        if codec not in CODECS:
            raise DatasetError(f"codec {codec!r} is none of {', '.join(CODECS)}")
        if queue_frames < 1:
            raise DatasetError(f"queue_frames is {queue_frames}; it must be at least 1")
        self.root = Path(root)
        self._committer = Committer(self.root, final_observations)
        self._codec, self._queue_frames = codec, queue_frames
        self._given = {
            name: feature
            for name, feature in self._committer.info.features.items()
            if name not in OWN
        }
        unknown = [name for name in clip or {} if name not in self._given]
        if unknown:
            self._committer.close()
            raise DatasetError(
                f"clip names '{unknown[0]}', which is no feature; there are "
                f"{', '.join(self._given)}"
            )
        self._clip = dict(clip or {})
        self._closed = False
        self._reset()

    @classmethod
    def create(
        cls,
        root: str | Path,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        *,
        robot_type: str | None = None,
        chunks_size: int = 1000,
        data_files_size_in_mb: float = 100,
        video_files_size_in_mb: float = 200,
        clip: Mapping[str, Bounds] | None = None,
        codec: str = "h264",
        queue_frames: int = 32,
        final_observations: bool = False,
    ) -> DatasetWriter:
        """Begin a dataset in a folder that does not exist or is empty.

        Args:
            root: The folder.
            fps: Frames per second.
            features: `dtype`, `shape` and maybe `names` of each feature but those that every
                dataset has (`timestamp`, `frame_index`, `episode_index`, `index`, `task_index`).
            robot_type: What is recorded.
            chunks_size: Files in a folder.
            data_files_size_in_mb: A table that would grow beyond this is followed by another.
            video_files_size_in_mb: Likewise a video.
            clip: Lowest and highest value of features; what is beyond is stored as the bound. Give
                the bounds of the action space here, so that `action` is what the env executed.
            codec: Of videos, `h264` or `av1`.
            queue_frames: Pictures of a camera that may wait to be encoded.
            final_observations: Keep the observation after the last frame, which `save_episode`
                takes. A truncated episode then has as many transitions as frames.

        Raises:
            DatasetError: The folder holds something, or an argument is not valid.
        """
        root = Path(root)
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise DatasetError(f"{root} is there already: give a new folder, or use append")
        limits = {
            "fps": fps,
            "chunks_size": chunks_size,
            "data_files_size_in_mb": data_files_size_in_mb,
            "video_files_size_in_mb": video_files_size_in_mb,
        }
        for name, value in limits.items():
            if not value > 0:
                raise DatasetError(f"{name} is {value}; it must be above 0")
        if codec not in CODECS:
            raise DatasetError(f"codec {codec!r} is none of {', '.join(CODECS)}")
        made = make_features(features, str(root))
        taken = [name for name in made if name in OWN or name == "task"]
        if taken:
            raise DatasetError(
                f"{root}, feature '{taken[0]}': the writer fills it in; leave it out"
            )
        for name, feature in made.items():
            if feature.dtype == "video":
                made[name] = _with_video_info(feature, fps, codec, root)
        info = Info(layout.VERSION, features={**made, **OWN}, robot_type=robot_type, **limits)
        info.video_path = layout.VIDEO if info.videos else None
        (root / "meta").mkdir(parents=True, exist_ok=True)
        files = FileSet(root)
        files.add_json(layout.INFO, info.to_json(0))
        files.publish()
        return cls(
            root,
            clip=clip,
            codec=codec,
            queue_frames=queue_frames,
            final_observations=final_observations,
        )

    @classmethod
    def append(
        cls,
        root: str | Path,
        *,
        clip: Mapping[str, Bounds] | None = None,
        codec: str = "h264",
        queue_frames: int = 32,
    ) -> DatasetWriter:
        """Add to a dataset that is there. New episodes go into new files.

        Args:
            root: The folder, v3.0. What an earlier writer left unfinished is deleted.
            clip: As in `create`.
            codec: As in `create`; may differ from that of earlier episodes.
            queue_frames: As in `create`.

        Raises:
            DatasetError: There is none, it is v2.1, or another process writes it.
        """
        folder = layout.find_root(root)
        return cls(folder, clip=clip, codec=codec, queue_frames=queue_frames)

    @property
    def num_episodes(self) -> int:
        """Episodes that are part of the dataset."""
        return self._committer.info.total_episodes

    def add_frame(self, frame: Mapping[str, Any], task: str) -> None:
        """Add a frame to the current episode.

        Args:
            frame: A value of each feature: an observation, the action that was executed after it,
                and what followed (`next.reward`, `next.terminated`, ...). Pictures are uint8
                `[H, W, C]` or `[C, H, W]`.
            task: What was to be done, in words.

        Raises:
            DatasetError: A feature is missing, unknown, or its value does not fit. The episode is
                as before.
            OSError: A video cannot be written. The episode must be discarded.
        """
        where = f"{self.root}, episode {self.num_episodes}, frame {self.frames}"
        self._check_open()
        if not isinstance(task, str) or not task:
            raise DatasetError(f"{where}: task is {task!r}; it must be a text")
        if frame.keys() != self._given.keys():
            absent, unknown = self._given.keys() - frame.keys(), frame.keys() - self._given.keys()
            raise DatasetError(
                f"{where}: missing features: {', '.join(sorted(absent)) or 'none'}; unknown "
                f"features: {', '.join(sorted(unknown)) or 'none'}"
            )
        checked = {
            name: feature.check(self._clipped(name, frame[name]), where)
            for name, feature in self._given.items()
        }
        for name, value in checked.items():
            self._keep(self._given[name], value)
        self._tasks.append(task)
        self.frames += 1

    def save_episode(self, final_observation: Mapping[str, Any] | None = None) -> int:
        """Make the frames since the last call an episode of the dataset.

        Args:
            final_observation: What followed the last frame: all features whose names begin with
                `observation`. Only for datasets that were made with `final_observations`.

        Returns:
            Its number.

        Raises:
            DatasetError: There are no frames, or the final observation does not fit.
            OSError: It cannot be written, for instance because the disk is full. The dataset is as
                before; once there is room, call this again, or `discard_episode`.
        """
        self._check_open()
        where = f"{self.root}, episode {self.num_episodes}"
        if not self.frames:
            raise DatasetError(f"{where} has no frames: call add_frame first")
        final = self._check_final(final_observation, f"{where}, final observation")
        for encoder in self._encoders.values():
            encoder.finish()
        columns = {
            name: values if self._given[name].dtype in ("string", "image") else np.stack(values)
            for name, values in self._values.items()
        }
        videos = {
            name: Segment(encoder.path, 0.0, encoder.frames)
            for name, encoder in self._encoders.items()
        }
        stats = {name: stats.result() for name, stats in self._picture_stats.items()}
        number = self._committer.commit(PendingEpisode(columns, self._tasks, videos, stats, final))
        self._drop()
        return number

    def save_copy(self, episode: PendingEpisode) -> int:
        """Add an episode that is complete, such as one of another dataset; see `tools`.

        Raises:
            DatasetError: An episode is being written.
            OSError: It cannot be written. The dataset is as before.
        """
        self._check_open()
        if self.frames:
            raise DatasetError(f"{self.root}: save or discard episode {self.num_episodes} first")
        return self._committer.commit(episode)

    def discard_episode(self) -> None:
        """Drop the frames since the last save."""
        self._drop()

    def close(self) -> None:
        """Drop an episode that was not saved, and let others write the dataset."""
        if not self._closed:
            self._drop()
            self._committer.close()
            self._closed = True

    def __enter__(self) -> DatasetWriter:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DatasetError(f"{self.root}: the writer is closed; use append")

    def _clipped(self, name: str, value: Any) -> Any:
        if name not in self._clip:
            return value
        low, high = self._clip[name]
        return np.clip(
            np.asarray(value.detach().cpu() if hasattr(value, "detach") else value), low, high
        )

    def _keep(self, feature: Feature, value: Any) -> None:
        name = feature.name
        if not feature.is_picture:
            self._values.setdefault(name, []).append(value)
            return
        if name not in self._picture_stats:
            self._picture_stats[name] = PictureStats(feature.picture_shape[2])
        if feature.dtype == "image":
            self._values.setdefault(name, []).append(encode_picture(value))
        else:
            # The caller may reuse its buffer while the picture waits to be encoded.
            self._encoder(feature).put(value.copy())
        self._picture_stats[name].add(value)

    def _encoder(self, feature: Feature) -> VideoEncoder:
        if feature.name not in self._encoders:
            folder = self.root / layout.STAGING / "videos"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{feature.name}.mp4"
            fps = self._committer.info.fps
            self._encoders[feature.name] = VideoEncoder(
                path, feature, fps, self._codec, self._queue_frames
            )
        return self._encoders[feature.name]

    def _check_final(self, given: Mapping[str, Any] | None, where: str) -> dict[str, Any] | None:
        if given is None:
            return None
        if not self._committer.keeps_final_observations:
            raise DatasetError(f"{where}: create the dataset with final_observations=True")
        wanted = {name for name in self._given if name.startswith("observation")}
        if set(given) != wanted:
            raise DatasetError(
                f"{where}: {', '.join(sorted(given)) or 'nothing'} was given; it has "
                f"{', '.join(sorted(wanted))}"
            )
        return {name: self._given[name].check(given[name], where) for name in wanted}

    def _reset(self) -> None:
        self.frames = 0
        self._tasks: list[str] = []
        self._values: dict[str, list[Any]] = {}
        self._encoders: dict[str, VideoEncoder] = {}
        self._picture_stats: dict[str, PictureStats] = {}

    def _drop(self) -> None:
        for encoder in self._encoders.values():
            encoder.abort()
        shutil.rmtree(self.root / layout.STAGING / "videos", ignore_errors=True)
        self._reset()


def _with_video_info(feature: Feature, fps: float, codec: str, root: Path) -> Feature:
    pyav()
    if feature.picture_shape[2] != 3:
        raise DatasetError(
            f"{root}, feature '{feature.name}': {feature.picture_shape[2]} channels were given; a "
            "video has 3, other pictures are kept with dtype image"
        )
    info = {**feature.info, **video_info(feature, fps, codec)}
    return Feature(feature.name, feature.dtype, feature.shape, feature.names, info)
