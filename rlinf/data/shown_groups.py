"""Which groups of a step people see: the first few, by the number of their prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlinf.data.reasoning import GroupRequest, Verdict

_SHOWN = 4
"""Groups of a step whose first response or episode is written down."""


def is_shown(place: int) -> bool:
    """Return whether a group of a step is shown, by its place among those that are trained on."""
    return place < _SHOWN


def mark_shown(requests: Sequence[GroupRequest], *, chosen_later: bool) -> list[GroupRequest]:
    """Return the requests of a step, with those marked that may be shown.

    Args:
        requests: in the order of their prompts.
        chosen_later: whether it is known only from the scores which of them are trained on; then
            each may be shown.
    """
    return [
        replace(request, shown=chosen_later or is_shown(place))
        for place, request in enumerate(requests)
    ]


def choose_shown(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts to write down, of those that a step trains on."""
    marked = (verdict for verdict in verdicts if verdict.shown)
    return sorted(marked, key=lambda verdict: verdict.index)[:_SHOWN]
