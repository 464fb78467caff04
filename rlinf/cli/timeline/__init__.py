"""Where the time of a run went: reads the spans of its processes and explains them."""

from rlinf.cli.timeline.lanes import Lane, Timeline, load_timeline

__all__ = ["Lane", "Timeline", "load_timeline"]
