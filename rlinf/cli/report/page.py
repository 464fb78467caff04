"""Puts the page together: sections, data for the scripts, style and scripts, in one file."""

from __future__ import annotations

import datetime
import json
import math
import os
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from rlinf import __version__
from rlinf.cli.report import sections
from rlinf.cli.report.episodes import find_videos
from rlinf.cli.report.learned_from import learned_from_section
from rlinf.cli.report.metric_series import for_page
from rlinf.cli.report.run_record import read_run
from rlinf.cli.report.timeline_section import timeline_section
from rlinf.cli.report.transcripts import find_samples, transcripts

DATA_ID = "run-data"
"""Id of the element that holds the data, as JSON."""


def write_report(folder: Path, out: Path, video_bytes: int = 20_000_000, samples: int = 24) -> int:
    """Write the page of a run, whole or not at all; return its size in bytes.

    Args:
        folder: of the run.
        out: the page.
        video_bytes: how much of videos may go into it.
        samples: how many of what a language model wrote.

    Raises:
        ValueError: it is not the folder of a run, or what is in it is damaged.
    """
    text = render(folder, out, video_bytes, samples)
    data = text.encode("utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    part.write_bytes(data)
    os.replace(part, out)
    return len(data)


def render(folder: Path, out: Path, video_bytes: int, samples: int) -> str:
    """Return the page of a run as text; `out` is where it will be."""
    record = read_run(folder)
    timeline = timeline_section(folder)
    metrics = for_page(record.metrics)
    videos = find_videos(record, out, video_bytes)
    texts = transcripts(*find_samples(folder, samples))
    learned = learned_from_section(record)
    data = {
        "name": record.name,
        "status": record.status,
        "summary": record.summary,
        "metrics": metrics,
        "timeline": timeline.shown,
    }
    return Template(_asset("page.html")).substitute(
        title=escape(f"{record.name} – {record.status}"),
        style=_asset("page.css"),
        headline=sections.headline(record),
        failure=sections.failure(record),
        learned_from=learned,
        data_link='<a href="#data">What it learned from</a>' if learned else "",
        curve_note=escape(_curve_note(metrics)),
        bottleneck=sections.bottleneck(timeline),
        timeline_note=escape(timeline.note if timeline.shown else ""),
        episodes=sections.episode_section(record, videos, texts),
        config=sections.config_section(record),
        versions=sections.versions_section(record),
        log=sections.log_section(record),
        made=f"Written by rlinf {__version__} on {datetime.datetime.now():%Y-%m-%d %H:%M:%S}",
        data_id=DATA_ID,
        data=embed(data),
        script="\n".join(_asset(name) for name in ("curves.js", "timeline.js")),
    )


def embed(data: Any) -> str:
    """JSON that can stand inside of a script element."""
    text = json.dumps(_plain(data), allow_nan=False, separators=(",", ":"))
    # No text of a run can end the element, or begin a comment in it.
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plain(node: Any) -> Any:
    """Return the names for the numbers that JSON does not know."""
    if isinstance(node, float) and not math.isfinite(node):
        return str(node)
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    return [_plain(value) for value in node] if isinstance(node, (list, tuple)) else node


def _curve_note(metrics: dict[str, Any]) -> str:
    if not metrics["series"]:
        return "No metrics have been written."
    if metrics["longest"] <= metrics["most"]:
        return "All points of metrics.jsonl."
    return (
        f"Of {metrics['longest']:,} points, at most {metrics['most']:,} are shown: the least and "
        "the greatest of each part."
    )


def _asset(name: str) -> str:
    return resources.files("rlinf.cli.report").joinpath("assets", name).read_text(encoding="utf-8")
