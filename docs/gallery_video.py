"""Makes the small film of a recipe for the gallery from a video of one of its runs."""

from __future__ import annotations

from pathlib import Path

WIDTH, FPS, SECONDS = 160, 10, 12
MOST_BYTES = 100_000
"""Films are part of the source tree: of more bytes than that, none is kept."""
_QUALITIES = (60, 40, 25, 10)


def make_film(video: Path, target: Path) -> int:
    """Write an animated WebP of the beginning of a video, as fast as it.

    A film that is there already is replaced by a whole one only.

    Args:
        video: As an evaluation writes it, such as `policy.mp4` in the folder of a run.
        target: Where the film goes.

    Returns:
        Its size in bytes.

    Raises:
        ValueError: There is no such video, it has no frames, or its film would be too large.
    """
    import av

    if not video.is_file():
        raise ValueError(
            f"there is no video {video}; a run whose env.eval.video_cfg.save_video is true has "
            "policy.mp4 in its folder"
        )
    frames = []
    with av.open(video) as opened:
        for frame in opened.decode(video=0) if opened.streams.video else ():
            if frame.time >= SECONDS:
                break
            picture = None
            # Slow videos show a frame for several of ours, and fast ones have some for none.
            while frame.time * FPS >= len(frames) - 1e-6:
                if picture is None:
                    height = round(WIDTH * frame.height / frame.width)
                    picture = frame.to_image().resize((WIDTH, height))
                frames.append(picture)
    if not frames:
        raise ValueError(f"the video {video} has no frames; record it again")
    part = target.with_name(f"{target.name}.part")
    try:
        for quality in _QUALITIES:
            options = {"save_all": True, "append_images": frames[1:], "duration": 1000 // FPS}
            options |= {"quality": quality, "method": 6, "minimize_size": True, "loop": 0}
            frames[0].save(part, format="WEBP", **options)
            size = part.stat().st_size
            if size <= MOST_BYTES:
                part.replace(target)
                return size
    finally:
        part.unlink(missing_ok=True)
    raise ValueError(
        f"a film of {video} has {size:,} bytes at the lowest quality, and may have {MOST_BYTES:,}; "
        "take a shorter video"
    )
