"""The checks of `rlinf doctor`: functions that look at one thing and return findings."""

from rlinf.cli.health.finding import Finding, Status

__all__ = ["Finding", "Status"]
