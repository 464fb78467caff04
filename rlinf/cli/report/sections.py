"""The sections of the page that need no script: headline, failure, bottleneck, episodes, config."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rlinf.cli.report.episodes import Video, episodes, tasks
from rlinf.cli.report.headline import STATUS_WORDS, subtitle, tiles
from rlinf.cli.report.pieces import cell, definition_list, table, tile_grid
from rlinf.cli.report.run_record import RunRecord
from rlinf.cli.report.timeline_section import TimelineSection
from rlinf.cli.timeline.summary import LaneSummary, Summary
from rlinf.cli.trace import row, title_of
from rlinf.utils.numbers import number, percent

_MOST_EPISODES = 1_000
_CARD_ROWS = (
    ("who", "failed first"),
    ("where", "where"),
    ("when", "when"),
    ("doing", "doing"),
    ("what", "what"),
    ("cause", "likely cause"),
    ("change", "what to change"),
    ("logs", "logs"),
)


def headline(record: RunRecord) -> str:
    """Name, status and the numbers that matter."""
    status = record.status
    # Where there is a card, it tells more.
    error = None if record.failure else record.summary.get("error")
    words = STATUS_WORDS.get(status, status)
    return (
        f'<h1>{escape(record.name)} <span class="status {escape(status)}">{escape(words)}</span>'
        f'</h1><p class="subtitle">{escape(subtitle(record))}</p>'
        + (f'<p class="error">{escape(str(error))}</p>' if error and status == "failed" else "")
        + tile_grid(tiles(record))
    )


def failure(record: RunRecord) -> str:
    """Return why the run ended, if it failed; folded, what it recovered from."""
    out = ""
    if record.failure:
        out = f'<section id="failure"><h2>Failure</h2>{_card(record.failure)}</section>'
    for card in record.earlier:
        what = f"{card.get('who')}: {card.get('what')}"
        out += (
            "<section><details><summary>An earlier attempt failed: "
            f"{escape(what)}</summary>{_card(card)}</details></section>"
        )
    return out


def _card(card: dict[str, Any]) -> str:
    rows = [(label, str(card.get(key, ""))) for key, label in _CARD_ROWS if card.get(key)]
    followers = card.get("followers") or []
    if followers:
        rows.append(("also", f"{len(followers)} stopped because of this: {', '.join(followers)}"))
    evidence = "\n".join(card.get("evidence") or [])
    body = definition_list(rows) + (f"<pre>{escape(evidence)}</pre>" if evidence else "")
    return f'<div class="card failed">{body}</div>'


def bottleneck(section: TimelineSection) -> str:
    """Return the sentence of `rlinf trace`, and what each process did."""
    summary = section.summary
    if summary is None:
        return f"<p>{escape(section.note)}</p>"
    total = summary.seconds
    rows = "".join(_lane_row(name, lane, total) for name, lane in summary.lanes.items())
    return (
        f'<p class="sentence">{escape(summary.sentence)}</p>'
        f'<div class="scroll"><table class="lanes"><caption>{title_of(summary)}</caption>'
        "<thead><tr><th>process</th><th></th><th>busy</th><th>with</th><th>waiting</th><th>for</th>"
        f"<th>idle</th></tr></thead><tbody>{rows}</tbody></table></div>{_path(summary)}"
    )


def _lane_row(name: str, lane: LaneSummary, total: float) -> str:
    busy, what, waiting, whom, idle = (escape(text) for text in row(lane, total))
    shares = [sum(part.values()) / total for part in (lane.busy, lane.waiting)]
    bar = "".join(
        f'<i class="{kind}" style="width:{100 * share:.2f}%"></i>'
        for kind, share in zip(("busy", "waiting"), shares, strict=True)
    )
    return (
        f'<tr><td>{escape(name)}</td><td><span class="bar">{bar}</span></td>'
        f"<td>{busy}</td><td>{what}</td><td>{waiting}</td><td>{whom}</td><td>{idle}</td></tr>"
    )


def _path(summary: Summary) -> str:
    ranked = sorted(summary.path.items(), key=lambda entry: -entry[1])[:8]
    parts = "".join(
        f"<tr><td>{percent(seconds / summary.seconds)}</td>"
        f"<td>{escape(what)} of {escape(group)}</td></tr>"
        for (group, what), seconds in ranked
    )
    return (
        "<details><summary>Critical path: the work that a step could not have been shorter than"
        f'</summary><table class="path">{parts}</table></details>'
    )


def episode_section(record: RunRecord, videos: Sequence[Video], texts: str = "") -> str:
    """Return the videos, then results by task and by episode.

    Args:
        record: the run.
        videos: of its episodes.
        texts: episodes of a language model, as HTML.
    """
    parts = [texts]
    if videos:
        parts.append(f'<div class="videos">{"".join(map(_video, videos))}</div>')
    by_task = tasks(record)
    if by_task:
        keys = list(dict.fromkeys(key for row in by_task.values() for key in row if key != "task"))
        body = ([name, *(cell(key, row.get(key)) for key in keys)] for name, row in by_task.items())
        parts.append(table(["task", *keys], body))
    played = episodes(record)
    if played:
        keys = [key for key in dict.fromkeys(k for e in played for k in e) if key != "video"]
        body = (
            [cell(key, episode.get(key)) for key in keys] for episode in played[:_MOST_EPISODES]
        )
        more = len(played) - _MOST_EPISODES
        note = f"<p>{number(more)} more are in evaluation.json.</p>" if more > 0 else ""
        parts.append(
            f"<details><summary>All {number(len(played))} episodes of the last evaluation</summary>"
            f"{table(keys, body)}{note}</details>"
        )
    notes = [(record.evaluation or {}).get(key) for key in ("protocol", "video_note")]
    told = str(record.summary.get("video") or "")
    if not videos and not notes[1] and not texts:
        notes.append(told if told.startswith("no video") else "no video was recorded")
    words = "; ".join(str(note) for note in notes if note)
    return "".join(parts) + (f'<p class="note">{escape(words)}</p>' if words else "")


def _video(video: Video) -> str:
    mark = {True: '<b class="good">success</b> ', False: '<b class="bad">failure</b> '}
    caption = f"{mark.get(video.success, '')}{escape(video.title)}"
    source = escape(video.source, quote=True)
    if not video.embedded:
        return f'<figure><figcaption>{caption}: <a href="{source}">video</a></figcaption></figure>'
    if source.startswith("data:image"):
        media = f'<img src="{source}" alt="">'
    else:
        media = f'<video controls muted loop playsinline preload="metadata" src="{source}"></video>'
    return f"<figure>{media}<figcaption>{caption}</figcaption></figure>"


def config_section(record: RunRecord) -> str:
    """Return the command, what it set, and every key."""
    overrides = record.overrides
    parts = []
    command = record.summary.get("command")
    if command:
        parts.append(f"<pre>{escape(shlex.join(command))}</pre>")
    if overrides:
        rows = [(key, value) for key, value in overrides.items()]
        parts.append(f"<h3>Differs from the recipe</h3>{definition_list(rows)}")
    for name, section in record.config.items():
        flat = dict(flatten(section, name))
        changed = sum(key in overrides for key in flat)
        note = f" ({len(flat)} keys{f', {changed} set on the command line' if changed else ''})"
        rows = "".join(
            f"<tr{' class=changed' if key in overrides else ''}><td>{escape(key)}</td>"
            f"<td>{escape(json.dumps(value, ensure_ascii=False))}</td></tr>"
            for key, value in flat.items()
        )
        parts.append(
            f"<details><summary>{escape(name)}{note}</summary>"
            f'<table class="keys">{rows}</table></details>'
        )
    return "".join(parts) or "<p>There is no config.yaml.</p>"


def versions_section(record: RunRecord) -> str:
    """Return the packages and machine."""
    versions = record.summary.get("versions") or {}
    return definition_list([(name, str(text)) for name, text in versions.items()])


def log_section(record: RunRecord) -> str:
    """Return the end of the logs."""
    if not record.log:
        return "<p>The workers logged nothing.</p>"
    lines = "".join(
        f'<span class="{escape(level.lower())}">{escape(text)}</span>\n'
        for level, text in record.log
    )
    return (
        f"<details><summary>The last {len(record.log)} messages of the workers; all of them: "
        f"<code>rlinf logs {escape(str(record.folder))}</code></summary>"
        f'<pre class="log">{lines}</pre></details>'
    )


def flatten(node: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    """Dotted keys and their values."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from flatten(value, f"{prefix}.{key}")
    else:
        yield prefix, node
