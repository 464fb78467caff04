"""The text of ranks: ``all``, ``3``, ``0-7``, ``0-3:0-7``, joined by commas or as a YAML list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlinf.config.placement.errors import Source, Span, show_yaml

RANK_FORMS = "all, a rank (3), a range (0-7), or several joined by commas (0-3,5)"
SEGMENT_FORMS = f"{RANK_FORMS}; process ranks may follow a colon (0-3:0-7)"

# Six digits: no run has a million processes, and a typo must not ask for the memory of one.
_RANGE = re.compile(r"([0-9]{1,6})(?:\s*-\s*([0-9]{1,6}))?")
_LOOKALIKES = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\uff0d~\uff5e\u301c", "-"),
    **dict.fromkeys("\uff0c\u3001;", ","),
    "\uff1a": ":",
}


@dataclass(frozen=True)
class RankRange:
    """One ``3`` or ``0-7`` of a text, with the places of its two numbers."""

    first: int
    last: int
    first_span: Span
    last_span: Span

    def __len__(self) -> int:
        """Return the number of ranks."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Segment:
    """One comma-separated piece: ``resources[:processes]``."""

    span: Span
    resources: RankRange | None
    """``None`` means ``all``."""
    processes: RankRange | None
    """``None`` means: one per resource, continuing the count."""

    def ranks(self, count: int) -> range:
        """Return the resource ranks of this piece, of ``count`` that there are."""
        if self.resources is None:
            return range(count)
        return range(self.resources.first, self.resources.last + 1)


@dataclass(frozen=True)
class Limit:
    """How many ranks there are, and the words to say so."""

    count: int
    owner: str = "this cluster"
    noun: str = "resources"
    detail: str = ""
    """What the ranks are, such as ``CPU slots``."""
    grow: str = ""
    """How the user can get more of them."""

    def __str__(self) -> str:
        """Return a phrase for messages."""
        detail = f" ({self.detail})" if self.detail else ""
        if self.count == 0:
            return f"{self.owner} has no {self.noun}{detail}"
        if self.count == 1:
            return f"{self.owner} has 1 {self.noun.removesuffix('s')}, rank 0{detail}"
        return f"{self.owner} has {self.count} {self.noun}, ranks 0-{self.count - 1}{detail}"


def parse_segments(
    path: str, value: object, forms: str = SEGMENT_FORMS
) -> tuple[Source, tuple[Segment, ...]]:
    """Read a rank text, a plain int or a YAML list of either.

    Args:
        path: Key path, for messages.
        value: What the user wrote.
        forms: What is allowed here, for messages.

    Returns:
        The text that errors point into, and its pieces.
    """
    source, low, high = _as_text(path, value, forms)
    text = source.text
    spans = list(split_commas(text, low, high))
    segments = tuple(_parse_segment(source, spans, i, forms) for i in range(len(spans)))
    for segment in segments:
        if segment.resources is None and len(segments) > 1:
            raise source.error(
                "'all' already means every rank", segment.span, forms, "let 'all' stand alone"
            )
    return source, segments


def parse_ranks(path: str, value: object, limit: Limit) -> tuple[int, ...]:
    """Read a set of ranks that has no process ranks, such as ``node_ranks: 0-2,5``."""
    source, segments = parse_segments(path, value, RANK_FORMS)
    for segment in segments:
        if segment.processes:
            raise source.error("process ranks have no meaning here", segment.span, RANK_FORMS)
    check_ranks(source, segments, limit)
    return tuple(rank for segment in segments for rank in segment.ranks(limit.count))


def check_ranks(source: Source, segments: Sequence[Segment], limit: Limit) -> None:
    """Raise unless the resource ranks ascend without repeats and all of them exist."""
    previous = -1
    seen: set[int] = set()
    for segment in segments:
        part = segment.resources
        if part is None:
            if limit.count == 0:
                raise source.error("there is nothing to place on", segment.span, str(limit))
            continue
        if part.first in seen:
            raise source.error(
                f"rank {part.first} is given twice",
                part.first_span,
                "every rank once, in ascending order",
                "remove it; several processes share a resource with e.g. 0:0-1",
            )
        if part.first < previous:
            raise source.error(
                f"ranks must ascend, but {part.first} comes after {previous}",
                part.first_span,
                "every rank once, in ascending order",
                "sort the pieces",
            )
        if part.last >= limit.count:
            first_is_bad = part.first >= limit.count
            rank = part.first if first_is_bad else part.last
            span = part.first_span if first_is_bad else part.last_span
            raise source.error(
                f"rank {rank} is out of range", span, str(limit), _range_fix(source, rank, limit)
            )
        previous = part.last
        seen.update(range(part.first, part.last + 1))


def format_ranks(ranks: Iterable[int]) -> str:
    """Return the ranks in the language of placements: ``[0, 1, 2, 5]`` is ``0-2,5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def split_commas(text: str, low: int = 0, high: int | None = None) -> Iterator[Span]:
    """Places of the comma-separated pieces of ``text[low:high]``, without outer blanks."""
    start = low
    for piece in text[low:high].split(","):
        yield _strip(text, start, start + len(piece))
        start += len(piece) + 1


def _as_text(path: str, value: object, forms: str) -> tuple[Source, int, int]:
    """Return the text of a value, and the part of it that holds the pieces."""
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        items = [_shown(item) for item in value]
        source = Source(path, "[" + ", ".join(items) + "]")
        start = 1
        for item, shown in zip(value, items, strict=True):
            span = (start, start + len(shown))
            if isinstance(item, Sequence) and not isinstance(item, (str, bytes)):
                raise source.error(
                    "a list of ranks has no lists in it",
                    span,
                    "a flat list such as [0, 1, 4-5]",
                    "to give a process several resources write e.g. 0-3:0-1",
                )
            _check_scalar(source, item, span, forms)
            start += len(shown) + 2
        if not items:
            raise source.error("the list is empty", allowed=forms)
        return source, 1, len(source.text) - 1
    source = Source(path, _shown(value))
    _check_scalar(source, value, None, forms)
    return source, 0, len(source.text)


def _shown(value: object) -> str:
    text = show_yaml(value)
    return text if text.strip() else f'"{text}"'


def _check_scalar(source: Source, value: object, span: Span | None, forms: str) -> None:
    if value is None:
        raise source.error("has no value", span, forms)
    if isinstance(value, str) and not value.strip():
        raise source.error("is empty", span, forms)
    if isinstance(value, bool):
        raise source.error("a truth value is not a rank", span, forms)
    if isinstance(value, float):
        raise source.error("a rank is a whole number", span, forms)
    if isinstance(value, Mapping):
        raise source.error("a mapping is not a rank", span, forms)
    if not isinstance(value, (int, str)):
        raise source.error(f"a {type(value).__name__} is not a rank", span, forms)


def _parse_segment(source: Source, spans: Sequence[Span], index: int, forms: str) -> Segment:
    text = source.text
    start, end = spans[index]
    if start == end:
        last = index == len(spans) - 1
        comma = text.rindex(",", 0, start) if last else text.index(",", end)
        raise source.error(
            f"a comma with nothing {'after' if last else 'before'} it",
            (comma, comma + 1),
            forms,
            "remove the comma",
        )
    parts = text[start:end].split(":")
    if len(parts) > 2:
        second = start + len(parts[0]) + 1 + len(parts[1])
        raise source.error("a second colon", (second, second + 1), "resources:processes (0-3:0-7)")
    colon = start + len(parts[0])
    resource_span = _strip(text, start, colon)
    if resource_span[0] == resource_span[1]:
        raise source.error("no resource ranks before the colon", (colon, colon + 1), forms)
    resources = None
    if text[slice(*resource_span)] != "all":
        resources = _parse_range(source, resource_span, forms)
    if len(parts) == 1:
        return Segment((start, end), resources, None)
    process_span = _strip(text, colon + 1, end)
    if process_span[0] == process_span[1]:
        raise source.error("no process ranks after the colon", (colon, colon + 1), forms)
    if text[slice(*process_span)] == "all":
        raise source.error(
            "process ranks cannot be 'all'",
            process_span,
            "a process rank or range (0-7)",
            "leave out ':all' for one process per resource",
        )
    return Segment((start, end), resources, _parse_range(source, process_span, forms))


def _parse_range(source: Source, span: Span, forms: str) -> RankRange:
    start, end = span
    text = source.text[start:end]
    match = _RANGE.fullmatch(text)
    if match is None:
        raise _bad_range(source, span, forms)
    first_span = start + match.start(1), start + match.end(1)
    last_span = first_span
    if match[2] is not None:
        last_span = start + match.start(2), start + match.end(2)
    result = RankRange(int(match[1]), int(match[2] or match[1]), first_span, last_span)
    if result.last < result.first:
        raise source.error(
            f"the range {text} descends",
            span,
            "ranges from low to high",
            f"write {result.last}-{result.first}",
        )
    return result


def _bad_range(source: Source, span: Span, forms: str) -> Exception:
    start, end = span
    text = source.text[start:end]
    for i, char in enumerate(text):
        if char in _LOOKALIKES:
            return source.error(
                f"{char!r} is not understood",
                (start + i, start + i + 1),
                forms,
                f"write {_LOOKALIKES[char]!r}",
            )
    if long := re.search(r"[0-9]{7,}", text):
        return source.error(
            "this rank is too large",
            (start + long.start(), start + long.end()),
            "ranks up to 999999",
        )
    if text.lower() == "all":
        return source.error(f"{text!r} is not understood", span, forms, "write 'all'")
    if re.fullmatch(r"-\s*[0-9]+", text):
        return source.error("ranks are not negative", span, "ranks from 0 upwards")
    if re.fullmatch(r"[0-9]+\s*-", text):
        return source.error("the range has no end", (end - 1, end), forms)
    if re.fullmatch(r"[0-9]+\s*\.\s*[0-9]+", text):
        return source.error("a rank is a whole number", span, forms)
    if re.fullmatch(r"[0-9]+\s*\.\.+\s*[0-9]+", text):
        return source.error(f"{text!r} is not understood", span, forms, "ranges are written 0-7")
    if gap := re.search(r"(?<=[0-9])\s+(?=[0-9])", text):
        return source.error(
            "two ranks without a comma between them",
            (start + gap.start(), start + gap.end()),
            forms,
            "put a comma there",
        )
    if dashes := re.fullmatch(r"[0-9]+\s*-\s*[0-9]+\s*(-).*", text):
        return source.error(
            "a range has two ends", (start + dashes.start(1), start + dashes.end(1)), forms
        )
    return source.error(f"{text!r} is not a rank", span, forms)


def _range_fix(source: Source, rank: int, limit: Limit) -> str:
    if source.text == str(rank) and rank >= 60:
        # YAML 1.1 has base-60 numbers, so an unquoted 1:0 arrives here as 60.
        return f"if you wrote {rank // 60}:{rank % 60}, quote it: YAML reads it as {rank}"
    lower = {0: "", 1: "use rank 0"}.get(limit.count, f"use ranks up to {limit.count - 1}")
    return ", or ".join(filter(None, (lower, limit.grow)))


def _strip(text: str, start: int, end: int) -> Span:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
