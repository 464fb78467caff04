"""Videos: encoded in the background, joined without encoding again, decoded by timestamp."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.lerobot.errors import DatasetError, pyav
from rlinf.data.lerobot.features import Feature

CODECS = {
    "h264": ("libx264", {"crf": "18", "preset": "veryfast", "bf": "0"}),
    "av1": ("libsvtav1", {"crf": "30", "preset": "10"}),
}
"""Codecs by the name that the metadata has: the encoder, and its options.

Frames are in the order in which they are shown, so that episodes can be joined and cut.
"""

_KEY_FRAME_EVERY = 2
_SKIP_AHEAD_S = 1.0


def rate_of(fps: float) -> Fraction:
    """Return frames per second as an exact number."""
    return Fraction(fps).limit_denominator(100_000)


def pixel_format(feature: Feature) -> str:
    """Return how colours are kept: with half the resolution if the sides are even."""
    height, width, _ = feature.picture_shape
    return "yuv444p" if height % 2 or width % 2 else "yuv420p"


def video_info(feature: Feature, fps: float, codec: str) -> dict[str, Any]:
    """Return what `meta/info.json` says about the videos of a camera."""
    height, width, channels = feature.picture_shape
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": codec,
        "video.pix_fmt": pixel_format(feature),
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": channels,
        "has_audio": False,
    }


class VideoEncoder:
    """Encodes the pictures of one episode of one camera, in a thread behind a bounded queue."""

    def __init__(
        self, path: Path, feature: Feature, fps: float, codec: str, queue_frames: int
    ) -> None:
        """Start the thread.

        Args:
            path: The mp4 file to write.
            feature: The camera.
            fps: Frames per second.
            codec: One of `CODECS`.
            queue_frames: Pictures that may wait; `put` waits when there are more.
        """
        self.path, self.frames = path, 0
        self._feature, self._rate, self._codec = feature, rate_of(fps), codec
        self._queue: queue.Queue[np.ndarray | None] = queue.Queue(queue_frames)
        self._error: BaseException | None = None
        self._aborted = False
        self._thread = threading.Thread(target=self._run, name=f"encode-{feature.name}")
        self._thread.daemon = True
        self._thread.start()

    def put(self, picture: np.ndarray) -> None:
        """Add a picture, uint8 `[H, W, 3]`.

        Raises:
            OSError: The file cannot be written, for instance because the disk is full.
        """
        self._check()
        self._queue.put(picture)
        self.frames += 1

    def finish(self) -> None:
        """Wait until all pictures are in the file.

        Raises:
            OSError: The file cannot be written.
        """
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._check()

    def abort(self) -> None:
        """Stop, and delete the file."""
        self._aborted = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self.path.unlink(missing_ok=True)

    def _check(self) -> None:
        if self._error is not None:
            raise OSError(
                f"{self.path}, feature '{self._feature.name}': the video cannot be written: "
                f"{self._error}"
            ) from self._error

    def _run(self) -> None:
        try:
            self._encode()
        except BaseException as error:
            self._error = error
            # Whoever waits for room in the queue must not wait for ever.
            while self._queue.get() is not None:
                pass

    def _encode(self) -> None:
        os.environ.setdefault("SVT_LOG", "1")  # the encoder of av1 reports only errors
        av = pyav()
        encoder, options = CODECS[self._codec]
        height, width, _ = self._feature.picture_shape
        with av.open(str(self.path), "w", format="mp4") as container:
            stream = container.add_stream(encoder, rate=self._rate)
            stream.width, stream.height = width, height
            stream.pix_fmt = pixel_format(self._feature)
            stream.options = {**options, "g": str(_KEY_FRAME_EVERY)}
            stream.thread_count = 1
            number = 0
            while (picture := self._queue.get()) is not None:
                if self._aborted:
                    continue
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = number, 1 / self._rate
                for packet in stream.encode(frame):
                    container.mux(packet)
                number += 1
            if number:
                for packet in stream.encode():
                    container.mux(packet)


@dataclass(frozen=True)
class Segment:
    """Frames of a video file that follow one another.

    Attributes:
        path: The file.
        start: When the first one is shown, in seconds.
        frames: How many.
    """

    path: Path
    start: float
    frames: int


def signature(path: Path) -> tuple:
    """Return what two files must share to be joined: codec, size, colours, codec parameters.

    Raises:
        DatasetError: The file cannot be read.
    """
    with _opened(path) as container:
        context = container.streams.video[0].codec_context
        parameters = bytes(context.extradata or b"")
        return (context.name, context.width, context.height, context.pix_fmt, parameters)


def join(segments: Sequence[Segment], out: Path, fps: float) -> bool:
    """Copy segments, one after the other, into a new file, without encoding them again.

    Args:
        segments: Of files with one `signature`.
        out: The file to write.
        fps: Frames per second of all of them.

    Returns:
        Whether that is possible: False if a segment does not begin with a key frame, or has frames
        in another order than they are shown. The file is of no use then.

    Raises:
        DatasetError: A file is damaged or has fewer frames.
    """
    av = pyav()
    rate, done = rate_of(fps), 0
    with av.open(str(out), "w", format="mp4") as target:
        stream = None
        for segment in segments:
            with _opened(segment.path) as source:
                if stream is None:
                    # Packets are copied, so no encoder of the same name needs to exist.
                    template = source.streams.video[0]
                    stream = target.add_stream_from_template(template, opaque=True)
                packets = _packets(source, segment, rate)
                if packets is None:
                    return False
                for number, packet in enumerate(packets):
                    ticks = Fraction(done + number) / rate / packet.time_base
                    packet.pts = packet.dts = round(ticks)
                    packet.duration = round(1 / rate / packet.time_base)
                    packet.stream = stream
                    target.mux(packet)
            done += segment.frames
    return True


def _packets(source: Any, segment: Segment, rate: Fraction) -> list[Any] | None:
    """Return the packets of a segment; None if they cannot be copied."""
    video = source.streams.video[0]
    half = Fraction(1, 2) / rate
    first = Fraction(segment.start).limit_denominator(1_000_000) - half
    source.seek(max(0, int((first + half) / video.time_base)), stream=video)
    found = []
    try:
        for packet in source.demux(video):
            if packet.pts is None or packet.pts * packet.time_base < first:
                continue
            if packet.pts != packet.dts and len(found) < segment.frames:
                return None
            found.append(packet)
            if len(found) == segment.frames:
                break
    except pyav().FFmpegError as error:
        raise DatasetError(f"{segment.path} is damaged: {error}") from error
    if len(found) < segment.frames:
        raise DatasetError(
            f"{segment.path} has {len(found)} frames from {segment.start:.3f} s on; "
            f"{segment.frames} are wanted"
        )
    return found if found[0].is_keyframe else None


def _opened(path: Path) -> Any:
    av = pyav()
    try:
        container = av.open(str(path))
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing") from error
    except (OSError, av.FFmpegError) as error:
        size = path.stat().st_size
        raise DatasetError(f"{path} ({size} bytes) is not a whole video: {error}") from error
    if not container.streams.video:
        container.close()
        raise DatasetError(f"{path} has no video stream")
    return container


class VideoFile:
    """An mp4 file, of which the frames at given times are decoded."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            DatasetError: It is missing or damaged.
        """
        self.path = path
        self._container = _opened(path)
        self._stream = self._container.streams.video[0]
        self._stream.thread_type = "AUTO"
        self._decoded: Iterator[Any] | None = None
        self._last: Any = None

    def frames(self, times: Sequence[float], fps: float, where: str) -> np.ndarray:
        """Return the frames that are shown at some times.

        Args:
            times: In seconds, in any order.
            fps: Frames per second; a frame may be off by less than half of one.
            where: Episode and feature, for the error.

        Returns:
            uint8 `[N, H, W, 3]`, in the order of `times`.

        Raises:
            DatasetError: A frame is not there, or the file is damaged.
        """
        pictures: dict[float, np.ndarray] = {}
        for time in sorted(set(times)):
            pictures[time] = self._at(time, 0.5 / fps, where).to_ndarray(format="rgb24")
        return np.stack([pictures[time] for time in times])

    def _at(self, time: float, tolerance: float, where: str) -> Any:
        last = None if self._last is None else self._last.time
        if last is not None and abs(last - time) < tolerance:
            return self._last
        if last is None or not last < time < last + _SKIP_AHEAD_S:
            self._seek(time)
        seen = None
        try:
            for frame in self._decoded or ():
                self._last = frame
                seen = frame.time
                if abs(seen - time) < tolerance:
                    return frame
                if seen > time:
                    break
        except pyav().FFmpegError as error:
            self._decoded = self._last = None
            raise DatasetError(f"{where}: {self.path} is damaged: {error}") from error
        self._decoded = self._last = None
        near = "none" if seen is None else f"one at {seen:.4f} s"
        raise DatasetError(f"{where}: {self.path} has no frame at {time:.4f} s; {near} was found")

    def _seek(self, time: float) -> None:
        self._last = None
        try:
            self._container.seek(round(time / self._stream.time_base), stream=self._stream)
        except pyav().FFmpegError:
            # Beyond the last key frame: decode from the start, and say what is missing there.
            self._container.seek(0)
        self._decoded = self._container.decode(self._stream)

    def close(self) -> None:
        """Close the file."""
        self._decoded = self._last = None
        self._container.close()
